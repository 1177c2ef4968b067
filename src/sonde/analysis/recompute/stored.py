"""From an ended run in the store to the setting of its last snapshot."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
import safetensors.torch
import torch

from sonde.analysis.recompute.bounds import refuse_large, refuse_large_inputs
from sonde.analysis.recompute.credits import CREDITS, FEEDBACK, REDRAWN, WITHOUT_STATE
from sonde.analysis.recompute.sample import Sample
from sonde.analysis.recompute.setting import Credit, Setting
from sonde.config import RunConfig, to_tree
from sonde.config.stored import read, read_without, refuse_other_versions
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.models import MODELS
from sonde.network import Network
from sonde.store.place import Place
from sonde.store.run import ENDED, RunFolder
from sonde.store.status import standing
from sonde.tasks import Data
from sonde.training.assign import CreditAssignment
from sonde.training.bf16 import Bf16Linear, use_bf16
from sonde.training.program import DTYPES
from sonde.training.step import Again, signal_on
from sonde.training.tensors import unpack

CPU = torch.device("cpu")


@dataclass(frozen=True)
class StoredEnd:
    """The last epoch of a run: its rows, what they are computed from, and what is missing for some of them."""

    id: str
    config: RunConfig
    epoch: int
    rows: pl.DataFrame
    setting: Setting
    missing: dict[str, str]  # tensors that are not stored → why


@contextmanager
def fitting(folder: str, fix: str) -> Iterator[None]:
    """Turn what goes wrong with stored tensors and options that do not fit each other into one line."""
    try:
        yield
    except SondeError:
        raise
    except Exception as error:  # tensors of any shape, under any name, in a state of any nesting
        said = (str(error).strip().splitlines() or [""])[0][:200]
        raise SondeError(
            f"run {folder} cannot be recomputed: its tensors do not fit its configuration "
            f"({type(error).__name__}: {said}); {fix}"
        ) from error


def read_end(folder: RunFolder, data_root: Place | None = None) -> StoredEnd:
    """The last epoch of a stored run, without code of its plugins; a task from outside has to be named again."""
    with fitting(folder.id, folder.fix):
        return _read_end(folder, data_root)


def _read_end(folder: RunFolder, data_root: Place | None) -> StoredEnd:
    tree = folder.configuration()
    description, (manifest, rows) = folder.description(), folder.read()
    if "source" in tree["model"] or tree["model"]["name"] not in MODELS:
        raise SondeError(
            f"run {folder.id} has a network from outside: only Sonde's own ({', '.join(MODELS)}) are recomputed"
        )
    refuse_other_versions(tree)
    if manifest.state in ENDED and manifest.epoch is not None:
        refuse_large(tree, folder.tensors("weights"), f"run {folder.id}", folder.fix)
    config = read_without(tree, ("rule", "optimiser", "probe"))
    if manifest.state not in ENDED or manifest.epoch is None:
        at = "nothing" if manifest.epoch is None else f"epoch {manifest.epoch}"
        stands = standing(folder.path, manifest).state
        raise SondeError(f"run {folder.id} is {stands} and has {at} of {config.epochs} epochs: resume it first")
    made = (manifest.sessions[-1].get("environment") or {}) if manifest.sessions else {}
    version = made.get("packages", {}).get("sonde", "?")
    shape, task = config.signature.shape, config.task
    many = getattr(task, "samples", 1) + getattr(task, "test_samples", 1)
    refuse_large_inputs(shape, many, f"run {folder.id}", folder.fix)
    missing = {
        name: f"stored by {version} without {what}"
        for name, what in (("initial", "the weights at initialisation"), ("rule", "the rule's state"))
        if name not in manifest.files
    }
    data = config.task.load(config.seed, data_root, CPU, DTYPES[config.precision])
    began = description["about"].get("data")
    if began != data.source:
        raise SondeError(
            f"run {folder.id} was trained on the data {began}, but found {data.source}: name the first with --data-root"
        )
    net = config.model.build(config.signature, generator(config.seed, "init")).to(DTYPES[config.precision])
    net.load_state_dict(safetensors.torch.load(folder.tensors("weights")))
    if "rule" in missing:
        missing["null"] = f"stored by {version}, whose null was one random vector a sample"
    outside = "source" in tree["rule"] or tree["rule"]["name"] not in CREDITS
    rule = tree["rule"] if outside else to_tree(config)["rule"]
    plugin = _plugin_credit(folder, description, config, net, data) if outside and "rule" not in missing else None
    if outside:
        unknown = f"no definition of the rule {rule['name']}, a plugin, is known here"
        missing["null"] = unknown
        if plugin is None:
            missing["rule"] = f"{unknown}; --rule file.py:{rule['name']} lets its own code compute its credit"
    state: Any = None if "rule" in missing or outside else unpack(folder.tensors("rule"))
    if rule["name"] in WITHOUT_STATE:
        state = {}
        missing.pop("rule", None)
    steps = description["about"]["steps"]

    def credit_of(rule: dict[str, Any], state: Any) -> Credit:
        return lambda sample: CREDITS[rule["name"]](sample, state, rule, steps)

    initial = None if "initial" in missing else safetensors.torch.load(folder.tensors("initial"))
    matrices = [name for name, p in net.named_parameters() if name.startswith("blocks.") and p.ndim > 1]
    drawn_anew = REDRAWN.get(rule["name"])

    def redrawn(rng: torch.Generator) -> Credit:
        assert drawn_anew is not None
        other, fresh = drawn_anew(state, rng, {name: initial[name] for name in matrices} if initial else {})
        return credit_of(rule | other, fresh)

    net = net.double().eval().requires_grad_(False)
    by_layer = rule["name"] in FEEDBACK and (rule["name"] != "fa" or rule.get("level") == "layer")
    setting = Setting(
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
        credit=plugin if state is None else credit_of(rule, state),
        redrawn=None if drawn_anew is None else redrawn,
        feedback=FEEDBACK[rule["name"]](net, state) if by_layer and state is not None else None,
        initial=initial,
    )
    return StoredEnd(folder.id, config, manifest.epoch, rows.filter(epoch=manifest.epoch), setting, missing)


def _as_trained(net: Network, precision: str) -> Network:
    """In eval mode, in the dtype of the trained weights, with products in bfloat16 where training has them."""
    net = copy.deepcopy(net).to(DTYPES[precision])
    if precision == "bf16":
        use_bf16(net)
        for module in net.modules():
            if isinstance(module, Bf16Linear):
                module.rounds = True
    return net


def _plugin_credit(
    folder: RunFolder, description: dict[str, Any], config: RunConfig, net: Network, data: Data
) -> Credit | None:
    """The credit of a rule from outside, by its own code, one sample at a time; None where nobody named it here."""
    try:
        rule = read(description["config"] | {"optimiser": {}, "probes": {}}).rule
    except SondeError:
        return None
    x, _ = data.test(0, 2)
    loss, steps = data.loss, description["about"]["steps"]
    assigned = CreditAssignment(net, rule, sample=x, loss=loss, steps=steps, seed=config.seed)
    assigned.load_state_dict(unpack(folder.tensors("rule")))

    def credit(sample: Sample) -> list[torch.Tensor]:
        signal = signal_on(
            Again(sample.net, sample.x),
            sample.states,
            sample.output,
            sample.y[None],
            loss,
            gradients=lambda: sample.gradients,
        )
        return [a.double() for a in rule.credits(assigned.state.double(CPU), signal)]

    return credit


def _draws(config: RunConfig, epoch: int) -> int:
    """How often chance was drawn: more often where ρ was measured."""
    return 20 if "rho" in config.probes.due(epoch, config.epochs) else 4


def shaken(setting: Setting, eps: float) -> Setting:
    """The same with every weight moved by its last bit, up or down: what rounding may do to a metric."""
    net, rng = copy.deepcopy(setting.net), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1 + eps * (2 * torch.randint(2, p.shape, generator=rng).double() - 1))
    return replace(setting, net=net)
