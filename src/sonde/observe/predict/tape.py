"""The operations of a forward pass as nodes with moments, and the gradient's way back through them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from sonde.analysis.moments import Moments, Products, Shape
from sonde.observe.predict.positions import (
    EMPTY,
    MOST,
    AxisMap,
    Kernel,
    Rows,
    alike,
    averages,
    common_square,
    equalised,
    fitted,
    parted,
    with_averages,
)

Pointwise = Callable[[Tensor], Tensor]
Forward = Callable[[list[Moments]], Moments]
Backward = Callable[[Products, list[Moments]], Sequence[Products | None]]
Spread = Products
"""First-order deviations of log(mean square): a coefficient for each source of randomness so far."""

FreshBack = Callable[[Products, float], tuple[float, float]]
"""(Gradient at the output, its overlap) → relative variance of the mean square that is new, overlap at the input."""

Passes = Callable[[list[Moments]], Sequence[float]]

STEP = 1e-4
SHARED_BIAS = "a gate is multiplied with a state that has the same biases"
UNEVEN_CHANNELS = "each channel is divided by its own size, and sizes differ much, as after depthwise convolutions"


def _no_spread() -> Spread:
    return np.zeros(0)


def _none(gradient: Products, inputs: list[Moments]) -> Sequence[Products | None]:
    return [None] * len(inputs)


def unchanged(radial: float) -> Sequence[float]:
    """Of an operation that keeps the direction of its one operand."""
    return [radial]


def identity(x: Any) -> Any:
    """x."""
    return x


@dataclass(eq=False)
class Node:
    """The result of one operation: moments of its entries, and on the way back those of its gradient."""

    shape: Shape
    moments: Moments
    parents: list["Node"] = field(default_factory=list)
    backward: Backward = _none
    overlap: float = 0.0  # mean squared correlation of two samples or tokens, beside that of their mean correlation
    sizes: float = 0.0  # half the relative variance of a token's size that comes from what it was made of
    loose: float = 1.0  # how much the size of a token varies, relative to one of independent entries
    fresh_back: "FreshBack | None" = None  # variance that weights add to the gradient's mean square; new overlap
    operand: "Node | None" = None  # of an elementwise function: told of its gradient, which goes on to the root
    local: Callable[[Products], Products] | None = None
    root: "Node | None" = None  # Gaussian entries that this is a function of
    function: Pointwise = identity
    allowed: Tensor | None = None  # scores that a mask left
    mean_of: "tuple[Node, list[int]] | None" = None  # of a mean that keeps its axes: of what, over which axes
    smoothed: "tuple[Node, Callable[[Products], Products]] | None" = None  # of a mean: of what, and how
    axis_map: AxisMap | None = None  # where tokens of the operands are; None: mixed
    kernel: Kernel | None = None  # of tokens that differ
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a concatenation: operand (`id`) → places
    joined: tuple[int, list[Any]] | None = None  # of a concatenation: the axis and the parts
    padded: tuple[Any, list[int]] | None = None  # what zeros were put around, and how many before it on each axis
    is_sum: bool = False
    is_pooled: bool = False  # of windows of its operand
    is_biased: bool = False  # a constant was added that differs along the last axis
    is_blurred: bool = False  # near places are more alike than distant ones
    is_positive: bool = False  # no entry is negative
    has_waves: bool = False  # positions that are waves were added
    is_normalised: bool = False  # each token was divided by its own size
    rows: Rows | None = None  # of attention: its scores, their softmax, and the product with the values
    is_weighted: bool = False  # the last of these
    kept: float = 1.0  # of such a product: what dropout made of the share of one place
    scores: "Node | None" = None  # of a softmax: what it was taken of
    values: "Node | None" = None  # of attention scores: what their softmax weighs
    radial_back: Callable[[float], Sequence[float]] | None = None  # `gradient_radial` → that of each parent; 1 without
    undefined: str | None = None
    order: int = 0
    spread: Spread = field(default_factory=_no_spread)
    gradient: Products | None = None
    told: Products | None = None  # by later elementwise functions
    gradient_spread: Spread = field(default_factory=_no_spread)
    gradient_overlap: float = 0.0
    gradient_kernel: Kernel | None = None
    gradient_doubt: float = 0.0  # the share that is not known to a tenth
    doubt: str | None = None  # why the gradient that this node passes back is not known to a tenth
    doubt_at: str = ""  # the reason behind `gradient_doubt`
    passes: Passes | None = None  # by which factor the gradient goes back to each operand, on average over entries
    gradient_sources: dict[int, float] = field(default_factory=dict)  # node (`order`) → mean share of its gradient
    features: tuple[int, ...] = ()  # axes along which random weights made entries independent
    fan: float = 0.0  # of a result of random weights: how many terms each entry has
    is_scaled_back: bool = False  # each feature was divided by its own size
    biases: frozenset[Any] = frozenset()  # what is added to each feature, the same for all samples and steps
    gradient_radial: float = 1.0  # mean square of the gradient along the features, relative to another direction

    @property
    def source(self) -> "Node":
        """The Gaussian entries that this is a function of; itself unless an elementwise function was applied."""
        return self.root or self


class Tape:
    """The nodes of one pass, in order, and the number of independent sources of randomness."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.sources = 0

    def add(self, node: Node, forward: Forward | None = None, fresh: float = 0.0) -> Node:
        """Append a node; its spread follows from its parents' and from `fresh`, a variance that weights add."""
        node.order = len(self.nodes)
        node.biases = node.biases.union(*(parent.biases for parent in node.parents))
        is_kept = node.is_pooled or node.radial_back is unchanged or (node.is_sum and len(node.parents) > 1)
        node.is_positive |= node.root is None and is_kept and all(parent.is_positive for parent in node.parents)
        node.is_blurred |= any(parent.is_blurred for parent in node.parents)
        node.has_waves |= any(parent.has_waves for parent in node.parents)
        self.nodes.append(node)
        if forward is not None and node.undefined is None:
            node.spread = self._inherited(node, forward)
        if node.undefined is None:
            _forward_kernel(node)
            node.features = node.features or (node.parents[-1].features if node.is_weighted else _features(node))
            if node.is_weighted or (len(node.parents) == 1 and not node.fan and is_fewer(node, node.parents[0])):
                before = node.parents[-1]
                fresh += lost_terms(
                    (before.moments, before, before.kernel), (node.moments, node, node.kernel), before.overlap
                )
        if fresh > 0:
            node.spread = with_spread(node.spread, self.source(fresh))
        return node

    def source(self, variance: float) -> Spread:
        """The deviation by a new source of randomness with this variance."""
        self.sources += 1
        found = np.zeros(self.sources)
        found[-1] = math.sqrt(variance)
        return found

    def _inherited(self, node: Node, forward: Forward) -> Spread:
        inputs = [parent.moments for parent in node.parents]
        found = _no_spread()
        for place, parent in enumerate(node.parents):
            if parent.spread.any():
                moved = [*inputs]
                moved[place] = inputs[place].scaled(1 + STEP)
                slope = log_ratio(forward(moved).square, node.moments.square) / (2 * math.log1p(STEP))
                found = with_spread(found, parent.spread, slope)
        return found


def is_fewer(node: Node, than: Node) -> bool:
    """Whether a node has fewer entries than another."""
    return math.prod(node.shape) < math.prod(than.shape)


Sized = tuple[Moments, Node, Kernel | None]
"""Moments of a node's entries or of their gradient, the node, and the kernel of these moments."""


def lost_terms(before: Sized, after: Sized, overlap: float) -> float:
    """What a mean over fewer independent entries adds to the variance of log(mean square).

    A slice, a mean or attention leaves fewer independent vectors than there were.  With n of them of d features the
    mean square has the variance 2/(nd) by the weights, and twice their overlap ÷ n by the sizes of what they weigh.
    """
    found = []
    for moments, node, kernel in (before, after):
        share = 1 - moments.mean**2 / moments.square if moments.square > 0 else 0.0
        found.append(share**2 * common_square((moments, moments), node.shape, node.features, overlap, (kernel, kernel)))
    width = math.prod(after[1].shape[axis] for axis in after[1].features)
    return max(2 * (found[1] - found[0]) * (1 + width * overlap), 0.0)


def _features(node: Node) -> tuple[int, ...]:
    """Those of the operands, at their place in the result."""
    for parent in node.parents:
        places = parent.features if parent.shape == node.shape else map(node.axis_map or _nowhere, parent.features)
        if found := tuple(place for place in places if place is not None):
            return found
    return ()


def _nowhere(axis: int) -> None:
    return None


def _forward_kernel(node: Node) -> None:
    """Give a node the kernel that follows from its operands'; where that changes averages, they change."""
    if node.is_weighted and node.rows is not None:
        values = node.parents[-1]
        axis = len(node.shape) - 2
        if node.shape[axis] <= MOST and values.shape[axis] <= MOST and (values.kernel or not node.rows.is_even):
            matrix = node.rows.forward(kernel_at(values, axis, values.moments.products, values.kernel), node.kept)
            _change_averages(node, (axis, matrix))
        return
    known = next((parent for parent in node.parents if parent.kernel is not None), None)
    if node.axis_map is None or known is None or known.kernel is None:
        return
    to, before = node.axis_map(known.kernel[0]), known.kernel[0]
    axis = len(node.shape) if to is None else to
    if axis >= len(node.shape) or node.shape[axis] % len(known.kernel[1]):
        return
    is_merged = node.shape[axis] != len(known.kernel[1])
    same = [parent for parent in node.parents if len(parent.shape) == len(known.shape)]
    sizes = known.shape[before], len(known.kernel[1])
    kernels = [
        kernel_at(p, before, p.moments.products, p.kernel, sizes[1]) for p in same if p.shape[before] == sizes[0]
    ]
    if node.is_normalised and is_merged:
        return
    if sizes[0] != sizes[1] and not is_merged:
        matrix, products = parted(kernels[0], node.moments.products, axis, sizes[0] // sizes[1])
        node.kernel, node.moments = (axis, matrix), Moments(node.moments.mean, products)
        return
    if node.is_normalised:
        node.doubt = _EMPTY if _has_empty(kernels[0]) else node.doubt
        own = node.moments.square
        matrix = kernels[0] / averages(kernels[0])[0]
        matrix = equalised(matrix, matrix)
        _change_averages(node, (axis, matrix * own))
    else:
        matrix = np.sum(kernels, 0)
        node.kernel = axis, fitted(matrix, node.moments.products, axis, node.shape[axis], is_sum=node.is_sum)


def _has_empty(kernel: Products) -> bool:
    """Whether some tokens are zeros, as class tokens may be at initialisation."""
    squares = kernel.diagonal()
    return bool(squares.min() <= EMPTY * squares.mean())


def kernel_at(node: Node, axis: int, products: Products, kernel: Kernel | None, tokens: int | None = None) -> Products:
    """The kernel along an axis; that of tokens that are alike, where there is none."""
    is_known = kernel is not None and kernel[0] == axis
    return kernel[1] if kernel is not None and is_known else alike(products, axis, tokens or node.shape[axis])


def _change_averages(node: Node, kernel: Kernel) -> None:
    node.kernel = kernel
    node.moments = Moments(node.moments.mean, with_averages(node.moments.products, *kernel))


def with_spread(to: Spread, spread: Spread, weight: float = 1.0) -> Spread:
    """One spread plus a multiple of another."""
    found = np.zeros(max(len(to), len(spread)))
    found[: len(to)] = to
    found[: len(spread)] += weight * spread
    return found


def log_ratio(a: float, b: float) -> float:
    """log(a/b); 0 where a or b is not positive."""
    return math.log(a / b) if a > 0 and b > 0 else 0.0


_TURNED = "queries and keys are turned with their place, and tokens differ"


_EMPTY = "some tokens are zeros, and a norm divides their gradient by √ε"
_WAVES = "positions are waves, which makes near tokens alike"


def propagate_back(tape: Tape, output: Node) -> None:
    """Gradients of every node for a gradient of mean square 1, independent between entries, at the output."""
    start = np.zeros_like(output.moments.products)
    start.flat[0] = 1.0
    for axis, n in enumerate(output.shape):
        if n == 1:
            start = np.concatenate([start.take([0], axis)] * 2, axis)
    output.gradient, output.gradient_spread = start, tape.source(2 / max(math.prod(output.shape), 1))
    for node in reversed(tape.nodes[: output.order + 1]):
        if node.gradient is not None:
            _pass_back(tape, node, node.gradient)


def _pass_back(tape: Tape, node: Node, gradient: Products) -> None:
    if node.operand is not None and node.local is not None:
        told = node.local(gradient)
        node.operand.told = told if node.operand.told is None else node.operand.told + told
        if not node.operand.gradient_spread.any():
            node.operand.gradient_spread = node.gradient_spread
    inputs = [parent.moments for parent in node.parents]
    if node.undefined is not None or node.doubt == _EMPTY:
        for parent in node.parents:
            parent.gradient = np.full(parent.moments.products.shape, np.nan)
            if node.undefined is None:
                parent.gradient_doubt, parent.doubt_at = 1.0, _EMPTY
        return
    new, overlap = (
        (0.0, node.gradient_overlap) if node.fresh_back is None else node.fresh_back(gradient, node.gradient_overlap)
    )
    common = with_spread(node.gradient_spread, tape.source(new)) if new > 0 else node.gradient_spread
    parts = node.backward(gradient, inputs)
    radial = [1.0] * len(parts) if node.radial_back is None else node.radial_back(node.gradient_radial)
    for place, (parent, part) in enumerate(zip(node.parents, parts, strict=True)):
        if part is None:
            continue
        spread = common
        for other, source in enumerate(node.parents):
            if source.spread.any() and part.flat[0] > 0:
                moved = [*inputs]
                moved[other] = inputs[other].scaled(1 + STEP)
                again = node.backward(gradient, moved)[place]
                assert again is not None
                slope = log_ratio(again.flat[0], part.flat[0]) / (2 * math.log1p(STEP))
                spread = with_spread(spread, source.spread, slope)
        kernel = _kernel_back(node, gradient, parent, part)
        if kernel is not None and parent.shape[kernel[0]] == len(kernel[1]):
            part = with_averages(part, *kernel)
        is_part = is_fewer(parent, node) and (node.axis_map or node.joined or len(node.parents) == 1)
        if (is_part and not node.fan) or (node.is_weighted and parent is node.parents[-1]):
            sized = (Moments(0.0, gradient), node, node.gradient_kernel), (Moments(0.0, part), parent, kernel)
            if (lost := lost_terms(*sized, node.gradient_overlap)) > 0:
                spread = with_spread(spread, tape.source(lost))
        doubt, why = (1.0, own) if (own := _doubt(node)) else (node.gradient_doubt, node.doubt_at)
        sources: dict[int, float] = {}
        if node.passes is not None and parent.shape == node.shape:
            share = node.passes(inputs)[place]
            sources = {order: share * known for order, known in node.gradient_sources.items()} | {node.order: share}
        crossed = _crossed(parent, part, overlap, kernel)
        _accumulate_kernel(parent, part, kernel)
        if doubt > parent.gradient_doubt:
            parent.doubt_at = why
        _accumulate(
            tape, parent, part + _in_common(tape, parent, sources), spread, overlap, radial[place], doubt, crossed
        )
        for order, share in sources.items():
            parent.gradient_sources[order] = parent.gradient_sources.get(order, 0.0) + share


def _kernel_back(node: Node, gradient: Products, parent: Node, part: Products) -> Kernel | None:
    """The kernel of the gradient that a node sends to an operand."""
    if node.is_weighted and node.rows is not None:
        axis = len(node.shape) - 2
        is_even = node.rows.is_even and node.gradient_kernel is None
        if node.shape[axis] > MOST or node.parents[-1].shape[axis] > MOST:
            return None
        given = kernel_at(node, axis, gradient, node.gradient_kernel)
        if parent is node.parents[-1]:
            return None if is_even else (axis, node.rows.backward(given, node.kept))
        node.rows.gradient = given.diagonal() / given.diagonal().mean()
        return None
    if node.blocks and node.gradient_kernel is not None:
        axis, (start, end) = node.gradient_kernel[0], node.blocks[id(parent)]
        return axis, node.gradient_kernel[1][start:end, start:end]
    if node.axis_map is None or (node.gradient_kernel is None and not (node.is_normalised and parent.kernel)):
        return None
    for axis in range(len(parent.shape)):
        to = node.axis_map(axis)
        known = node.gradient_kernel or (parent.kernel if node.is_normalised else None)
        if known is None or to is None or to >= len(node.shape) or parent.shape[axis] % len(known[1]):
            continue
        if to == (known[0] if known is node.gradient_kernel else node.axis_map(known[0])):
            given = kernel_at(node, to, gradient, node.gradient_kernel, len(known[1]))
            if node.shape[to] != len(given) == parent.shape[axis]:
                return axis, parted(given, part, axis, node.shape[to] // len(given))[0]
            matrix = fitted(given, part, axis, parent.shape[axis])
            if node.is_normalised and parent.kernel is not None and parent.kernel[0] == axis:
                matrix = equalised(matrix, parent.kernel[1])
            return axis, matrix
    return None


def _accumulate_kernel(parent: Node, part: Products, kernel: Kernel | None) -> None:
    known = parent.gradient_kernel
    if known is None and kernel is None:
        return
    axis, matrix = known or kernel or (0, part)
    before = 0.0 if parent.gradient is None else kernel_at(parent, axis, parent.gradient, known, len(matrix))
    parent.gradient_kernel = axis, before + kernel_at(parent, axis, part, kernel, len(matrix))


def _in_common(tape: Tape, parent: Node, sources: dict[int, float]) -> Products | float:
    """Twice the product of a new contribution to a gradient and those before, if they come from one later gradient.

    In g ∘ a + (1 − g) ∘ b the gradient at g is that of the sum times a, minus that times b.  The nearest later node
    that both come from has the whole product.
    """
    both = [source for source in sources if source in parent.gradient_sources]
    if not both or parent.gradient is None:
        return 0.0
    source = tape.nodes[min(both)]
    assert source.gradient is not None
    return 2 * sources[source.order] * parent.gradient_sources[source.order] * source.gradient


def _doubt(node: Node) -> str | None:
    """Why the gradient that goes back from here is not known: scores by keys turned with their place, or of waves."""
    if node.values is not None and node.values.kernel is not None and node.parents[-1].kernel is None:
        return _TURNED
    if node.values is not None and node.values.kernel is not None and _has_empty(node.values.kernel[1]):
        return _EMPTY
    if node.values is not None and node.values.has_waves:
        return _WAVES
    return node.doubt


def _crossed(parent: Node, part: Products, overlap: float, kernel: Kernel | None) -> float:
    """How much the product of a contribution with those before, whose mean is 0, differs from draw to draw."""
    if parent.gradient is None:
        return 0.0
    both = [Moments(0.0, one) for one in (parent.gradient, part)]
    overlap = math.sqrt(parent.gradient_overlap * overlap)
    return common_square(both, parent.shape, parent.features, overlap, (parent.gradient_kernel, kernel))


def _accumulate(
    tape: Tape,
    parent: Node,
    part: Products,
    spread: Spread,
    overlap: float,
    radial: float,
    doubt: float,
    crossed: float,
) -> None:
    """Add one contribution: contributions of different paths are independent."""
    before = 0.0 if parent.gradient is None else float(parent.gradient.flat[0])
    parent.gradient = part if parent.gradient is None else parent.gradient + part
    total = float(parent.gradient.flat[0])
    if total > 0:
        shares = before / total, float(part.flat[0]) / total
        parent.gradient_spread = with_spread(shares[0] * parent.gradient_spread, spread, shares[1])
        if (crossed := 4 * math.prod(shares) * crossed) > 0:
            parent.gradient_spread = with_spread(parent.gradient_spread, tape.source(crossed))
        parent.gradient_overlap = shares[0] ** 2 * parent.gradient_overlap + shares[1] ** 2 * overlap
        parent.gradient_doubt = shares[0] * parent.gradient_doubt + shares[1] * doubt
        parent.gradient_radial = shares[0] * parent.gradient_radial + shares[1] * radial
    elif math.isnan(total):
        parent.gradient_doubt = max(parent.gradient_doubt, doubt)
