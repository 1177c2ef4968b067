"""A snapshot of the network, a double-precision copy evaluated on the probe batch, and the probes of its signal.

N samples, d width, C outputs, L blocks.  The copy leaves the network, its gradients, its mode and every generator
as they were.  The forward pass runs once and the gradient comes back once; all probes share them.
"""

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from sonde.core.errors import SondeError
from sonde.core.generators import generator, preserve_rng
from sonde.metrics.reductions import cosines, median_of_all, median_of_defined, rms, sample_norms
from sonde.metrics.rows import Reading, undefined
from sonde.network import READER, HandOn, Network, Pooling, frozen_copy, leaf_at, survey
from sonde.network.losses import Loss, LossFunction, as_loss
from sonde.network.units import ProductsByOneDNN

DRAWS = 20
"""Draws of the null at epochs where ρ is measured."""

FEW_DRAWS = 4
"""Draws of the null at epochs where the cosine alone is measured."""

Redrawn = Callable[["Snapshot", torch.Generator], Sequence[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What probes may use beside the network and the batch; metrics that need what is not given are undefined."""

    credits: Callable[["Snapshot"], Sequence[Tensor]] | None = None  # the rule's a_0 … a_L
    undefined_credit: str | None = None  # why a rule's credit does not stand in for the gradient
    feedback: Callable[["Snapshot"], Mapping[str, Tensor]] | None = None  # V by the names of the weights it replaces
    redrawn: Redrawn | None = None  # the same had the rule drawn anew; None where it draws nothing
    initial: Mapping[str, Tensor] | None = None  # parameters at initialisation
    test: Callable[[int, int], tuple[Tensor, Tensor]] | None = None  # test samples first … last−1
    test_samples: int = 0
    seed: int = 0  # with the epoch, names every random draw
    epoch: int = 0
    directions: int = 32
    draws: int = DRAWS  # of the null
    etas: tuple[float, ...] = (0.001, 0.01, 0.1)
    epsilon: float | None = None  # of rho; None is 1e-3 × RMS(h_l) of each sample


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Snapshot:
    """The copy and what it computed, all in float64 and cut from the graph."""

    net: Network
    x: Tensor
    y: Tensor
    loss: Loss
    states: list[Tensor]  # h_0 … h_L
    branches: list[Tensor]  # what blocks 0 … L−1 returned
    preactivations: list[Tensor | None]  # the first linear output of each block; None of a block that has none
    output_NC: Tensor
    losses_N: Tensor
    gradients: list[Tensor]  # g_l = ∂ℓ_i/∂h_l, l = 0 … L: per sample, not divided by N
    preactivation_gradients: list[Tensor | None]  # ∂ℓ_i/∂(linear output), per sample
    context: Context
    precision: torch.dtype = torch.float64  # of the weights that training moves
    resolutions: dict[int, Tensor] = field(default_factory=dict)  # by layer, of those that a probe has asked for

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.losses_N)

    @property
    def depth(self) -> int:
        """L, the number of blocks: the states are h_0 … h_L."""
        return len(self.states) - 1

    @property
    def pooling(self) -> Pooling:
        """Which vector of a sample is read."""
        assert self.net.pooling is not None
        return self.net.pooling

    reader = READER

    @cached_property
    def unread(self) -> list[str | None]:
        """Why nothing can be said of the gradient at what is read of each state, or None where something can.

        A gradient that is exactly zero at what is read, and not elsewhere, is not a small gradient: the output does not
        depend on what is read.
        """
        reads = [bool(self.pooling.credit(g).any()) or not bool(g.any()) for g in self.gradients]
        return [None if seen else "the readout does not read this token" for seen in reads]

    @cached_property
    def credits(self) -> list[Tensor] | None:
        """a_0 … a_L of the rule, before normalisation; None where no rule is given."""
        source = self.context.credits
        return None if source is None else [a.detach() if a.requires_grad else a for a in source(self)]

    @property
    def candidates(self) -> dict[str, list[Tensor] | None]:
        """The credit of the rule and its ceiling, BP's gradient, by the ending of their metrics' names."""
        return {"": self.credits, "/bp": self.gradients}

    def rng(self, purpose: str) -> torch.Generator:
        """The generator `probe/{purpose}/{epoch}` of the run's seed: the same draws whenever the epoch is probed."""
        return generator(self.context.seed, f"probe/{purpose}/{self.context.epoch}")


def take(net: nn.Module, x: Tensor, y: Tensor, loss: Loss | LossFunction, context: Context | None = None) -> Snapshot:
    """Evaluate a float64 copy of `net` in eval mode, on the CPU where the device has no float64.

    `net` is a network, what `sonde.chain` makes of a module, or a module with `embed`, `blocks` and `readout`.
    """
    net = Network.of(net)
    where = torch.device("cpu") if x.device.type == "mps" else x.device
    if net.mixes is not None:
        raise SondeError(
            f"{net.mixes} lets samples see each other in eval mode, too, so nothing can be measured of one sample: let "
            f"normalisation over the batch keep running statistics"
        )
    twin = frozen_copy(net).to(where).double()
    x, y = (value.to(where) for value in (x, y))
    x, y = (value.double() if value.is_floating_point() else value for value in (x, y))
    if net.pooling is None:
        seen = survey(twin, x)
        for known in (net, twin):
            seen.remember(known)
    with torch.enable_grad(), _linear_outputs(twin) as (found, hand_on):
        states, branches, output_NC = twin.run(x, hand_on)
        loss = as_loss(loss, output_NC.shape[1:])
        losses_N = loss.per_sample(output_NC, y)
        linear = [found.get(block) for block in range(twin.depth)]
        wanted = [*states, *(z for z in linear if z is not None)]
        gradients = torch.autograd.grad(losses_N.sum(), wanted, materialize_grads=True)
    of_linear = iter(gradients[len(states) :])
    return Snapshot(
        net=twin,
        x=x,
        y=y,
        loss=loss,
        states=[h.detach() for h in states],
        branches=[f.detach() for f in branches],
        preactivations=[None if z is None else z.detach() for z in linear],
        output_NC=output_NC.detach(),
        losses_N=losses_N.detach(),
        gradients=list(gradients[: len(states)]),
        preactivation_gradients=[None if z is None else next(of_linear) for z in linear],
        context=context or Context(),
        precision=next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float64),
    )


@contextmanager
def _linear_outputs(net: Network) -> Iterator[tuple[dict[int, Tensor], HandOn]]:
    """Collect the output of the first linear map or convolution that every block runs.

    Which block is running is known by the states that were handed on: blocks may share a module.
    """
    outputs: dict[int, Tensor] = {}
    begun, cut = -1, leaf_at(0)  # the block whose input was handed on last

    def hand_on(states: list[Tensor]) -> Tensor:
        nonlocal begun
        begun = len(states) - 1
        return cut(states)

    def collect(_module: nn.Module, _inputs: object, out: Tensor) -> None:
        if 0 <= begun < net.depth:
            outputs.setdefault(begun, out)

    inside = {module for unit in net.blocks for module in unit.modules()}
    handles = [m.register_forward_hook(collect) for m in inside if isinstance(m, nn.Linear | _ConvNd)]
    try:
        yield outputs, hand_on
    finally:
        for handle in handles:
            handle.remove()


def hidden_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖h_l‖₂, layers 0 … L."""
    for layer, h in enumerate(snapshot.states):
        yield median_of_all("hidden_norm", sample_norms(snapshot.pooling.read(h)), layer)


def growth(snapshot: Snapshot) -> Iterator[Reading]:
    """hidden_norm[l+1] / hidden_norm[l] of block l; undefined where the stream is zero."""
    norms = [reading.value for reading in hidden_norm(snapshot)]
    for block, (before, after) in enumerate(itertools.pairwise(norms)):
        if before > 0:
            yield Reading(metric="growth", layer=block, value=after / before, samples=snapshot.samples)
        else:
            reason = "the state before the block is " + ("not finite" if math.isnan(before) else "zero")
            yield undefined("growth", reason, layer=block, samples=snapshot.samples)


def trace(snapshot: Snapshot) -> Iterator[Reading]:
    """Every unit of the first probe sample at every layer: `state[unit]` = h_l[unit], l = 0 … L."""
    for layer, h in enumerate(snapshot.states):
        for unit, value in enumerate(h[0].flatten().tolist()):
            yield Reading(metric=f"state[{unit}]", layer=layer, value=value, samples=1)


def branch_ratio(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖f_l‖/‖h_l‖, by block: a branch that adds nothing has ratio 0."""

    def ratios(f_Nd: Tensor, h_Nd: Tensor) -> Tensor:
        added_N, stream_N = sample_norms(f_Nd), sample_norms(h_Nd)
        defined_N = added_N.isfinite() & stream_N.isfinite() & (stream_N > 0)
        return torch.where(defined_N, added_N / stream_N, torch.nan)

    why = "the state before the block is zero, or one of them not finite"
    yield from _of_branches("branch_ratio", snapshot, ratios, why)


def branch_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of cos(f_l, h_l), by block: a branch that only scales the stream has cosine 1."""
    why = "branch or state is zero or not finite in every sample"
    yield from _of_branches("branch_cosine", snapshot, cosines, why)


def _of_branches(
    metric: str, snapshot: Snapshot, compare: Callable[[Tensor, Tensor], Tensor], otherwise: str
) -> Iterator[Reading]:
    """The median over samples of what `compare` makes of a branch and the state before it."""
    read = snapshot.pooling.read
    for block, f in enumerate(snapshot.branches):
        if snapshot.net.residual:
            yield median_of_defined(metric, compare(read(f), read(snapshot.states[block])), block, otherwise)
        else:
            yield undefined(metric, "the blocks are not residual", layer=block)


NO_LINEAR = "the block runs no linear map and no convolution"


def activation_mean(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean of the linear output z_l = W h_{l−1} + b, layers 1 … L: m = Σ z/(N d) over samples and units."""
    for layer, z in enumerate(snapshot.preactivations, start=1):
        if z is None:
            yield undefined("activation_mean", NO_LINEAR, layer=layer)
        else:
            yield Reading(metric="activation_mean", layer=layer, value=z.mean().item(), samples=snapshot.samples)


def activation_std(snapshot: Snapshot) -> Iterator[Reading]:
    """Sample standard deviation of the linear output z_l, layers 1 … L: √(Σ (z − m)²/(N d − 1)), m its mean."""
    for layer, z in enumerate(snapshot.preactivations, start=1):
        if z is None:
            yield undefined("activation_std", NO_LINEAR, layer=layer)
        elif z.numel() < 2:
            yield undefined("activation_std", "one value has no spread", layer=layer, samples=snapshot.samples)
        else:
            yield Reading(metric="activation_std", layer=layer, value=z.std().item(), samples=snapshot.samples)


def loss(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean loss of the probe batch, (1/N) Σ_i ℓ_i."""
    yield Reading(metric="loss", value=snapshot.losses_N.mean().item(), samples=snapshot.samples)


def grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖g_l‖₂, layers 0 … L, per sample (the loss is not divided by N).

    Beside it, at layer L, `grad_per_error`: the median of ‖g_L‖/‖e‖, e the output error.  A network that has learned
    has a small g_L because e is small.  Under a terminal LayerNorm it falls as 1/‖h_L‖.  Samples without an error do
    not count.  And at every layer `grad_resolution`: the cosine, over the whole probe batch, of g_l computed in the
    precision of training and g_l in float64.
    """
    for layer, (g, unread) in enumerate(zip(snapshot.gradients, snapshot.unread, strict=True)):
        if unread:
            yield undefined("grad_norm", unread, layer=layer)
        else:
            yield median_of_all("grad_norm", sample_norms(snapshot.pooling.credit(g)), layer)
    yield _grad_per_error(snapshot)
    yield from _grad_resolution(snapshot)


def _grad_per_error(snapshot: Snapshot) -> Reading:
    metric, top = "grad_per_error", snapshot.depth
    if unread := snapshot.unread[top]:
        return undefined(metric, unread, layer=top)
    top_N = sample_norms(snapshot.pooling.credit(snapshot.gradients[top]))
    error_N = sample_norms(snapshot.loss.error(snapshot.output_NC, snapshot.y).flatten(1))
    defined_N = top_N.isfinite() & error_N.isfinite() & (error_N > 0)
    return median_of_defined(
        metric,
        torch.where(defined_N, top_N / error_N, torch.nan),
        top,
        "the output error is zero, or it or the gradient is not finite, in every sample",
    )


def _grad_resolution(snapshot: Snapshot) -> Iterator[Reading]:
    """One cosine a layer: samples weigh by the size of their gradient, as they do in a training step."""
    metric, name = "grad_resolution", str(snapshot.precision).removeprefix("torch.")
    for layer, rounded in enumerate(as_trained(snapshot)):
        if unread := snapshot.unread[layer]:
            yield undefined(metric, unread, layer=layer)
            continue
        exact = snapshot.pooling.credit(snapshot.gradients[layer])
        found = snapshot.pooling.credit(rounded.double())
        (value,) = cosines(found.flatten()[None], exact.flatten()[None]).tolist()
        if math.isfinite(value):
            yield Reading(metric=metric, layer=layer, value=value, samples=snapshot.samples)
        elif exact.any() and not found.any():
            yield undefined(metric, f"the gradient is zero in {name} and not in float64", layer=layer)
        else:
            yield undefined(metric, f"the gradient is zero or not finite in {name} or float64", layer=layer)


def as_trained(snapshot: Snapshot) -> list[Tensor]:
    """g_0 … g_L in eval mode, in the dtype of the trained weights; modules that round in training alone round here."""
    net = copy.deepcopy(snapshot.net).to(snapshot.precision)
    for module in net.modules():
        if hasattr(module, "rounds"):
            module.rounds = True  # type: ignore[assignment]
    x, y = (v.to(snapshot.precision) if v.is_floating_point() else v for v in (snapshot.x, snapshot.y))
    with preserve_rng(x.device), torch.enable_grad(), ProductsByOneDNN():
        passed = net.run(x, leaf_at(0))
        losses_N = snapshot.loss.per_sample(passed.output, y)
        return list(torch.autograd.grad(losses_N.sum(), passed.states, materialize_grads=True))


def preact_grad_norm(snapshot: Snapshot) -> Iterator[Reading]:
    """‖∂(mean loss)/∂(linear output)‖₂ over the whole batch, layers 1 … L."""
    for layer, g in enumerate(snapshot.preactivation_gradients, start=1):
        if g is None:
            yield undefined("preact_grad_norm", NO_LINEAR, layer=layer)
            continue
        norm = rms(g) * g.numel() ** 0.5 / snapshot.samples
        yield Reading(metric="preact_grad_norm", layer=layer, value=norm, samples=snapshot.samples)


_BATCH = 128
_BATCHES = 8


def cross_batch_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Mean pairwise cosine of the batch-mean BP gradient at layer L//2, over 8 disjoint batches of 128 test samples.

    Where there are fewer samples, over as many such batches as there are.
    """
    metric, layer = "cross_batch_cosine", snapshot.depth // 2
    available = min(_BATCHES, snapshot.context.test_samples // _BATCH)
    if snapshot.context.test is None or available < 2:
        yield undefined(metric, f"fewer than two batches of {_BATCH} test samples", layer=layer)
        return
    means = []
    for first in range(0, available * _BATCH, _BATCH):
        mean_d = _gradient(snapshot, layer, *snapshot.context.test(first, first + _BATCH)).mean(0)
        if mean_d.isfinite().all() and mean_d.any():
            means.append(mean_d)
    if len(means) < 2:
        why = "fewer than two batches have a gradient that is finite and not zero"
        reason = snapshot.unread[layer] or why
        yield undefined(metric, reason, layer=layer, samples=len(means) * _BATCH)
        return
    means_Bd = torch.stack(means)
    one, other = torch.triu_indices(len(means), len(means), offset=1)
    value = cosines(means_Bd[one], means_Bd[other]).mean().item()
    yield Reading(metric=metric, layer=layer, value=value, samples=len(means) * _BATCH)


def _gradient(snapshot: Snapshot, layer: int, x: Tensor, y: Tensor) -> Tensor:
    """g_l of each sample at what is read, N×d."""
    x, y = (value.to(snapshot.losses_N.device) for value in (x, y))
    x, y = (value.double() if value.is_floating_point() else value for value in (x, y))
    with torch.enable_grad():
        passed = snapshot.net.run(x, leaf_at(layer))
        losses_N = snapshot.loss.per_sample(passed.output, y)
        (g,) = torch.autograd.grad(losses_N.sum(), passed.states[layer], materialize_grads=True)
    return snapshot.pooling.credit(g)


def drift(snapshot: Snapshot) -> Iterator[Reading]:
    """‖W − W_init‖/‖W_init‖ of every parameter tensor, as `drift[name]`; undefined where W_init is zero."""
    initial = snapshot.context.initial
    for name, parameter in snapshot.net.named_parameters():
        metric = f"drift[{name}]"
        if initial is None:
            yield undefined(metric, "the initial weights are not known")
            continue
        start = initial[name].to(parameter.device).double()
        length = rms(start)
        if length > 0:
            value = rms(parameter - start) / length
            yield Reading(metric=metric, value=value, samples=0)  # of weights, not of samples
        else:
            yield undefined(metric, "the initial tensor is zero")


NO_MATRICES = "the rule replaces no weight matrix of this block on the way back"
ZERO = "one of the matrices is zero or not finite"


def weight_alignment(snapshot: Snapshot) -> Iterator[Reading]:
    """cos(V, W) of every weight matrix W of the blocks and the matrix V that replaces it in the backward pass.

    It is stored as `weight_alignment[name]`, and ‖V‖/‖W‖ as `weight_ratio[name]`; the mean over the matrices of a
    block has no name in brackets.

    Undefined where a rule replaces no matrix, and where V or W is zero.
    """
    feedback = snapshot.context.feedback
    found = {} if feedback is None else feedback(snapshot)
    for block, unit in enumerate(snapshot.net.matrices()):
        pairs = {name: (found[name], w.detach()) for name, w in unit.items() if name in found}
        for metric, measure in (("weight_alignment", _cosine), ("weight_ratio", _ratio)):
            values = {name: measure(v, w) for name, (v, w) in pairs.items()}
            for name, value in values.items():
                yield _reading(f"{metric}[{name}]", block, value)
            mean = sum(values.values()) / len(values) if values else None
            yield _reading(metric, block, mean)


def _cosine(v: Tensor, w: Tensor) -> float:
    return cosines(v.reshape(1, -1), w.reshape(1, -1)).item()


def _ratio(v: Tensor, w: Tensor) -> float:
    return rms(v) / rms(w) if rms(w) > 0 else math.nan


def _reading(metric: str, block: int, value: float | None) -> Reading:
    """A reading of weights, with 0 samples."""
    if value is None or not math.isfinite(value):
        return undefined(metric, NO_MATRICES if value is None else ZERO, layer=block)
    return Reading(metric=metric, layer=block, value=value, samples=0)
