"""`sonde.predict`: run a model on moments, and collect what each module sends on and gets back."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sonde.analysis.moments import Moments, average
from sonde.core.errors import SondeError
from sonde.core.formatting import listed
from sonde.core.generators import preserve_rng
from sonde.observe.experiments.copies import copied, map_tensors, run_model
from sonde.observe.predict.elementwise import are_waves
from sonde.observe.predict.operations import CUSTOM, apply_module
from sonde.observe.predict.positions import MOST
from sonde.observe.predict.prediction import Level, PredictedModule, Prediction, Remedy
from sonde.observe.predict.signal import Signal, signals_in
from sonde.observe.predict.tape import Node, Tape, propagate_back
from sonde.observe.predict.weights import empirical, scaled, weight_moments

_WIDEST = math.log(30)  # of a factor that is tried, as a logarithm
_TRIES = 16
_HALVINGS = 5
_GOOD_ENOUGH = 2.0  # factor between blocks
_MOST_GROUPS = 4
_FEWEST_BLOCKS = 3
_OVERFLOW = 700.0
_MOST_DOUBT = 0.2  # of a gradient's mean square

Call = tuple[str, nn.Module, Node]


def register(operation: Any, moments: Callable[..., Any]) -> None:
    """Say what an operation does: a torch function, or a class of modules.

    `moments` takes the arguments that the operation takes and returns its result, written with operations that are
    known.  For a class of modules the module comes first: `register(Gate, lambda gate, x: x * torch.sigmoid(x))`.
    """
    CUSTOM[operation] = moments


def predict(model: nn.Module, x: Any, *, remedy: bool = True) -> Prediction:
    """Predict signal and gradient at every module, over draws of the weights.

    `x` is the shape of a batch, whose entries are then independent with mean 0 and variance 1.  It may also be a
    batch, whose moments are taken, or a tuple or mapping of the model's arguments.  Give token ids as a tensor.

    With `remedy` a model whose signal or gradient vanishes or explodes, and differs between blocks by more than a
    factor 2, is predicted again with its weights at other scales.  The model does not change, and no random number of
    yours is used.
    """
    if not isinstance(model, nn.Module):
        raise SondeError(f"predict(model, shape): expected a torch.nn.Module, got {type(model).__name__}")
    with preserve_rng(), torch.no_grad():
        twin = copied(model).cpu()
        found = _run(twin, x, {}, type(model).__name__)
        is_left = found.leaves("signal") or found.leaves("gradient")
        if not remedy or not is_left or _unevenness(found) <= _GOOD_ENOUGH:
            return found
        return _with_remedy(found, twin, x)


def _run(model: nn.Module, x: Any, scales: Mapping[str, float], name: str) -> Prediction:
    tape = Tape()
    calls: list[Call] = []
    known = dict(model.named_parameters())
    given = _inputs(x, tape)
    factors = {id(known[parameter]): factor for parameter, factor in scales.items()}
    with scaled(factors, model.buffers()), _recorded(model, tape, calls):
        output = _output(model, given, name)
    found = signals_in(list(output.values()) if isinstance(output, Mapping) else output)
    if not found:
        raise SondeError("the model returns nothing that depends on its input")
    propagate_back(tape, found[0].node)
    return Prediction(
        model=name,
        input_rms=math.sqrt(tape.nodes[0].moments.square),
        modules=[_described(*call) for call in calls],
        blocks=_blocks(model, calls),
        notes=[*_notes(model), *_masked(tape), *_doubtful(calls)],
    )


def _output(model: nn.Module, given: Any, name: str) -> Any:
    try:
        return run_model(model, given)
    except SondeError:
        raise
    except Exception as error:  # code of the model that needs values
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SondeError(f"{name} does not run without values ({why}): measure it with `sonde check`") from error


def _inputs(x: Any, tape: Tape) -> Any:
    if isinstance(x, Sequence) and not isinstance(x, str) and x and all(isinstance(n, int) for n in x):
        shape = tuple(x)
        products = np.zeros([2] * len(shape))
        products.flat[0] = 1.0
        return Signal.of(tape.add(Node(shape, Moments(0.0, products)), fresh=2 / math.prod(shape)), tape)
    return map_tensors(lambda one: _given(one, tape), x)


def _given(x: Tensor, tape: Tape) -> Tensor:
    """A batch by its moments; whole numbers, which are ids or masks, as they are."""
    if not x.is_floating_point() or isinstance(x, Signal):
        return x
    return Signal.of(tape.add(Node(tuple(x.shape), Moments(*empirical(x.cpu())))), tape)


def _embedded(x: Tensor, weight: Tensor, ids: Any, tape: Tape) -> Tensor:
    """Rows of an embedding: how often ids repeat is theirs, the size is that of the distribution of the weight."""
    if isinstance(x, Signal):
        return x
    mean, products = empirical(x)
    rows = _rows_of(x, weight, ids)
    share = float(rows.any(-1).double().mean())  # that of a padding token is 0
    size = weight_moments(weight).square * share / max(float(rows.double().square().mean()), 1e-300)
    alike = average(products[..., 0], tuple(x.shape[:-1]), range(x.dim() - 1)).flat[0] / products.flat[0]
    node = Node(tuple(x.shape), Moments(mean * math.sqrt(size), products * size), has_waves=are_waves(x))
    return Signal.of(tape.add(node, fresh=2 * float(alike) / x.shape[-1]), tape)


def _rows_of(x: Tensor, weight: Tensor, ids: Any) -> Tensor:
    """The rows that x is a multiple of, as few rows are not of the size of their distribution; else all rows."""
    if isinstance(ids, Tensor) and ids.dtype in (torch.int32, torch.int64) and ids.shape == x.shape[:-1]:
        rows = weight[ids.clamp(0, len(weight) - 1)]
        factor = (x * rows).sum() / rows.square().sum().clamp_min(1e-30)
        if torch.allclose(x, factor * rows):
            return rows
    return weight


@contextmanager
def _recorded(model: nn.Module, tape: Tape, calls: list[Call]) -> Iterator[None]:
    """Hooks that note the output of every module, and make signals of embeddings."""
    count: dict[str, int] = defaultdict(int)
    handles = []

    def after(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and isinstance(output, Tensor):
                output = _embedded(output, module.weight, next(iter(args), None), tape)
            found = signals_in(list(output.values()) if isinstance(output, Mapping) else output)
            count[name] += 1
            if found:
                calls.append((name if count[name] == 1 else f"{name}#{count[name]}", module, found[0].node))
            return output

        return hook

    for name, module in model.named_modules():
        if type(module) in CUSTOM:
            handles.append(apply_module(module))
        handles.append(module.register_forward_hook(after(name or "(model)")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _described(name: str, module: nn.Module, node: Node) -> PredictedModule:
    known: dict[str, Any] = {"name": name, "type": type(module).__name__, "shape": node.shape}
    known["is_leaf"] = next(module.children(), None) is None
    if node.undefined is not None:
        return PredictedModule(**known, undefined=node.undefined)
    parts = [float(part.flat[0]) for part in (node.gradient, node.told) if part is not None]
    is_known = bool(parts) and math.isfinite(sum(parts)) and node.gradient_doubt < _MOST_DOUBT
    products, square = node.moments.products, node.moments.square
    two_samples = (1, *[0] * (products.ndim - 1))
    return PredictedModule(
        **known,
        signal=Level.of(square, node.spread),
        gradient=Level.of(sum(parts), node.gradient_spread) if is_known else None,
        correlation=float(products[two_samples] / square) if products.ndim and square > 0 else None,
    )


def _blocks(model: nn.Module, calls: Sequence[Call]) -> list[str]:
    """The children of one container that follow each other with outputs of one shape: the longest such row."""
    shapes = {name: node.shape for name, _, node in calls if node.undefined is None}
    best: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            prefix = f"{name}." if name else ""
            children = [f"{prefix}{child}" for child, _ in module.named_children()]
            there = _most_alike([child for child in children if child in shapes], shapes)
            best = there if len(there) > len(best) else best
    return best if len(best) >= _FEWEST_BLOCKS else _steps(calls) or best


def _steps(calls: Sequence[Call]) -> list[str]:
    """The calls of one module with weights whose output reaches its next call, as in an unrolled network."""
    rows: dict[str, list[tuple[str, Node]]] = defaultdict(list)
    for name, module, node in calls:
        if node.undefined is None and next(module.parameters(), None) is not None:
            rows[name.split("#")[0]].append((name, node))
    known = [row for row in rows.values() if len(row) >= _FEWEST_BLOCKS and _reaches(row[0][1], row[1][1])]
    return [name for name, _ in max(known, key=len, default=[])]


def _reaches(first: Node, second: Node) -> bool:
    waiting = [second]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node is first:
            return True
        later = [parent for parent in node.parents if parent.order >= first.order and parent.order not in seen]
        seen.update(parent.order for parent in later)
        waiting += later
    return False


def _most_alike(names: list[str], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    common = Counter(shapes[name] for name in names).most_common(1)
    return [name for name in names if shapes[name] == common[0][0]] if common else []


def _notes(model: nn.Module) -> list[str]:
    """What makes weights dependent, which the prediction takes for independent."""
    seen: dict[tuple[Any, ...], str] = {}
    same = []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        key = (tuple(parameter.shape), float(parameter.sum()), float(parameter.flatten()[0]))
        if key in seen and parameter.min() < parameter.max():
            same.append(name)
        seen.setdefault(key, name)
    if not same:
        return []
    return [
        f"{len(same)} weights are copies of others ({listed(same, 3)}), as in nn.TransformerEncoder: "
        "draws are not independent there, and a residual stream grows faster than predicted."
    ]


def _masked(tape: Tape) -> list[str]:
    known = [node.rows for node in tape.nodes if node.is_weighted and node.rows is not None]
    uneven = sum(not rows.is_even for rows in known)
    if uneven > 1 and all(max(rows.weights.shape) <= MOST for rows in known):
        return [
            f"Masked attention in {uneven} layers: behind the first, sizes may be a tenth off, "
            "and gradients at queries and keys a third."
        ]
    if all(rows.is_even or max(rows.weights.shape) <= MOST for rows in known):
        return []
    return [
        f"Masked attention over more than {MOST} tokens counts tokens as alike, which may be a fifth off: "
        "give a shorter batch."
    ]


def _doubtful(calls: Sequence[Call]) -> list[str]:
    doubtful: dict[str, list[str]] = defaultdict(list)
    for name, _, node in calls:
        if node.gradient_doubt >= _MOST_DOUBT:
            doubtful[node.doubt_at].append(name)
    return [f"The gradient is undefined at {listed(names, 2)}: {why}." for why, names in doubtful.items()]


def _with_remedy(found: Prediction, model: nn.Module, x: Any) -> Prediction:
    """Add the group of weights whose one common scale keeps signal and gradient best, if any does."""
    best: Remedy | None = None
    for pattern, names in _groups(model):

        def worst_at(factor: float, names: Sequence[str] = names) -> float:
            return _unevenness(_run(model, x, dict.fromkeys(names, factor), ""))

        factor, worst = _keeping_factor(worst_at)
        if best is None or worst < best.worst:
            best = Remedy(tuple(names), pattern, factor, worst)
        if worst <= _GOOD_ENOUGH:
            break
    if best is None or best.worst <= _GOOD_ENOUGH:
        return replace(found, remedy=best)
    return replace(found, best_scale=best)


def _groups(model: nn.Module) -> list[tuple[str, list[str]]]:
    """Weights whose names differ in numbers alone, larger groups first; last, all weights."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            groups[re.sub(r"(?<![^.])\d+(?![^.])", "*", name)].append(name)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))[:_MOST_GROUPS]
    every = [name for names in groups.values() for name in names]
    return ordered if len(groups) == 1 else [*ordered, ("every weight", every)]


def _unevenness(found: Prediction) -> float:
    """The largest factor between a block's signal or gradient and that of the block where it enters."""
    names = found.blocks or [module.name for module in found.modules if module.is_leaf]
    logs = [0.0]
    for direction, reference in (("signal", 0), ("gradient", -1)):
        levels = [getattr(found[name], direction) for name in names]
        known = [level.expected for level in levels if level is not None and level.expected > 0]
        logs += [abs(math.log(value / known[reference])) for value in known]
    return math.exp(min(max(logs), _OVERFLOW))


def _keeping_factor(worst: Callable[[float], float]) -> tuple[float, float]:
    """The factor nearest to 1 that keeps blocks within a factor 2, or else the best one; and what remains.

    The best factor is found by golden sections of the logarithm, the nearest one by halving the way to it.
    """
    golden = (math.sqrt(5) - 1) / 2
    low, high = -_WIDEST, _WIDEST
    a, b = high - golden * (high - low), low + golden * (high - low)
    at_a, at_b = worst(math.exp(a)), worst(math.exp(b))
    for _ in range(_TRIES):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - golden * (high - low)
            at_a = worst(math.exp(a))
        else:
            low, a, at_a = a, b, at_b
            b = low + golden * (high - low)
            at_b = worst(math.exp(b))
        if min(at_a, at_b) <= _GOOD_ENOUGH:
            break
    (remains, keeps), leaves = min((at_a, a), (at_b, b)), 0.0
    for _ in range(_HALVINGS if remains <= _GOOD_ENOUGH else 0):
        middle = (keeps + leaves) / 2
        if (value := worst(math.exp(middle))) <= _GOOD_ENOUGH:
            keeps, remains = middle, value
        else:
            leaves = middle
    return math.exp(keeps), remains
