"""`sonde.scaling`: train a model for a few steps at several sizes, and see what depends on the size.

Every size and seed is a watched run of its own.  It has three metrics that other watched runs have not: `in_rms`,
`out_change` and `effect`.  All passes use one batch and the same dropout masks: a change is that of the weights.
"""

import hashlib
import inspect
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sonde.analysis.scaling import PROMISES, STEPS, Measured, Scaling, study_of
from sonde.core import html_parts
from sonde.core.errors import SondeError
from sonde.core.formatting import listed
from sonde.metrics.rows import WATCHED
from sonde.observe.check import default_loss, output_tensor
from sonde.observe.experiments.copies import generators_kept, run_model
from sonde.observe.experiments.losses import own_loss
from sonde.observe.facts import first_float
from sonde.observe.watch import Watch, watch
from sonde.show.figures.scaling import scaling_figure
from sonde.store.files import Place, place
from sonde.store.listing import stamps_of
from sonde.store.load import load

_RATE_STEPS = 30  # after which rates are compared
_SAMPLES = 8  # whose attention logits are read
_MASKED = -1e4  # a logit below this is a mask
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
    whole, cut = _with_gradient(small, nullcontext()), _with_gradient(small, _Logits(lambda logits: None, cut=True))
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
        probe = _Probe(trial, facts["groups"], watched.id) if is_whole else None
        _train(trial, watched, probe, STEPS[-1] if is_whole else _RATE_STEPS)
        if probe is not None:
            watched.add_rows(probe.rows())
    return Measured(watched.facts, watched.rows)


def _train(trial: _Trial, watched: Watch, probe: "_Probe | None", steps: int) -> None:
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


class _Probe:
    """What a watch does not measure: inputs of modules, changes of outputs, and effects of parameters."""

    def __init__(self, trial: _Trial, groups: Mapping[str, Any], run: str) -> None:
        self._trial, self._run = trial, run
        self._groups = {label: group["members"] for label, group in groups.items()}
        self._first: dict[str, Tensor] = {}
        self._values: list[tuple[int, str, str, Tensor]] = []  # step, metric, module, value
        self._calls: dict[str, int] = {}
        self._running: list[str] = []
        self.out: Tensor | None = None  # of the pass under way

    @contextmanager
    def listening(self, step: int) -> Iterator[None]:
        """Hooks on all modules, for one pass."""
        self._calls = {}
        hooks = []
        for name, module in self._trial.model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._before(name or "(model)", step)))
            hooks.append(module.register_forward_hook(self._after(name or "(model)", step), always_call=True))
        try:
            with _Logits(lambda logits: self._note_logits(step, logits)):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _before(self, name: str, step: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            number = self._calls[name] = self._calls.get(name, 0) + 1
            self._running.append(name if number == 1 else f"{name}#{number}")
            given = first_float(args)
            is_measured = module._parameters or not module._modules
            if step == 0 and given is not None and is_measured:
                self._add(step, "in_rms", self._running[-1], _rms(given))

        return hook

    def _after(self, name: str, step: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            found = first_float(output)
            if found is not None:
                self._change(step, self._running[-1], found.detach())
            self._running.pop()

        return hook

    def _note_logits(self, step: int, logits: Tensor) -> None:
        """Attention logits count as a module of their own."""
        within = self._running[-1] if self._running else "(model)"
        number = self._calls[f"{within} logits"] = self._calls.get(f"{within} logits", 0) + 1
        name = f"{within} (logits)" if number == 1 else f"{within} (logits)#{number}"
        self._add(step, "out_rms", name, _rms(logits))
        self._change(step, name, logits)

    def _change(self, step: int, name: str, value: Tensor) -> None:
        if step == 0:
            self._first[name] = value.clone()
        elif name in self._first and self._first[name].shape == value.shape:
            self._add(step, "out_change", name, _rms(value - self._first[name]))

    @contextmanager
    def around_step(self, step: int) -> Iterator[None]:
        """Measure how far the optimiser's step of each group moves the output along the gradient, to first order.

        The step changes the loss by Σ ∂loss/∂W · ΔW = ⟨∂loss/∂out, Δout⟩; divided by ‖∂loss/∂out‖ it is a distance.
        """
        error = self.out.grad if self.out is not None else None
        scale = torch.ones(()) if error is None else torch.linalg.vector_norm(error.double())
        known = dict(self._trial.model.named_parameters())
        before = {name: p.detach().clone() for name, p in known.items()}
        yield
        gains = {
            name: torch.zeros(()) if p.grad is None else (p.grad.double() * (p.detach() - before[name])).abs().sum()
            for name, p in known.items()
        }
        for label, members in self._groups.items():
            self._add(step, "effect", label, torch.stack([gains[name].cpu() for name in members]).sum() / scale.cpu())

    def _add(self, step: int, metric: str, name: str, value: Tensor) -> None:
        self._values.append((step, metric, name, value.detach().double().reshape(())))

    def rows(self) -> pl.DataFrame:
        """Everything measured, as rows of a watched run."""
        numbers = torch.stack([value for *_, value in self._values]).cpu().tolist()
        lines = []
        for (step, metric, name, _), value in zip(self._values, numbers, strict=True):
            finite = math.isfinite(value)
            reason = None if finite else "not finite"
            known = {"run": self._run, "step": step, "metric": metric, "value": value if finite else math.nan}
            lines.append({**known, "defined": finite, "reason": reason, "samples": 1, "module": name})
        return pl.DataFrame([{**dict.fromkeys(WATCHED), **line} for line in lines], schema=WATCHED)


class _Logits(TorchFunctionMode):
    """Reads the logits of attention: what a softmax over pairs of tokens is given, and q·k of the fused function."""

    _SOFTMAX = (torch.softmax, functional.softmax, Tensor.softmax)

    def __init__(self, note: Callable[[Tensor], None], *, cut: bool = False) -> None:
        super().__init__()
        self._note, self._cut = note, cut  # `cut`: no gradient goes back through them

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._SOFTMAX and isinstance(args[0], Tensor) and args[0].dim() >= 3:
            logits = args[0].detach()
            self._note(torch.where(logits > _MASKED, logits, 0.0)[:_SAMPLES])
            args = (logits, *args[1:]) if self._cut else args
        elif getattr(func, "__name__", "") == "scaled_dot_product_attention":
            q, k = args[0].detach(), args[1].detach()
            scale = kwargs.get("scale")
            if k.shape[:-2] == q.shape[:-2]:
                logits = q[:_SAMPLES] @ k[:_SAMPLES].transpose(-1, -2)
                self._note(logits * (q.shape[-1] ** -0.5 if scale is None else scale))
            args = (q, k, *args[2:]) if self._cut else args
        return func(*args, **kwargs)


def _rms(x: Tensor) -> Tensor:
    return x.detach().double().square().mean().sqrt()


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
