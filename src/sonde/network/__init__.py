"""A chain of units: h_0 = embed(x), h_{l+1} = unit_l(h_l), output = readout(h_L).  N samples.

This is the seam between networks and everything that trains or measures them.  Training steps, snapshots, stacks and
the benchmark know a network by four things: `run` (all states of a batch; the caller may cut or wrap what is handed
from one unit to the next), `tail` (from h_l to the output), `advance` (one unit) and its pooling.  What a unit is (a
block, a block plus its input, a submodule of your transformer) is decided here and nowhere else.

- A state is N×d (vectors), N×T×d (tokens) or N×C×H×W (maps).  A survey runs a copy on two and on three samples before
  training and refuses anything else by name.
- Pooling is a linear map R from a state to the vector that norms, cosines and ρ look at: `cls`, `last`, `mean` or
  `flat`.  To move that vector by v, the state moves by Sv with R S = 1; its gradient is Sᵀg.  It belongs to the model,
  is found automatically for the tokens of a custom model, is stored in `run.json` and named in captions.
- A chain runs an ordinary module's own `forward` and observes the units in it; masks, positions and tuples pass
  through.  A tail runs the module again without the units below, so a readout may be any code.  Nothing stays on the
  module between two runs.
- A loss has `per_sample`, `mean`, `error` and `hits`.  An adapter makes these from any callable, by
  `reduction="none"` or `vmap`, and checks on the first batch that the mean of the contributions is the loss.  A loss
  that mixes samples trains under `bp`; whatever needs one value per sample refuses it.
- Units that run again for a rule use the random numbers of the first time and gather statistics in copies: BatchNorm
  counts a step once.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import global_state, preserve_rng, set_global_state

PoolingName = Literal["cls", "last", "mean", "flat"]
_TOKEN = {"cls": 0, "last": -1}
_PLACES = {3: (1,), 4: (2, 3)}  # the axes of tokens, of positions


@final
@dataclass(frozen=True)
class Pooling:
    """`cls`: the first token; `last`: the last; `mean`: over tokens or positions; `flat`: the whole state.

    Pooling is a linear map R from a state to D numbers.  To move the pooled vector by v, the state moves by Sv with
    R S = 1: `cls` and `last` move their token, `mean` moves every token (or position) by v, `flat` the whole state.
    So the gradient with respect to the pooled vector is Sᵀg: for `mean`, the sum of the gradients of the tokens.
    """

    name: PoolingName

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether states of this shape (of one sample) can be pooled so: maps have no tokens."""
        return not (self.name in _TOKEN and len(shape) == 3)

    def width(self, shape: tuple[int, ...]) -> int:
        """D, for states of this shape of one sample."""
        if len(shape) == 1 or self.name == "flat":
            return math.prod(shape)
        return shape[-1] if len(shape) == 2 else shape[0]

    def read(self, h: Tensor) -> Tensor:
        """R h, N×D: the pooled vector."""
        if self._whole(h):
            return h.flatten(1)
        return h.mean(_PLACES[h.ndim]) if self.name == "mean" else h[:, _TOKEN[self.name]]

    def credit(self, a: Tensor) -> Tensor:
        """Sᵀ a, N×D: the credit (or gradient) of a state as that of the pooled vector."""
        if self._whole(a):
            return a.flatten(1)
        return a.sum(_PLACES[a.ndim]) if self.name == "mean" else a[:, _TOKEN[self.name]]

    def moved(self, h: Tensor, steps_kND: Tensor) -> Tensor:
        """h + S v, k×(the shape of h), for k steps v of the pooled vector."""
        if self._whole(h):
            return h + steps_kND.view(-1, *h.shape)
        if self.name == "mean":
            return h + (steps_kND[:, :, None] if h.ndim == 3 else steps_kND[..., None, None])
        moved = h.repeat(len(steps_kND), 1, 1, 1)
        moved[:, :, _TOKEN[self.name]] += steps_kND
        return moved

    def replaced(self, h: Tensor, v_kND: Tensor) -> Tensor:
        """h with v in place of the pooled vector, k×(the shape of h)."""
        if self._whole(h):
            return v_kND.view(-1, *h.shape)
        if self.name == "mean":
            return self.moved(h, v_kND - self.read(h))
        others = (h[:, 1:] if self.name == "cls" else h[:, :-1]).expand(len(v_kND), -1, -1, -1)
        parts = (v_kND[:, :, None], others)
        return torch.cat(parts if self.name == "cls" else parts[::-1], dim=2)

    def spread(self, a_ND: Tensor, h: Tensor) -> Tensor:
        """Rᵀ a in the shape of h: the credit of the pooled vector as that of the state; zero for what is not pooled."""
        if self._whole(h):
            return a_ND.view_as(h)
        if self.name == "mean":
            places = h.shape[1] if h.ndim == 3 else h.shape[2] * h.shape[3]
            a_N1D = (a_ND / places)[:, None] if h.ndim == 3 else (a_ND / places)[..., None, None]
            return a_N1D.expand_as(h)
        others = h.shape[1] - 1
        return F.pad(a_ND[:, None], (0, 0, 0, others) if self.name == "cls" else (0, 0, others, 0))

    def _whole(self, h: Tensor) -> bool:
        return h.ndim == 2 or self.name == "flat"


FLAT = Pooling("flat")


def _deprecated_reader(owner: Any) -> Pooling:
    """Deprecated: use `pooling`."""
    name = type(owner).__name__
    warnings.warn(f"{name}.reader is deprecated: use {name}.pooling", DeprecationWarning, stacklevel=2)
    pooling: Pooling = owner.pooling
    return pooling


READER = property(_deprecated_reader)
"""The deprecated name of `pooling`, for the classes that plugins see."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a task requires of a network: the shape of its inputs and the number of outputs."""

    shape: tuple[int, ...]
    outputs: int
    classifies: bool


class ForwardPass(NamedTuple):
    """The tensors of one forward pass."""

    states: list[Tensor]  # h_0 … h_L
    branches: list[Tensor]  # what blocks 0 … L−1 returned: what they add to h_l, or h_{l+1} itself
    output: Tensor


HandOn = Callable[[list[Tensor]], Tensor]
"""Given h_0 … h_l, returns what the next unit (or the readout) gets as h_l; it may replace the last list entry."""


def as_it_is(states: list[Tensor]) -> Tensor:
    """Hand on h_l itself."""
    return states[-1]


def leaf_at(layer: int) -> HandOn:
    """Make h_l a leaf, so that gradients end there."""

    def hand_on(states: list[Tensor]) -> Tensor:
        if len(states) == layer + 1:
            states[-1] = states[-1].detach().requires_grad_()
        return states[-1]

    return hand_on


_N = TypeVar("_N", bound="Network")


class Network(nn.Module):
    """h_0 = embed(x);  h_{l+1} = h_l + block_l(h_l), or block_l(h_l) where not residual;  readout(h_L)."""

    def __init__(
        self,
        embed: nn.Module,
        blocks: Iterable[nn.Module],
        readout: nn.Module,
        *,
        residual: bool,
        pooling: PoolingName | None = None,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)
        self.readout = readout
        self.residual = residual
        self.pooling = None if pooling is None else Pooling(pooling)  # None: `survey` finds it on the first samples
        self.draws = False  # whether it draws random numbers in training mode, as dropout does; `survey` sets it
        self.traces = True  # whether a forward pass may change generators or buffers; `survey` sets it
        self.mixes: str | None = None  # the first unit that mixes samples in eval mode; `survey` sets it
        self.branch_scale = 1.0  # factor on what a residual block adds; a rule may set it
        self.entry: Callable[[Tensor], Tensor] | None = None  # applied to every input; a rule may set it
        self.between: Callable[[Tensor], Tensor] | None = None  # applied to every state before the next unit reads it
        self.lead = 0  # the number of axes before the samples: 1 where replicas are stacked

    @classmethod
    def of(cls, module: nn.Module) -> "Network":
        """A `Network` of a module's `embed`, `blocks`, `readout`, and its `residual` and `reader` (pooling), if any."""
        if isinstance(module, Network):
            return module
        missing = [part for part in ("embed", "blocks", "readout") if not hasattr(module, part)]
        if missing:
            raise SondeError(
                f"{type(module).__name__} has no {' and no '.join(missing)}: let sonde.chain find its units"
            )
        residual, reader = bool(getattr(module, "residual", False)), getattr(module, "reader", None)
        return cls(module.embed, module.blocks, module.readout, residual=residual, pooling=reader)  # type: ignore[arg-type]

    @property
    def depth(self) -> int:
        """L, the number of units."""
        return len(self.blocks)

    def run(self, x: Tensor, hand_on: HandOn = as_it_is, *, raw: bool = False) -> ForwardPass:
        """All states of a batch; `hand_on` may detach or wrap what each unit hands to the next.

        With `raw` the embedding reads x as it is, without `entry`.
        """
        return self.tail(self.embed(self.entered(x, raw)), 0, x, hand_on)

    def entered(self, x: Tensor, raw: bool = False) -> Tensor:
        """The input as the embedding reads it."""
        return x if raw or self.entry is None else self.entry(x)

    def read(self, h: Tensor) -> Tensor:
        """A state as the next unit, or the readout, reads it."""
        return h if self.between is None else self.between(h)

    def tail(self, h: Tensor, layer: int, x: Tensor | None = None, hand_on: HandOn = as_it_is) -> ForwardPass:
        """From h_l to the output, with the states on the way.

        `x` is the batch that h_l comes from, for units and readouts that take more than the state.  h may hold several
        copies of the batch in sequence.
        """
        states, branches = [h], []
        for block in islice(self.blocks, layer, None):
            h, f = self._unit(block, self.read(hand_on(states)))
            states.append(h)
            branches.append(f)
        return ForwardPass(states, branches, self.readout(self.read(hand_on(states))))

    def advance(self, h: Tensor, layer: int, x: Tensor | None = None) -> Tensor:
        """h_{l+1} from h_l."""
        return self._unit(self.blocks[layer], self.read(h))[0]

    def _unit(self, block: nn.Module, h: Tensor) -> tuple[Tensor, Tensor]:
        f = block(h)
        if not isinstance(f, Tensor):
            raise SondeError(f"a block returns a {type(f).__name__}, not a tensor: use sonde.chain")
        if self.branch_scale != 1:
            f = f * self.branch_scale
        return (h + f if self.residual else f), f

    def states(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """h_0 … h_L, and the output."""
        passed = self.run(x)
        return passed.states, passed.output

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        return self.run(x).output

    def check(self, x: Tensor) -> None:
        """Raise unless the units are a chain, tested on a few samples; here they are by construction."""

    def outside(self) -> list[nn.Parameter]:
        """The parameters of embedding and readout."""
        return [*self.embed.parameters(), *self.readout.parameters()]

    def matrices(self) -> list[dict[str, nn.Parameter]]:
        """The weight matrices of every unit by parameter name: all parameters with two axes or more."""
        names = {id(p): name for name, p in self.named_parameters()}
        return [{names[id(p)]: p for p in block.parameters() if p.ndim > 1} for block in self.blocks]

    def name_of(self, layer: int) -> str:
        """The name of unit l in a message."""
        return f"block {layer}"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a network does with a few samples."""

    shapes: list[tuple[int, ...]]  # of one sample's h_0 … h_L
    output_shape: tuple[int, ...]  # of one sample's output
    pooling: Pooling
    draws: bool  # whether it draws random numbers while it trains
    mixes: str | None  # the first unit that mixes samples in eval mode

    def remember(self, net: Network) -> None:
        """Store on the network what its code does not state."""
        net.pooling, net.draws, net.mixes = self.pooling, self.draws, self.mixes
        net.traces = self.draws or any(True for _ in net.buffers())


def survey(net: Network, x: Tensor) -> Survey:
    """Run a copy of the network on the first samples; raise where its states are not of a supported form.

    The network, its mode, its statistics and every generator stay unchanged.  The copy sees two samples, then three:
    a layer that needs several samples never gets one, and the axis of the samples is the one that grows.
    """
    net.check(x)
    twin = frozen_copy(net)
    with preserve_rng(x.device), torch.no_grad():
        few, more = (twin.run(first_samples(x, n)) for n in (2, 3))
        mixes = None
        for layer, (h, larger) in enumerate(zip(few.states, more.states, strict=True)):
            _check_state(net, layer, h, larger)
            if mixes is None and _differ(h, larger[:2]):
                mixes = _producer(net, layer)
        if not (isinstance(few.output, Tensor) and few.output.shape[:1] == (2,)):
            shape = tuple(few.output.shape) if isinstance(few.output, Tensor) else type(few.output).__name__
            raise SondeError(f"the output of two samples is {shape}: its first axis must be the samples")
        shapes = [tuple(h.shape[1:]) for h in few.states]
        pooling = net.pooling or _find_pooling(twin, few.states, first_samples(x, 2))
        before = global_state(x.device)
        twin.train().run(first_samples(x, 3))
        draws = not torch.equal(before, global_state(x.device))
    for layer, shape in enumerate(shapes):
        if not pooling.fits(shape):
            raise SondeError(
                f"pooling {pooling.name!r} is for tokens, but h_{layer} is a map of shape {_text(shape)}: choose flat "
                f"or mean"
            )
    return Survey(shapes=shapes, output_shape=tuple(few.output.shape[1:]), pooling=pooling, draws=draws, mixes=mixes)


def frozen_copy(net: _N) -> _N:
    """A copy in eval mode whose parameters need no gradient."""
    return copy.deepcopy(net).eval().requires_grad_(False)


@contextmanager
def without_side_effects(net: nn.Module, state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Run parts of a network again and leave no trace: buffers are copied, and the global generator is restored.

    Inside, the generator starts from `state` where it is given, so that dropout repeats its random numbers.
    """
    kept = [(module, dict(module._buffers)) for module in net.modules() if module._buffers]
    with preserve_rng(device):
        try:
            for module, buffers in kept:
                for name, value in buffers.items():
                    module._buffers[name] = None if value is None else value.clone()
            if state is not None:
                set_global_state(state, device)
            yield
        finally:
            for module, buffers in kept:
                module._buffers.update(buffers)


def first_samples(x: Tensor, n: int) -> Tensor:
    """The first n samples; a smaller batch is repeated."""
    if not len(x):
        raise SondeError("the sample batch is empty: give at least one input")
    return torch.cat([x[:n]] * -(-n // len(x)))[:n]


def tiled(x: Tensor, copies: int) -> Tensor:
    """Repeat a batch along its first axis."""
    return x if copies == 1 else x.repeat(copies, *[1] * (x.ndim - 1))


def vector_axis(h: Tensor, lead: int = 0) -> int:
    """The axis of a vector: the channels of maps, else the last axis."""
    return 1 + lead if h.ndim - lead == 4 else -1


def _check_state(net: Network, layer: int, h: object, larger: object) -> None:
    """A state is vectors, tokens or maps of floating-point numbers, samples first."""
    where = _producer(net, layer)
    if not isinstance(h, Tensor) or not isinstance(larger, Tensor):
        raise SondeError(f"{where} returns a {type(h).__name__}, not a tensor: use sonde.chain")
    if not h.is_floating_point():
        raise SondeError(f"{where} returns {h.dtype}: a state must be of floating-point numbers")
    if not 2 <= h.ndim <= 4:
        raise SondeError(
            f"{where} returns a state of shape {_text(tuple(h.shape))}: rules and probes know vectors (N×d), tokens "
            f"(N×T×d) and maps (N×C×H×W)"
        )
    if (h.shape[0], larger.shape[0]) != (2, 3) or h.shape[1:] != larger.shape[1:]:
        raise SondeError(
            f"{where} makes a state of shape {_text(tuple(h.shape))} of two samples and {_text(tuple(larger.shape))} "
            f"of three: the first axis, and no other, must be the samples (in torch.nn: batch_first=True)"
        )


def _differ(h: Tensor, again: Tensor) -> bool:
    """Whether two states differ by more than rounding; False where they are not finite."""
    largest = h.abs().max()
    return bool(largest.isfinite()) and bool((h - again).abs().max() > 1e-3 * largest)


def _producer(net: Network, layer: int) -> str:
    """The name of what computes h_l, in a message."""
    return "what embeds the input" if layer == 0 else net.name_of(layer - 1)


def _text(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _find_pooling(net: Network, states: list[Tensor], x: Tensor) -> Pooling:
    """`flat` for vectors and maps; for tokens the first or last where the output depends on it alone, else `mean`."""
    tokens = [layer for layer, h in enumerate(states) if h.ndim == 3]
    if not tokens:
        return FLAT
    with torch.enable_grad():
        h = states[tokens[-1]].detach().requires_grad_()
        output = net.tail(h, tokens[-1], x).output
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        (g,) = torch.autograd.grad((output * weight).sum(), h, materialize_grads=True)
    read_T = (g != 0).any(-1).any(0)
    if read_T[0] and not read_T[1:].any():
        return Pooling("cls")
    return Pooling("last" if read_T[-1] and not read_T[:-1].any() else "mean")
