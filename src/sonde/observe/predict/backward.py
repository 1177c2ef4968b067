"""The gradient at every node of a tape, from the output back: its moments, and how much draws of them differ."""

import math

import numpy as np

from sonde.analysis.moments import Moments, Products
from sonde.observe.predict.positions import MOST, Kernel, equalised, fitted, parted, with_averages
from sonde.observe.predict.tape import STEP, Node, Spread, Tape, add_spread, common_square, kernel_at, log_ratio

_TURNED = "queries and keys are turned with their place, and tokens differ"


def propagate_back(tape: Tape, output: Node) -> None:
    """Gradients of every node for a gradient of mean square 1, independent between entries, at the output."""
    start = np.zeros_like(output.moments.products)
    start.flat[0] = 1.0
    for axis, n in enumerate(output.shape):
        if n == 1:
            start = np.concatenate([start.take([0], axis)] * 2, axis)
    output.gradient, output.gradient_spread = start, {tape.source(): math.sqrt(2 / max(math.prod(output.shape), 1))}
    for node in reversed(tape.nodes[: output.order + 1]):
        if node.gradient is not None:
            _pass_back(tape, node, node.gradient)


def _pass_back(tape: Tape, node: Node, gradient: Products) -> None:
    if node.operand is not None and node.local is not None:
        told = node.local(gradient)
        node.operand.told = told if node.operand.told is None else node.operand.told + told
        if not node.operand.gradient_spread:
            node.operand.gradient_spread = node.gradient_spread
    inputs = [parent.moments for parent in node.parents]
    if node.undefined is not None:
        for parent in node.parents:
            parent.gradient = np.full(parent.moments.products.shape, np.nan)
        return
    new, overlap = (
        (0.0, node.gradient_overlap) if node.fresh_back is None else node.fresh_back(gradient, node.gradient_overlap)
    )
    fresh = {tape.source(): math.sqrt(new)} if new > 0 else {}
    parts = node.backward(gradient, inputs)
    radial = [1.0] * len(parts) if node.radial_back is None else node.radial_back(node.gradient_radial)
    for place, (parent, part) in enumerate(zip(node.parents, parts, strict=True)):
        if part is None:
            continue
        spread: Spread = dict(fresh)
        add_spread(spread, node.gradient_spread, 1.0)
        for other, source in enumerate(node.parents):
            if source.spread and part.flat[0] > 0:
                moved = [*inputs]
                moved[other] = inputs[other].scaled(1 + STEP)
                again = node.backward(gradient, moved)[place]
                assert again is not None
                slope = log_ratio(again.flat[0], part.flat[0]) / (2 * math.log1p(STEP))
                add_spread(spread, source.spread, slope)
        kernel = _kernel_back(node, gradient, parent, part)
        doubt, why = (1.0, own) if (own := _doubt(node)) else (node.gradient_doubt, node.doubt_at)
        sources: dict[int, float] = {}
        if node.passes is not None and parent.shape == node.shape:
            share = node.passes(inputs)[place]
            sources = {order: share * known for order, known in node.gradient_sources.items()} | {node.order: share}
        if kernel is not None and parent.shape[kernel[0]] == len(kernel[1]):
            part = with_averages(part, *kernel)
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
    """Why the gradient that goes back from here is not known: among scores, those by keys turned with their place."""
    if node.values is not None and node.values.kernel is not None and node.parents[-1].kernel is None:
        return _TURNED
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
        mixed: Spread = {}
        add_spread(mixed, parent.gradient_spread, before / total)
        add_spread(mixed, spread, float(part.flat[0]) / total)
        parent.gradient_spread = mixed
        shares = before / total, float(part.flat[0]) / total
        if (crossed := 4 * math.prod(shares) * crossed) > 0:
            mixed[tape.source()] = math.sqrt(crossed)
        parent.gradient_overlap = shares[0] ** 2 * parent.gradient_overlap + shares[1] ** 2 * overlap
        parent.gradient_doubt = shares[0] * parent.gradient_doubt + shares[1] * doubt
        parent.gradient_radial = shares[0] * parent.gradient_radial + shares[1] * radial
