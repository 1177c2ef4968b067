"""Read an ended run from the store: the inputs of its last snapshot.

A configuration of a few bytes can ask for a network of terabytes.  The size of the stored weights bounds what is built.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
import safetensors.torch
import torch
from torch import Tensor

from sonde.analysis.recompute.credits import CREDITS, FEEDBACK, REDRAWN, WITHOUT_STATE
from sonde.analysis.recompute.sample import Sample, SampleCredit, SnapshotInputs, advanced, forward
from sonde.config import RunConfig, to_tree
from sonde.config.stored import read, read_without, refuse_other_versions
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.models import MODELS
from sonde.network import Network
from sonde.store.files import Place
from sonde.store.folder import how_to_restore, read_tensors
from sonde.store.lock import run_status
from sonde.store.run import Run, read_rows
from sonde.store.schemas import ENDED, Manifest
from sonde.tasks import Data
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.program import DTYPES, Bf16Linear, unpack, use_bf16
from sonde.training.step import Rerun, signal_on

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class LastEpoch:
    """The rows of a run's last epoch, the inputs they are computed from, and why some inputs are missing."""

    run: Run
    config: RunConfig
    rows: pl.DataFrame
    inputs: SnapshotInputs
    missing: dict[str, str]  # tensors that are not stored → why


@contextmanager
def _fitting(run: str, fix: str) -> Iterator[None]:
    """Raise one SondeError for any exception that stored tensors and options cause when they do not fit."""
    try:
        yield
    except SondeError:
        raise
    except Exception as error:  # stored tensors may have any shape, name and nesting
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise SondeError(
            f"run {run} cannot be recomputed: its tensors do not fit its configuration "
            f"({type(error).__name__}: {said}); {fix}"
        ) from error


def read_last_epoch(run: Run, data_root: Place | None = None) -> LastEpoch:
    """Read the last epoch of a stored run.  No stored code runs: a plugin has to be named again."""
    with _fitting(run.id, how_to_restore(run.path)):
        return _read_last_epoch(run, data_root)


def config_of(run: Run) -> dict[str, Any]:
    """The stored configuration of a trained run, as plain data."""
    if run.is_watched:
        raise SondeError(f"run {run.id} was watched: it has no configuration, and nothing to recompute")
    config: dict[str, Any] = run.config
    return config


def _read_last_epoch(run: Run, data_root: Place | None) -> LastEpoch:
    config, manifest, rows = _read_ended(run)
    assert manifest.epoch is not None
    missing = _not_stored(manifest)
    data = _load_data(run, config, data_root)
    net = config.model.build(config.signature, generator(config.seed, "init")).to(DTYPES[config.precision])
    net.load_state_dict(safetensors.torch.load(read_tensors(run.path, "weights")))
    initial = None if "initial" in missing else safetensors.torch.load(read_tensors(run.path, "initial"))
    rule = _read_rule(run, config, net, data, missing)
    net = net.double().eval().requires_grad_(False)
    inputs = SnapshotInputs(
        net=net,
        as_trained=partial(_as_trained, precision=config.precision),
        classifies=config.signature.classifies,
        test=data.test,
        test_samples=data.test_samples,
        size=config.probes.size,
        seed=config.seed,
        epoch=manifest.epoch,
        directions=config.probes.directions,
        draws=0 if "null" in missing else _draws(config, manifest.epoch),
        epsilon=config.probes.epsilon,
        etas=config.probes.etas,
        credit=rule.credit,
        redrawn=rule.redrawn(net, initial),
        feedback=rule.feedback(net),
        initial=initial,
        predict=_altered(net, rule.options, config.signature.outputs),
    )
    return LastEpoch(run, config, rows.filter(epoch=manifest.epoch), inputs, missing)


def _read_ended(run: Run) -> tuple[RunConfig, Manifest, pl.DataFrame]:
    """Configuration, manifest and rows; raise where the run has not ended or cannot be recomputed."""
    tree, (manifest, rows) = config_of(run), read_rows(run)
    if "source" in tree["model"] or tree["model"]["name"] not in MODELS:
        raise SondeError(
            f"run {run.id} has a network from outside: only Sonde's own ({', '.join(MODELS)}) are recomputed"
        )
    refuse_other_versions(tree)
    ended = manifest.state in ENDED and manifest.epoch is not None
    if ended:
        _refuse_large(tree, read_tensors(run.path, "weights"), f"run {run.id}", how_to_restore(run.path))
    config = read_without(tree, ("rule", "optimiser", "probe"))
    if not ended:
        at = "nothing" if manifest.epoch is None else f"epoch {manifest.epoch}"
        state = run_status(run.path, manifest).state
        raise SondeError(f"run {run.id} is {state} and has {at} of {config.epochs} epochs: resume it first")
    return config, manifest, rows


def _not_stored(manifest: Manifest) -> dict[str, str]:
    """Tensors that an earlier version did not store → why: initial weights, the rule's state, its null."""
    made = (manifest.sessions[-1].get("environment") or {}) if manifest.sessions else {}
    by = f"stored by {made.get('packages', {}).get('sonde', '?')}"
    missing = {} if "initial" in manifest.files else {"initial": f"{by} without the weights at initialisation"}
    if "rule" not in manifest.files:
        missing["rule"] = f"{by} without the rule's state"
        missing["null"] = f"{by}, whose null was one random vector a sample"
    return missing


def _load_data(run: Run, config: RunConfig, data_root: Place | None) -> Data:
    """The data of the task; raises where it is not what the run was trained on."""
    samples = getattr(config.task, "samples", 1) + getattr(config.task, "test_samples", 1)
    _bound(math.prod(config.signature.shape) * samples, _SAMPLES, "task", f"run {run.id}", how_to_restore(run.path))
    data = config.task.load(config.seed, data_root, _CPU, DTYPES[config.precision])
    began = run.about.get("data")
    if began != data.source:
        raise SondeError(
            f"run {run.id} was trained on the data {began}, but found {data.source}: name the first with --data-root"
        )
    return data


@dataclass(frozen=True, kw_only=True)
class _StoredRule:
    """The rule of a run: a built-in one by its equation, a plugin by its own code."""

    options: dict[str, Any]
    state: Any  # None where it is not known
    steps: int
    plugin: SampleCredit | None

    @property
    def credit(self) -> SampleCredit | None:
        """The credit of one sample; None where it is not known."""
        return self.plugin if self.state is None else self._credit(self.options, self.state)

    def _credit(self, options: dict[str, Any], state: Any) -> SampleCredit:
        return lambda sample: CREDITS[options["name"]](sample, state, options, self.steps)

    def redrawn(self, net: Network, initial: Mapping[str, Tensor] | None) -> Callable[..., SampleCredit] | None:
        """The credit after the rule's state is drawn again; None for a rule that draws nothing."""
        draw = REDRAWN.get(self.options["name"])
        if draw is None:
            return None
        matrices = [name for name, p in net.named_parameters() if name.startswith("blocks.") and p.ndim > 1]
        known = {name: initial[name] for name in matrices} if initial else {}

        def redraw(rng: torch.Generator) -> SampleCredit:
            other, fresh = draw(self.state | {"options": self.options}, rng, known)
            return self._credit(self.options | other, fresh)

        return redraw

    def feedback(self, net: Network) -> Mapping[str, Tensor] | None:
        """V by the name of the weight that it replaces, of a rule of layers."""
        name = self.options["name"]
        by_layer = name in FEEDBACK and (name != "fa" or self.options.get("level") == "layer")
        return FEEDBACK[name](net, self.state) if by_layer and self.state is not None else None


def _read_rule(run: Run, config: RunConfig, net: Network, data: Data, missing: dict[str, str]) -> _StoredRule:
    """The rule of a run; adds to `missing` what is not known of a plugin."""
    options, state, plugin = run.config["rule"], None, None
    if "source" in options or options["name"] not in CREDITS:
        plugin = None if "rule" in missing else _plugin_credit(run, config, net, data)
        missing["null"] = f"no definition of the rule {options['name']}, a plugin, is known here"
        if plugin is None:
            again = f"--rule file.py:{options['name']} lets its own code compute its credit"
            missing["rule"] = f"{missing['null']}; {again}"
    else:
        options = to_tree(config)["rule"]
        if options["name"] in WITHOUT_STATE:
            state = {}
            missing.pop("rule", None)
        elif "rule" not in missing:
            state = unpack(read_tensors(run.path, "rule"))
    return _StoredRule(options=options, state=state, steps=run.about["steps"], plugin=plugin)


def _as_trained(net: Network, precision: str) -> Network:
    """A copy in the dtype of training, with bfloat16 products where training has them."""
    net = copy.deepcopy(net).to(DTYPES[precision])
    if precision == "bf16":
        use_bf16(net)
        for module in net.modules():
            if isinstance(module, Bf16Linear):
                module.rounds = True
    return net


def _plugin_credit(run: Run, config: RunConfig, net: Network, data: Data) -> SampleCredit | None:
    """The credit of a plugin rule by its own code, one sample at a time; None where the plugin is not known."""
    try:
        rule = read(run.config | {"optimiser": {}, "probes": {}}).rule
    except SondeError:
        return None
    x, _ = data.test(0, 2)
    loss, steps = data.loss, run.about["steps"]
    assigned = CreditAssignment(net, rule, sample=x, loss=loss, steps=steps, seed=config.seed)
    assigned.load_state_dict(unpack(read_tensors(run.path, "rule")))

    def credit(sample: Sample) -> list[torch.Tensor]:
        signal = signal_on(
            Rerun(sample.net, sample.x),
            sample.states,
            sample.output,
            sample.y[None],
            loss,
            gradients=lambda: sample.gradients,
        )
        return [a.double() for a in rule.credits(assigned.state.double(_CPU), signal)]

    return credit


def _draws(config: RunConfig, epoch: int) -> int:
    """How often the null was drawn: more often where ρ was measured."""
    return 20 if "rho" in config.probes.due(epoch, config.epochs) else 4


def shaken(inputs: SnapshotInputs, eps: float) -> SnapshotInputs:
    """A copy with every weight moved by its last bit, up or down, which shows the effect of rounding."""
    net, rng = copy.deepcopy(inputs.net), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + eps * (2 * torch.randint(2, p.shape, generator=rng).double() - 1))
    return replace(inputs, net=net)


# ── networks that a rule changes ─────────────────────────────────────────────────────────────────────
class _NeutralLabel:
    """Forward-Forward: 1/C in place of the first C inputs."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def __call__(self, x: Tensor) -> Tensor:
        return _labelled(x, [1 / self.classes] * self.classes)


def _labelled(x: Tensor, label: list[float]) -> Tensor:
    rows = x.reshape(len(x), -1).clone()
    for place, value in enumerate(label):
        rows[:, place] = value
    return rows.reshape(x.shape)


def _of_unit_size(h: Tensor) -> Tensor:
    """h/(RMS(h) + 1e-8) of each sample."""
    sizes = [torch.sqrt((one**2).sum() / one.numel()) + 1e-8 for one in h]
    return torch.stack([one / size for one, size in zip(h, sizes, strict=True)])


def _by_goodness(net: Network, x: Tensor) -> Tensor:
    """Forward-Forward: for every label, the sum over h_1 … h_L of the squares of a vector, token or position; N×C."""
    classes = net.entry.classes  # type: ignore[union-attr]
    columns = []
    for c in range(classes):
        h = net.embed(_labelled(x, [float(c == other) for other in range(classes)]))
        total = torch.zeros(len(x), dtype=x.dtype)
        for block in net.blocks:
            h, _ = advanced(net, block, h)
            places = {2: 1, 3: h.shape[1], 4: math.prod(h.shape[2:])}[h.ndim]
            total = total + torch.stack([(one**2).sum() / places for one in h])
        columns.append(total)
    return torch.stack(columns, dim=1)


def _altered(net: Network, options: Mapping[str, Any], classes: int) -> Callable[[Network, Tensor], Tensor]:
    """Change the network as the rule does; return the function that predicts."""
    if options["name"] == "pc" and options["depth_scale"]:
        net.branch_scale = 1 / math.sqrt(len(net.blocks))
    if options["name"] == "ff":
        net.entry, net.between = _NeutralLabel(classes), _of_unit_size
        return _by_goodness if options["prediction"] == "goodness" else forward
    return forward


# ── how large a network may be ───────────────────────────────────────────────────────────────────────
_FREE = 50_000_000  # weights that are always allowed: 400 MB in float64
_WEIGHTS = 64  # at most this many times the stored weights
_SAMPLES = 200_000_000  # numbers of all inputs of a task
_STEPS = 1_000_000  # epochs of a schedule, directions of a probe


def _refuse_large(tree: Any, weights: bytes, where: str, fix: str) -> None:
    """Raise where the network or data of a configuration would be far larger than what was stored."""
    stored = _numbers_in(weights, where, fix)
    model, task = _whole(tree.get("model")), _whole(tree.get("task"))
    deep = max((model.get(key, 1) for key in ("L", "n")), default=1)
    wide = max((value for key, value in model.items() if key not in ("L", "n")), default=1)
    _bound(deep * wide**2, _WEIGHTS * stored + _FREE, "model", where, fix)
    teacher = max(task.get("L", 1), 1) * task.get("d", 1) ** 2 if "inputs" in task else 1
    _bound(teacher, _FREE, "task", where, fix)
    many = task.get("samples", 1) + task.get("test_samples", 1)
    one = max((value for key, value in task.items() if not key.endswith("samples")), default=1)
    _bound(many * one, _SAMPLES, "task", where, fix)
    for key, value in {"epochs": tree.get("epochs"), **_whole(tree.get("probes"))}.items():
        _bound(value, _STEPS, key, where, fix)
    for key, value in _whole(tree.get("rule")).items():
        _bound(value, _STEPS, f"rule.{key}", where, fix)


def _bound(asked: Any, most: int, part: str, where: str, fix: str) -> None:
    if isinstance(asked, int) and asked > most:
        raise SondeError(f"{where}: its {part} is far larger than what the run stored: {fix}")


def _whole(section: Any) -> dict[str, int]:
    """The integer options of a section; the largest of a list."""
    found = {}
    for key, value in section.items() if isinstance(section, dict) else ():
        numbers = [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
        if numbers:
            found[key] = max(numbers)
    return found


def _numbers_in(weights: bytes, where: str, fix: str) -> int:
    """How many numbers a safetensors file holds, from its header."""
    try:
        header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
        said = sum(math.prod(one["shape"]) for key, one in header.items() if key != "__metadata__")
        return min(int(said), len(weights))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SondeError(f"{where}: its weights cannot be read: {fix}") from None
