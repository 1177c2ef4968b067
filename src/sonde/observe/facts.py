"""What is recorded once: modules in order of execution, parameters, inputs, targets, modes, optimisers, the graph."""

import itertools
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sonde.metrics.reductions import readable, root_mean_square
from sonde.observe import finite_or_none, operations
from sonde.observe.step_record import ModuleCall
from sonde.observe.updates import Updates
from sonde.observe.watched_modules import (
    COMPILED,
    WatchedModel,
    WatchedModule,
    is_lazy,
    is_sharded,
    modules_with_modes,
    uncompiled,
    unwrapped,
)

NEVER_CALLED = "never called"
NO_CALL = (
    "it was compiled before the watch began (call watch.recompile()), or is called in a way that hooks do not hear"
)
_MOST_TENSORS = 8  # of an input that are described
_STATISTICS = (
    *("mean", "std", "min", "max", "not_finite_share", "rms", "whole_share"),
    *("feature_offset", "feature_std_max", "feature_std_min"),
    *("feature_variance", "feature_deviation", "entropy", "top_share", "alike"),
)
IGNORED = -100  # the target that losses leave out by default
_COUNTED = 1024  # entries of a tensor whose distinct values are counted
_KEPT_NUMBERS = 1 << 20  # a model up to this size has its first weights kept for experiments


_OF_WEIGHTS = ("mean", "std", "max", "row_spread", "kurtosis", "spectrum")
_MOST_ROWS, _MOST_COLUMNS = 256, 1024  # of a weight matrix whose singular values are compared
_ORTHOGONAL = 1e-3


def tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested tuples, lists and mappings, with where it was."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from tensors(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from tensors(inner, f"{name}.{place}" if name else str(place))


def first_float(value: Any) -> Tensor | None:
    """The first floating-point tensor of a module's output, one with axes before a mere number."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    scalar = None
    for _, tensor in tensors(value):
        if tensor.is_floating_point():
            if tensor.dim():
                return tensor
            scalar = tensor if scalar is None else scalar
    return scalar


class TensorStatistics:
    """Statistics of a tensor, on its device until they are read."""

    def __init__(self, name: str, x: Tensor) -> None:
        self.name, self.shape, self.dtype = name, list(x.shape), str(x.dtype).removeprefix("torch.")
        self.numbers: Tensor | None = None
        if readable(x) is None:
            x = x.detach()
            y = x.float() if x.device.type == "mps" else x.double()
            broken, rms = (~y.isfinite()).to(y.dtype).mean(), root_mean_square(y)
            whole = (y == y.round()).to(y.dtype).mean()
            of_all = [y.mean(), y.std(correction=0), y.min(), y.max(), broken, rms, whole]
            self.numbers = torch.stack([*of_all, *_by_feature(y), *_shares(x), _alike(y)])

    def read(self) -> dict[str, Any]:
        """Name, shape, dtype and statistics as plain values; waits for the device."""
        known: dict[str, Any] = {"name": self.name, "shape": self.shape, "dtype": self.dtype}
        if self.numbers is not None:
            values = map(finite_or_none, self.numbers.tolist())
            known |= dict(zip(_STATISTICS, values, strict=True))
            known["alike"] = known["alike"] == 1
        return known


def mean_and_spread(y: Tensor) -> Tensor:
    """Mean and standard deviation of all entries of a tensor, on its device."""
    return torch.stack([y.mean(), y.std(correction=0)])


def _by_feature(y: Tensor) -> tuple[Tensor, ...]:
    """Over features (last axis of vectors, channels of maps) that vary: max |mean|/std, largest and smallest std; over
    all, the mean variance, and of the first entries the mean distance from the median.
    """
    many = y.shape[1] if y.dim() > 3 else y.shape[-1] if y.dim() > 1 else 1
    flat = y.movedim(1, -1).reshape(-1, many) if y.dim() > 3 else y.reshape(-1, many)
    stds = flat.std(0, correction=0)
    varies = stds > 0
    offsets = torch.where(varies, flat.mean(0).abs() / stds, 0.0)
    apart = (flat[:_COUNTED] - flat[:_COUNTED].median(0).values).abs().mean() if flat.numel() else flat.sum()
    return offsets.max(), stds.max(), torch.where(varies, stds, torch.inf).min(), stds.square().mean(), apart


def _shares(x: Tensor) -> tuple[Tensor, Tensor]:
    """The entropy of the shares of distinct values, with Miller and Madow's correction, and the largest share.

    Of the first 1024 entries that losses do not ignore, without waiting for the device: p_i is the share of entries
    that equal entry i, the entropy the mean of −log p_i, and the number of distinct values the sum of 1/(n·p_i).
    """
    flat = x.flatten()[:_COUNTED]
    number = torch.float32 if x.device.type == "mps" else torch.float64
    counts = (flat != IGNORED if not x.is_floating_point() else flat == flat).to(number)
    many = counts.sum().clamp_min(1.0)
    share = ((flat[:, None] == flat[None]) * counts).sum(1).div(many).clamp_min(1 / max(1, len(flat)))
    weight = counts / many
    distinct = (weight / share).sum()
    return (weight * -share.log()).sum() + (distinct - 1) / (2 * many), (share * counts).amax()


def _alike(y: Tensor) -> Tensor:
    """1 if all samples are equal, and there are several."""
    return (y == y[:1]).all().to(y.dtype) if y.dim() and len(y) > 1 else y.new_zeros(())


def tensor_statistics(value: Any) -> list[TensorStatistics]:
    """Statistics of the first few tensors of an input."""
    first = itertools.islice(tensors(value), _MOST_TENSORS)
    return [TensorStatistics(name or "0", tensor) for name, tensor in first if type(tensor) is Tensor]


def _modules(modules: Iterable[WatchedModule], calls: Sequence[ModuleCall]) -> list[dict[str, Any]]:
    """Those that were called, in order of execution; then those that were not, with the reason."""
    counts: dict[str, int] = {}
    firsts: dict[str, ModuleCall] = {}
    for call in calls:
        counts[call.watched.name] = counts.get(call.watched.name, 0) + 1
        firsts.setdefault(call.watched.name, call)
    known = [
        {
            "name": name,
            "type": call.watched.type,
            "calls": counts[name],
            "shape": list(call.shape),
            "input_shape": list(call.input_shape),
            "kind": call.watched.kind,
            "bounds": call.watched.bounds,
            "drops": call.watched.drops,
            "batch_first": call.watched.batch_first,
        }
        for name, call in firsts.items()
    ]
    types = {watched.name: watched.type for watched in modules}
    return known + [
        {"name": name, "type": types[name], "calls": 0, "reason": reason}
        for name, reason in not_called(modules, calls).items()
    ]


def not_called(modules: Iterable[WatchedModule], calls: Sequence[ModuleCall]) -> dict[str, str]:
    """The chosen modules that were not called, and why."""
    called = {call.watched.name for call in calls}
    missed = NEVER_CALLED if calls else NO_CALL
    graphs = "" if any(call.watched.tapped for call in calls) else COMPILED
    return {
        watched.name: watched.hidden or watched.skipped or (watched.tapped and graphs) or missed
        for watched in modules
        if watched.chosen and watched.name not in called
    }


class InitialParameters:
    """The parameters before the first step: statistics of each, and a copy of them if the model is small."""

    def __init__(self, model: nn.Module) -> None:
        self._statistics: dict[int, Tensor] = {
            id(p): _weight_statistics(p.detach()) for p in model.parameters() if readable(p) is None
        }
        held = dict(model.named_parameters(remove_duplicate=False)) | dict(
            model.named_buffers(remove_duplicate=False)
        )  # and no state_dict, whose hooks may change the model: of sharded parameters they undo what a pass needs
        self.state: dict[str, Tensor] | None = None
        if not any(map(is_lazy, held.values())) and sum(x.numel() for x in held.values()) <= _KEPT_NUMBERS:
            self.state = {name: x.detach().clone() for name, x in held.items()}

    def statistics(self, parameter: Tensor) -> dict[str, Any]:
        """Mean, spread, largest entry and spread over rows of one of them."""
        seen = self._statistics.get(id(parameter))
        if seen is None:
            return {}
        values = zip(_OF_WEIGHTS, seen.tolist(), strict=True)
        return {name: finite_or_none(value) for name, value in values}


def _weight_statistics(weight: Tensor) -> Tensor:
    """Mean, spread and largest entry; the largest difference between the first unit's weights and another's; and two
    numbers that tell whether entries are drawn independently: their kurtosis, and Σσ⁴ of singular values relative to
    what independent entries have.
    """
    x = weight.float()
    rows = x.reshape(x.shape[0], -1) if x.dim() > 1 else x.reshape(1, -1)
    apart = (rows - rows[:1]).abs().max()
    mean, std = x.mean(), x.std(correction=0)
    kurtosis = (x - mean).pow(4).mean() / std.pow(4)
    return torch.stack([mean, std, x.abs().max(), apart, kurtosis, _spectrum(rows[:_MOST_ROWS, :_MOST_COLUMNS])])


def _spectrum(x: Tensor) -> Tensor:
    """m Σσ⁴/(Σσ²)² of an m × n matrix over 1 + m/n, which independent entries of mean 0 have; of an orthogonal one, 1.

    The larger axis counts as n, so that the Gram matrix is the smaller one.
    """
    x = x if len(x) <= x.shape[1] else x.T
    ratio = len(x) * (x @ x.T).square().sum() / x.square().sum().square()
    return torch.where((ratio - 1).abs() < _ORTHOGONAL, 1.0, ratio / (1 + len(x) / x.shape[1]))


def _parameters(
    names: Mapping[int, str], model: nn.Module, held: Iterable[int] | None, start: InitialParameters | None = None
) -> list[dict[str, Any]]:
    """Each parameter: shape, whether it asks for gradients, is in an optimiser (None: none given), how it begins."""
    kept = None if held is None else set(held)
    found = []
    for parameter in model.parameters():
        shape = None if isinstance(parameter, nn.parameter.UninitializedParameter) else list(parameter.shape)
        found.append(
            {
                "name": names.get(id(parameter), "?"),
                "shape": shape,
                "requires_grad": parameter.requires_grad,
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "in_optimiser": None if kept is None else id(parameter) in kept,
                "start": {} if start is None else start.statistics(parameter),
            }
        )
    return found


def _optimiser(known: torch.optim.Optimizer) -> dict[str, Any]:
    """Its kind and the options of its groups, as plain values."""
    groups = [
        {key: value for key, value in group.items() if key != "params" and _is_plain(value)}
        | {"parameters": len(group["params"])}
        for group in known.param_groups
    ]
    return {"type": type(known).__name__, "groups": groups}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(inner) for inner in value)
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


class FirstStep:
    """Facts of the first step, recorded as it runs.  The share of modules in eval mode is of every watched step."""

    def __init__(self, model: WatchedModel, updates: Updates) -> None:
        self.calls: list[ModuleCall] | None = None
        self.start: InitialParameters | None = None
        self.graph: dict[str, Any] = {}
        self.in_eval: tuple[float, int] | None = None
        self._model, self._updates = model, updates
        self._tensors: dict[str, list[TensorStatistics]] = {}
        self._pair: tuple[Any, Any] | None = None  # inputs and targets of the first call of the loss
        self._given: Any = None
        self._mode: dict[str, Any] = {}
        self._with_modes: list[weakref.ref[nn.Module]] | None = None  # modules that the mode changes
        self._output_made = -1  # autograd's number of the operation that made the latest output

    def record_inputs(self, given: Any) -> None:
        """Record the arguments of the model: by position or, if there are none, by name."""
        if not self._tensors.get("inputs"):
            self._tensors["inputs"] = tensor_statistics(given)
            self._given = given

    def record_targets(self, given: Any, step: int) -> None:
        """Record the second argument of each call of the loss in the first step."""
        known = self._tensors.setdefault("targets", [])
        if step == 0 and len(known) < _MOST_TENSORS:
            known += tensor_statistics(given)
            self._pair = self._pair or (self._given, given)

    def record_modes(self, model: nn.Module) -> bool:
        """Record modes, and at first the initial parameters, before a watched pass; whether a fact was added."""
        if not self._mode:
            self._mode = _modes(model, self._model.modules)
        if self.start is None:
            self.start = InitialParameters(uncompiled(unwrapped(model)))
            self._with_modes = [weakref.ref(module) for module in modules_with_modes(model)]
        flags = [module.training for module in (known() for known in self._with_modes or []) if module is not None]
        if flags:
            self.in_eval = 1 - sum(flags) / len(flags), len(flags)
        return self._record_switched(model.training)

    def _record_switched(self, trains: bool) -> bool:
        """Record the modules that were in eval mode in the first step and are in train mode now."""
        at_first = self._mode["in_the_other_mode"] if trains and self._mode["training"] else []
        if not at_first or "switched" in self.graph:
            return False
        known = {watched.name: watched.module() for watched in self._model.modules if watched.name in at_first}
        switched = [name for name, module in known.items() if module is not None and module.training]
        if switched:
            self.graph["switched"] = switched
        return bool(switched)

    def record_output(self, out: Tensor, given: Any) -> None:
        """Record the graph of the model's output; `given` are its arguments."""
        self._output_made = operations.sequence_number(out) or -1
        if "output_op" not in self.graph:
            self.graph = {
                "output_op": operations.last_operation(out),
                "output_shape": list(out.shape),
                "bare_pairs": operations.bare_pairs(out, self._model.names),
                "bends": operations.is_nonlinear(out),
                "unregistered": self._unregistered(out, given),
            }

    def _unregistered(self, out: Tensor, given: Any) -> list[list[int]]:
        """Shapes of parameters that nobody holds; none for a sharded model, whose layers use gathered copies."""
        if any(map(is_sharded, self._model.parameters)):
            return []
        known = {*self._model.names, *self._updates.held()}
        return operations.unregistered(out, (tensor for _, tensor in tensors(given)), known)

    def record_loss(self, loss: Tensor) -> bool:
        """Record the operations between the latest output and the loss; whether they were not yet known."""
        if self._output_made < 0 or "loss_ops" in self.graph:
            return False
        self.graph["loss_ops"] = operations.operations_since(loss, self._output_made)
        self.graph["loss_shape"] = operations.largest_shape(loss, self._output_made)
        self.graph["loss_axis"] = operations.softmax_axis(loss, self._output_made)
        self.graph["loss_weighted"] = operations.is_weighted(loss, self._output_made)
        self.graph["further_terms"] = operations.has_further_terms(loss, self._output_made)
        return True

    def record_sum(self, loss: Tensor) -> None:
        """Record whether a loss that the loop logs, beside that of the loss module, has terms of its own."""
        if self._output_made >= 0 and "loss_ops" in self.graph and not self.graph.get("further_terms"):
            more = {*operations.operations_since(loss, self._output_made)} - {*self.graph["loss_ops"]}
            self.graph["further_terms"] = "Add" in more

    def facts(self) -> dict[str, Any] | None:
        """All of it, as soon as the step is over; None before that."""
        if self.calls is None:
            return None
        calls, self.calls = self.calls, []
        pair, self._pair, self._given = self._pair, None, None
        model, optimisers = self._model.model(), self._updates.optimisers
        held = self._updates.held() if optimisers else None
        return {
            "modules": _modules(self._model.modules, calls),
            "parameters": [] if model is None else _parameters(self._model.names, model, held, self.start),
            "shared": self._model.shared,
            "optimisers": [_optimiser(optimiser) for optimiser in optimisers],
            "inputs": [one.read() for one in self._tensors.get("inputs", [])],
            "targets": [one.read() for one in self._tensors.get("targets", [])],
            "pairs": self._compared(pair),
            **self._mode,
            **self.graph,
        }

    def _compared(self, pair: tuple[Any, Any] | None) -> dict[str, Any]:
        """What inputs tell of their targets; empty where the targets were not seen."""
        from sonde.observe.experiments.pairs import pairs_of_step  # imports this module

        shape = self.graph.get("output_shape")
        if pair is None or shape is None:
            return {}
        return pairs_of_step(*pair, torch.empty(shape, device="meta"))


def _modes(model: nn.Module, modules: Sequence[WatchedModule]) -> dict[str, Any]:
    """Training or evaluation, and the modules that are in the other one."""
    known = [(watched.name, watched.module()) for watched in modules]
    other = [name for name, module in known if module is not None and module.training != model.training]
    return {"training": model.training, "in_the_other_mode": other}
