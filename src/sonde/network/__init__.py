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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sonde.core.errors import SondeError
from sonde.core.generators import global_state, put_back, set_global_state
from sonde.network.pooling import FLAT, Reader, ReaderName


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a task asks of a network: from inputs of this shape to so many outputs."""

    shape: tuple[int, ...]
    outputs: int
    classifies: bool


class ForwardPass(NamedTuple):
    """What a batch became on its way up."""

    states: list[Tensor]  # h_0 … h_L
    branches: list[Tensor]  # what blocks 0 … L−1 returned: what they add to h_l, or h_{l+1} itself
    output: Tensor


# Given the states so far, what is handed on from the last of them to the next unit, or to the readout; it may also
# put another tensor in the last one's place.
HandOn = Callable[[list[Tensor]], Tensor]


def as_it_is(states: list[Tensor]) -> Tensor:
    return states[-1]


def leaf_at(layer: int) -> HandOn:
    """Let h_l be where gradients end."""

    def hand_on(states: list[Tensor]) -> Tensor:
        if len(states) == layer + 1:
            states[-1] = states[-1].detach().requires_grad_()
        return states[-1]

    return hand_on


N = TypeVar("N", bound="Network")


class Network(nn.Module):
    """h_0 = embed(x);  h_{l+1} = h_l + block_l(h_l), or block_l(h_l) where not residual;  readout(h_L)."""

    def __init__(
        self,
        embed: nn.Module,
        blocks: Iterable[nn.Module],
        readout: nn.Module,
        *,
        residual: bool,
        reader: ReaderName | None = None,
    ) -> None:
        super().__init__()
        self.embed = embed
        self.blocks = nn.ModuleList(blocks)
        self.readout = readout
        self.residual = residual
        self.reader = None if reader is None else Reader(reader)  # None: not known before a sample is seen
        self.draws = False  # whether it is known to draw random numbers while it trains, as dropout does
        self.traces = True  # unless it is known that a run leaves neither these nor statistics behind
        self.mixes: str | None = None  # what is known to let samples see each other in eval mode
        self.lead = 0  # axes before the samples: 1 where several replicas are stacked

    @classmethod
    def of(cls, module: nn.Module) -> "Network":
        """The same parts as a `Network`: `embed`, `blocks`, `readout` and, if it says so, `residual` and `reader`."""
        if isinstance(module, Network):
            return module
        missing = [part for part in ("embed", "blocks", "readout") if not hasattr(module, part)]
        if missing:
            raise SondeError(
                f"{type(module).__name__} has no {' and no '.join(missing)}: let sonde.chain find its units"
            )
        residual, reader = bool(getattr(module, "residual", False)), getattr(module, "reader", None)
        return cls(module.embed, module.blocks, module.readout, residual=residual, reader=reader)  # type: ignore[arg-type]

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def run(self, x: Tensor, hand_on: HandOn = as_it_is) -> ForwardPass:
        """All states of a batch; `hand_on` may cut or wrap what goes from each to what comes next."""
        return self.tail(self.embed(x), 0, x, hand_on)

    def tail(self, h: Tensor, layer: int, x: Tensor | None = None, hand_on: HandOn = as_it_is) -> ForwardPass:
        """From h_l to the output, with the states on the way.

        `x` is the batch that h_l comes from, for units and readouts that are told more than the state.  Several copies
        of h_l may stand one after the other.
        """
        states, branches = [h], []
        for block in islice(self.blocks, layer, None):
            h, f = self._unit(block, hand_on(states))
            states.append(h)
            branches.append(f)
        return ForwardPass(states, branches, self.readout(hand_on(states)))

    def advance(self, h: Tensor, layer: int, x: Tensor | None = None) -> Tensor:
        """h_{l+1} from h_l."""
        return self._unit(self.blocks[layer], h)[0]

    def _unit(self, block: nn.Module, h: Tensor) -> tuple[Tensor, Tensor]:
        f = block(h)
        if not isinstance(f, Tensor):
            raise SondeError(f"a block returns a {type(f).__name__}, not a tensor: use sonde.chain")
        return (h + f if self.residual else f), f

    def states(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """h_0 … h_L, and the output."""
        passed = self.run(x)
        return passed.states, passed.output

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x).output

    def check(self, x: Tensor) -> None:
        """Raise unless the network is the chain it is said to be, seen on a few samples."""

    def outside(self) -> list[nn.Parameter]:
        """The parameters of embedding and readout."""
        return [*self.embed.parameters(), *self.readout.parameters()]

    def matrices(self) -> list[dict[str, nn.Parameter]]:
        """The weight matrices of every unit, by the name of the parameter: all that have two axes or more."""
        names = {id(p): name for name, p in self.named_parameters()}
        return [{names[id(p)]: p for p in block.parameters() if p.ndim > 1} for block in self.blocks]

    def name_of(self, layer: int) -> str:
        """What unit l is called in a message."""
        return f"block {layer}"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a network makes of a few samples."""

    shapes: list[tuple[int, ...]]  # of one sample's h_0 … h_L
    output_shape: tuple[int, ...]  # of one sample's output
    reader: Reader
    draws: bool  # whether it draws random numbers while it trains
    mixes: str | None  # the first unit whose state depends on what stands beside a sample, in eval mode

    def remember(self, net: Network) -> None:
        """Let the network know of itself what is not in its code."""
        net.reader, net.draws, net.mixes = self.reader, self.draws, self.mixes
        net.traces = self.draws or any(True for _ in net.buffers())


def survey(net: Network, x: Tensor) -> Survey:
    """Look at what a copy of the network makes of the first samples; refuse what is no chain of states.

    The network, its mode, its statistics and every generator stay as they are.  Two samples and then three are shown:
    a layer that needs several is not given one, and the axis of the samples is the one that grows.
    """
    net.check(x)
    twin = quiet_twin(net)
    with put_back(x.device), torch.no_grad():
        few, more = (twin.run(samples(x, n)) for n in (2, 3))
        mixes = None
        for layer, (h, larger) in enumerate(zip(few.states, more.states, strict=True)):
            _check(net, layer, h, larger)
            if mixes is None and _differ(h, larger[:2]):
                mixes = _producer(net, layer)
        if not (isinstance(few.output, Tensor) and few.output.shape[:1] == (2,)):
            shape = tuple(few.output.shape) if isinstance(few.output, Tensor) else type(few.output).__name__
            raise SondeError(f"the output of two samples is {shape}: its first axis must be the samples")
        shapes = [tuple(h.shape[1:]) for h in few.states]
        reader = net.reader or _find_reader(twin, few.states, samples(x, 2))
        before = global_state(x.device)
        twin.train().run(samples(x, 3))
        draws = not torch.equal(before, global_state(x.device))
    for layer, shape in enumerate(shapes):
        if not reader.fits(shape):
            raise SondeError(
                f"reader {reader.name!r} is for tokens, but h_{layer} is a map of shape {_text(shape)}: choose flat "
                f"or mean"
            )
    return Survey(shapes=shapes, output_shape=tuple(few.output.shape[1:]), reader=reader, draws=draws, mixes=mixes)


def quiet_twin(net: N) -> N:
    """A copy in eval mode whose parameters need no gradient."""
    return copy.deepcopy(net).eval().requires_grad_(False)


@contextmanager
def untraced(net: nn.Module, state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Run parts of a network again, with the random numbers of the first time: nobody can tell afterwards.

    Statistics are gathered in copies; the generator starts from `state`, or from where it is, and is put back.
    """
    kept = [(module, dict(module._buffers)) for module in net.modules() if module._buffers]
    with put_back(device):
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


def samples(x: Tensor, n: int) -> Tensor:
    """The first n samples; where there are fewer, some of them again."""
    if not len(x):
        raise SondeError("the sample batch is empty: give at least one input")
    return torch.cat([x[:n]] * -(-n // len(x)))[:n]


def tiled(x: Tensor, copies: int) -> Tensor:
    """A batch as often as copies of it stand one after the other."""
    return x if copies == 1 else x.repeat(copies, *[1] * (x.ndim - 1))


def vector_axis(h: Tensor, lead: int = 0) -> int:
    """The axis along which a vector lies: of maps the channels, else the last."""
    return 1 + lead if h.ndim - lead == 4 else -1


def _check(net: Network, layer: int, h: object, larger: object) -> None:
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
    """Beyond what rounding explains; of what is not finite nothing is said."""
    largest = h.abs().max()
    return bool(largest.isfinite()) and bool((h - again).abs().max() > 1e-3 * largest)


def _producer(net: Network, layer: int) -> str:
    """What makes h_l, in a message."""
    return "what embeds the input" if layer == 0 else net.name_of(layer - 1)


def _text(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _find_reader(net: Network, states: list[Tensor], x: Tensor) -> Reader:
    """`flat` of vectors and maps; of tokens the first or last where the output depends on it alone, else the mean."""
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
        return Reader("cls")
    return Reader("last" if read_T[-1] and not read_T[:-1].any() else "mean")
