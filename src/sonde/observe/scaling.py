"""`sonde.scaling`: train a model for a few steps at several sizes, and see what depends on the size.

Every size and seed is a watched run of its own.  It has three metrics that other watched runs have not: `in_rms`,
`out_change` and `effect`.  All passes use one batch and the same dropout masks: a change is that of the weights.
"""

import hashlib
import inspect
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional

from sonde.analysis.scaling import study_of
from sonde.analysis.scaling_result import PROMISES, STEPS, Measured, Scaling
from sonde.core import html_parts
from sonde.core.errors import SondeError
from sonde.core.formatting import listed
from sonde.observe.check import default_loss, output_tensor
from sonde.observe.experiments.copies import generators_kept, run_model
from sonde.observe.experiments.losses import own_loss
from sonde.observe.scaling_probe import Logits, Probe
from sonde.observe.watch import Watch, watch
from sonde.show.figures.scaling import scaling_figure
from sonde.store.files import Place, place
from sonde.store.listing import stamps_of
from sonde.store.load import load

_RATE_STEPS = 30  # after which rates are compared
_OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}

Over = Mapping[str, Sequence[int]]


class SizeStudy(Scaling):
    """What `sonde.scaling` returns: verdicts, `exponents`, `table`, `words()` and `figure()`; prints as its words."""

    def figure(self) -> Figure:
        """The groups over sizes: inside the grey wedge is stable."""
        return scaling_figure(self)

    def __str__(self) -> str:
        return "\n".join([f"{self.factory} over {self.axis} = {listed(self.sizes)}", *self.words()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="png", dpi=150)
        return html_parts.listing(self.words()) + html_parts.picture(buffer.getvalue(), "groups over sizes")


def scaling(
    make: Callable[..., Any],
    over: Over,
    *,
    shape: Sequence[int] | None = None,
    optimizer: str = "adam",
    lr: float = 1e-3,
    rates: Sequence[float] = (),
    seeds: int = 6,
    promise: str = "mup",
    runs: str | Place | None = "runs",
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, SizeStudy]:
    """Train `make(width=64)`, `make(width=128)`, … for ten steps each: what is stable, what grows, what vanishes.

    `make` returns the model, alone or in a tuple with any of: an optimiser, x, y, and a loss of (output, y).  Without
    an optimiser, `optimizer` ("adam" or "sgd") and `lr` make one; without x, `shape` is that of a standard normal
    batch; without y and loss, the targets are standard normal.  `over` maps an argument of `make` to its sizes; with
    several, each is varied while the others keep their first size.  `rates` trains every size with every rate, and
    tells whether the best one moves; `make` must take `lr` then, unless it returns no optimiser.

    `promise` is what the parametrisation claims.  "mup": every layer learns equally at every size (Yang and Hu 2021).
    "standard": signals at initialisation do not depend on the size.  `runs` is the store: what is there already is
    not trained again.  None keeps everything in memory.
    """
    _check(make, over, promise, seeds, optimizer)
    plan = _Plan(make, shape=shape, optimizer=optimizer, lr=lr)
    found = {}
    for axis, sizes in over.items():
        rest = {name: others[0] for name, others in over.items() if name != axis}
        found[axis] = _over(plan, axis, sorted(sizes), rest, rates, seeds, promise, runs, progress)
    return found


def _over(
    plan: "_Plan",
    axis: str,
    sizes: Sequence[int],
    rest: Mapping[str, int],
    rates: Sequence[float],
    seeds: int,
    promise: str,
    runs: str | Place | None,
    progress: Callable[[str], None],
) -> SizeStudy:
    with generators_kept():
        small, large = (plan.trial({**rest, axis: size}, 0) for size in (sizes[0], sizes[-1]))
        groups = _groups(small, large)
        known = _stored(runs, plan, axis, rest)
        found: list[Measured] = []
        for size in sizes:
            progress(f"{axis} {size}")
            for seed in range(seeds):
                for rate in (None, *rates):
                    key = {"size": size, "seed": seed, "rate": rate}
                    done = known.get((size, seed, rate))
                    if done is None:
                        trial = plan.trial({**rest, axis: size}, seed, rate)
                        here = _members(groups, trial.model, large.model)
                        facts = {**plan.study(axis, rest), **key, "promise": promise, "groups": here}
                        done = _measure(trial, facts, runs)
                    found.append(done)
    return SizeStudy(**vars(study_of(found, promise)))


def _check(make: Any, over: Over, promise: str, seeds: int, optimizer: str) -> None:
    if not callable(make):
        raise SondeError(f"scaling(make, …): expected a function of the size, got {type(make).__name__}")
    if not over:
        raise SondeError('scaling(make, over): name the argument and its sizes, for example {"width": [64, 128, 256]}')
    takes = inspect.signature(make).parameters
    for axis, sizes in over.items():
        if axis not in takes and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            raise SondeError(f"{_name(make)} takes no argument {axis!r}: it takes {listed(takes) or 'no argument'}")
        if len(set(sizes)) < 3:
            raise SondeError(f"{axis}={','.join(map(str, sizes))}: give three sizes or more, the largest is held out")
        if min(sizes) < 1:
            raise SondeError(f"{axis}={','.join(map(str, sizes))}: a size is 1 or more")
    if promise not in PROMISES:
        raise SondeError(f"promise {promise!r}: choose {' or '.join(PROMISES)}")
    if optimizer not in _OPTIMISERS:
        raise SondeError(f"optimizer {optimizer!r}: choose {' or '.join(_OPTIMISERS)}, or return one from the function")
    if seeds < 2:
        raise SondeError(f"seeds={seeds}: an interval needs two or more")


# What is trained


@dataclass
class _Trial:
    """A model with its optimiser, batch and loss."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    x: Any
    y: Any
    loss: Callable[[Any, Any], Tensor]
    seed: int

    def forward(self) -> Any:
        """The model's output, with the same dropout masks each time."""
        torch.manual_seed(self.seed)
        return run_model(self.model, self.x)


class _Plan:
    """Makes trials from the user's function."""

    def __init__(self, make: Callable[..., Any], *, shape: Sequence[int] | None, optimizer: str, lr: float) -> None:
        self._make, self._shape, self._optimizer, self._lr = make, shape, optimizer, lr
        self._takes_rate = "lr" in inspect.signature(make).parameters

    def study(self, axis: str, rest: Mapping[str, int]) -> dict[str, Any]:
        """What runs of one study have in common, as JSON."""
        made = {"factory": _name(self._make), "code": _digest(self._make), "over": axis, "rest": dict(rest)}
        shape = None if self._shape is None else list(self._shape)
        return {**made, "shape": shape, "optimizer": self._optimizer, "lr": self._lr}

    def trial(self, sizes: Mapping[str, int], seed: int, rate: float | None = None) -> _Trial:
        torch.manual_seed(seed)
        given = self._make(**sizes, **({"lr": rate} if rate is not None and self._takes_rate else {}))
        parts = list(given) if isinstance(given, tuple) else [given]
        model = parts.pop(0)
        if not isinstance(model, nn.Module):
            raise SondeError(f"{_name(self._make)} returns a {type(model).__name__} first: return the model first")
        optimisers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
        losses = [part for part in parts if callable(part)]
        batch = [part for part in parts if not callable(part) and not isinstance(part, torch.optim.Optimizer)]
        if optimisers and rate is not None and not self._takes_rate:
            raise SondeError(
                f"{_name(self._make)} makes an optimiser and takes no lr: add the argument lr, or return no optimiser"
            )
        model.train()
        if not optimisers:
            optimisers = [_OPTIMISERS[self._optimizer](model.parameters(), lr=self._lr if rate is None else rate)]
        x = batch[0] if batch else self._normal(model)
        y = batch[1] if len(batch) > 1 else None
        loss = losses[0] if losses else _loss_without_targets if y is None else default_loss(y)[0]
        return _Trial(model, optimisers[0], x, y, loss, seed)

    def _normal(self, model: nn.Module) -> Tensor:
        if self._shape is None:
            raise SondeError(f"{_name(self._make)} returns no batch: give the shape of one, for example --shape 32,64")
        drawn = torch.randn(*self._shape, generator=torch.Generator().manual_seed(0))
        return drawn.to(next(model.parameters()))


def _loss_without_targets(out: Any, y: Any) -> Tensor:
    """The model's own loss, if it returns one; else the squared distance from standard normal targets."""
    if not isinstance(out, Tensor):
        with suppress(SondeError):
            return own_loss(out, y)
    z = output_tensor(out)
    target = torch.randn(z.shape, generator=torch.Generator().manual_seed(0)).to(z)
    return functional.mse_loss(z, target)


def _name(make: Callable[..., Any]) -> str:
    inner = getattr(make, "func", make)
    return f"{Path(inspect.getsourcefile(inner) or '?').name}:{getattr(inner, '__name__', type(inner).__name__)}"


def _digest(make: Callable[..., Any]) -> str:
    """Of the file with the function, and of the arguments that are bound to it: other code makes other runs."""
    inner = getattr(make, "func", make)
    bound = repr((getattr(make, "args", ()), getattr(make, "keywords", {})))
    bound = re.sub(r" at 0x[0-9a-f]+", "", bound)
    return hashlib.sha256((inspect.getsource(inspect.getmodule(inner) or inner) + bound).encode()).hexdigest()[:16]


# Groups


Key = tuple[str, str, tuple[Any, ...]]
"""Of a group: the pattern of names, the type of module, and the axes that grow or, over depth, the shape."""


def keys_of(model: nn.Module, large: nn.Module) -> dict[str, tuple[Key, str]]:
    """For each parameter of a model the key of its group, and its role.

    Two parameters are in one group if their names are equal up to numbers, their modules are of one type, and the same
    axes of them grow.  Between models of another depth no axis grows; then their shapes are equal.
    """
    shapes = {name: tuple(p.shape) for name, p in large.named_parameters()}
    is_width = [*shapes] == [name for name, _ in model.named_parameters()]
    found = {}
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        shape = tuple(parameter.shape)
        grows = [a != b for a, b in zip(shape, shapes[name], strict=True)] if is_width else []
        key = (re.sub(r"\d+", "*", name), type(module).__name__, tuple(grows) if is_width else shape)
        found[name] = key, _role(module, grows) if is_width else "deep"
    return found


def parameter_groups(small: nn.Module, large: nn.Module) -> dict[str, dict[str, Any]]:
    """Parameters of the smaller model that scale alike: label → key, role and members."""
    found: dict[Key, dict[str, Any]] = {}
    for name, (key, role) in keys_of(small, large).items():
        found.setdefault(key, {"key": key, "role": role, "members": []})["members"].append(name)
    return {_label(one, found): one for one in found.values()}


def _groups(small: _Trial, large: _Trial) -> dict[str, dict[str, Any]]:
    """The groups of both; those that act through attention logits alone are marked."""
    found = parameter_groups(small.model, large.model)
    with torch.no_grad():  # a weight that starts at zero would hide others
        for parameter in small.model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    whole, cut = _with_gradient(small, nullcontext()), _with_gradient(small, Logits(lambda logits: None, cut=True))
    for group in found.values():
        group["in_logits"] = all(name in whole and name not in cut for name in group["members"])
    return found


def _members(groups: Mapping[str, Any], model: nn.Module, large: nn.Module) -> dict[str, dict[str, Any]]:
    """The groups with their members in a model of this size."""
    is_deep = any(group["role"] == "deep" for group in groups.values())
    keys = keys_of(model, large) if is_deep else {}
    return {
        label: {
            "role": group["role"],
            "in_logits": group["in_logits"],
            "members": [name for name, (key, _) in keys.items() if key == group["key"]] or group["members"],
        }
        for label, group in groups.items()
    }


def _with_gradient(trial: _Trial, within: AbstractContextManager[Any]) -> set[str]:
    """The parameters whose gradient is not zero."""
    trial.model.zero_grad()
    with within:
        try:
            loss = trial.loss(trial.forward(), trial.y)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise SondeError(f"the smallest {type(trial.model).__name__} does not run on this batch ({why})") from error
    torch.autograd.backward(loss)
    return {name for name, p in trial.model.named_parameters() if p.grad is not None and bool(p.grad.any())}


def _role(module: nn.Module, grows: Sequence[bool]) -> str:
    """By which axes of a parameter grow with the width."""
    if not any(grows):
        return "fixed"
    if len(grows) < 2:
        return "vector"
    if isinstance(module, nn.Linear | nn.Bilinear | nn.modules.conv._ConvNd | nn.MultiheadAttention):
        out, into = grows[0], grows[1]
        return "hidden" if out and into else "input" if out else "output"
    return "hidden" if sum(grows) > 1 else "input"


def _label(one: Mapping[str, Any], keys: Iterable[Key]) -> str:
    """The one name, the pattern, or the pattern with type and role where it is that of several groups."""
    pattern, kind, axes = one["key"]
    if len(one["members"]) == 1 and one["role"] != "deep":
        return str(one["members"][0])
    if sum(other[0] == pattern for other in keys) == 1:
        return str(pattern)
    return (
        f"{pattern} ({kind} {'×'.join(map(str, axes))})"
        if one["role"] == "deep"
        else f"{pattern} ({kind}, {one['role']})"
    )


# One run


def _measure(trial: _Trial, facts: dict[str, Any], runs: str | Place | None) -> Measured:
    """Train for ten steps, watched; rows of the probe are stored beside those of the watch."""
    is_whole = facts["rate"] is None
    name = f"scaling {facts['over']}={facts['size']} seed={facts['seed']}"
    name += "" if is_whole else f" rate={facts['rate']:g}"
    only_model: Callable[[str, nn.Module], bool] = lambda name, module: not name or name == "(model)"  # noqa: E731
    watched = watch(
        trial.model, trial.optimiser, runs=runs, name=name, every=STEPS[-1], layers=None if is_whole else only_model
    )
    facts = {**facts, "optimiser": type(trial.optimiser).__name__}
    with watched:
        watched.add_facts({"scaling": facts})
        probe = Probe(trial.model, facts["groups"], watched.id) if is_whole else None
        _train(trial, watched, probe, STEPS[-1] if is_whole else _RATE_STEPS)
        if probe is not None:
            watched.add_rows(probe.rows())
    return Measured(watched.facts, watched.rows)


def _train(trial: _Trial, watched: Watch, probe: "Probe | None", steps: int) -> None:
    """Some steps and one more, whose pass measures them; ends early where the loss is not finite."""
    for step in range(steps + 1):
        probed = probe if step in STEPS else None
        with nullcontext() if probed is None else probed.listening(step):
            out = trial.forward()
        if probed is not None:
            probed.out = output_tensor(out)
            probed.out.retain_grad()
        loss = trial.loss(out, trial.y)
        watched.log(loss)
        if not bool(torch.isfinite(loss.detach()).all()):
            return
        trial.optimiser.zero_grad()
        torch.autograd.backward(loss)
        with nullcontext() if probed is None else probed.around_step(step):
            trial.optimiser.step()


# What is stored already


def _stored(
    runs: str | Place | None, plan: _Plan, axis: str, rest: Mapping[str, int]
) -> dict[tuple[int, int, float | None], Measured]:
    """The complete runs of this study in the store, by size, seed and rate."""
    if runs is None:
        return {}
    root = place(runs)
    if not root.exists() or not stamps_of(root):
        return {}
    study = plan.study(axis, rest)
    wanted = {}
    for run in load(root, metrics=()).watched:
        known = run.facts.get("scaling")
        if known and run.manifest.state == "complete" and all(known.get(key) == value for key, value in study.items()):
            wanted[run.id] = run
    if not wanted:
        return {}
    rows = load(root, of=list(wanted)).rows.partition_by("run", as_dict=True)
    found = {}
    for id, run in wanted.items():
        known = run.facts["scaling"]
        found[known["size"], known["seed"], known["rate"]] = Measured(run.facts, rows[(id,)])
    return found
