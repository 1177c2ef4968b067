"""Replicas that train together: every parameter of R equal networks in one tensor, one step for all of them.

R replicas, N samples, i inputs, o outputs, d width.
"""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sonde.config import RunConfig
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.network import Network
from sonde.optimisers import Optimiser
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, RuleState
from sonde.rules.rule import Matrices, Nothing
from sonde.training.epoch import Epoch, EpochLog
from sonde.training.optimise import Adam, adam
from sonde.training.program import Program, learning_rate
from sonde.training.step import backward

LANES = 16  # numbers in the widest vector of a processor


def stack_networks(nets: Sequence[Network]) -> Network:
    net = _stacked(nets)
    assert isinstance(net, Network)
    net.lead = 1
    return net


def stack_states(states: Sequence[RuleState]) -> RuleState:
    match states[0]:
        case Nothing():
            return states[0]
        case Matrices():
            columns = zip(*(state.matrices for state in states if isinstance(state, Matrices)), strict=True)
            return Matrices([torch.stack(matrices) for matrices in columns])
        case other:
            raise TypeError(f"a {type(other).__name__} cannot be stacked")


def _stacked(modules: Sequence[nn.Module]) -> nn.Module:
    """The module of which each of these is a replica; their parameters become views of its own."""
    first = modules[0]
    if type(first) in STACKED:
        return STACKED[type(first)](modules)
    if next(first.parameters(recurse=False), None) is not None:
        raise TypeError(f"a {type(first).__name__} cannot be stacked")
    one = copy.copy(first)
    one._modules = {name: _stacked([module._modules[name] for module in modules]) for name in first._modules}  # type: ignore[misc]
    return one


def _laid(part: Tensor) -> Tensor:
    """A replica's parameter as it lies in the stack: W_oi as W_io, b_o as b_1o.

    The batched product reads W_io and its gradient is written without a copy.  Rows are filled up with zeros to
    whole vectors, because arithmetic rounds differently where a replica begins or ends inside one.
    """
    whole = part.T if part.ndim == 2 else part[None]
    return F.pad(whole, (0, -whole.shape[-1] % LANES))


def share(parts: Sequence[Tensor], whole: Tensor) -> list[Tensor]:
    """Copy replicas into the stack, and return a view of it for each."""
    torch.stack([_laid(part) for part in parts], out=whole)
    size = len(parts[0])
    return [view[:, :size].T if parts[0].ndim == 2 else view[0, :size] for view in whole]


def _own(modules: Sequence[nn.Module], name: str) -> nn.Parameter | None:
    """One parameter of all replicas, in one tensor that they share from now on."""
    parts: list[nn.Parameter] = [part for module in modules if (part := getattr(module, name)) is not None]
    if not parts:
        return None
    whole = parts[0].new_empty(len(parts), *_laid(parts[0]).shape)
    for part, view in zip(parts, share([part.detach() for part in parts], whole), strict=True):
        part.data = view
    return nn.Parameter(whole)


class StackedLinear(nn.Module):
    """x Wᵀ + b of every replica."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        first = modules[0]
        assert isinstance(first, nn.Linear)
        self.outputs = first.out_features
        self.weight, self.bias = _own(modules, "weight"), _own(modules, "bias")

    def forward(self, x_RNi: Tensor) -> Tensor:
        assert self.weight is not None
        out = (
            torch.bmm(x_RNi, self.weight)
            if self.bias is None
            else torch.baddbmm(self.bias, x_RNi, self.weight)
        )
        return out if self.outputs == out.shape[-1] else out[..., : self.outputs]


class StackedLayerNorm(nn.Module):
    """LayerNorm with the gain and shift of every replica."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        first = modules[0]
        assert isinstance(first, nn.LayerNorm)
        self.shape, self.eps = list(first.normalized_shape), first.eps
        self.weight, self.bias = _own(modules, "weight"), _own(modules, "bias")

    def forward(self, x_RNd: Tensor) -> Tensor:
        assert self.weight is not None
        assert self.bias is not None
        return torch.addcmul(self.bias, F.layer_norm(x_RNd, self.shape, eps=self.eps), self.weight)


STACKED: dict[type[nn.Module], type[StackedLinear] | type[StackedLayerNorm]] = {
    nn.Linear: StackedLinear,
    nn.LayerNorm: StackedLayerNorm,
}


STACKED_MODELS = (PlainMLP, ResMLP, ResidualMLP, StudentNet)
STACKED_RULES = (Backprop, FeedbackAlignment, DirectFeedback, Frozen)
STACKED_OPTIMISERS = ("adam", "adamw")
WIDEST = 128  # up to this width a stack was measured to be faster: `sonde bench stacking`


def stackable(config: RunConfig) -> bool:
    """Whether runs of this configuration train as a stack.

    A width that fills whole vectors keeps the last bits of a replica free of what stands beside it.
    """
    return (
        isinstance(config.model, STACKED_MODELS)
        and isinstance(config.rule, STACKED_RULES)
        and config.rule.route != "layer"
        and config.model.d <= WIDEST
        and config.model.d % LANES == 0
        and config.precision != "bf16"
        and isinstance(config.optimiser, Optimiser)
        and config.optimiser.name in STACKED_OPTIMISERS
    )


class Stack:
    """Trains programs that differ in nothing but the seed and stand at the same epoch.

    Weights and moments of each program become views of the stacked ones, so that between two epochs a program is
    evaluated, probed and saved as if it were alone.  Each draws its batches from its own data and generator.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.config = programs[0].config
        self.loss = programs[0].loss
        self.net = stack_networks([program.net for program in programs])
        self.state = stack_states([program.credit.state for program in programs])
        names = [name for name, _ in programs[0].net.named_parameters()]
        stacked = dict(self.net.named_parameters())
        self.optimiser = adam(self.config.optimiser, [stacked[name] for name in names])
        self._join([program.optimiser for program in programs if isinstance(program.optimiser, Adam)])

    def _join(self, optimisers: Sequence[Adam]) -> None:
        """Take over the moments; those of the programs become views."""
        self.optimiser.steps.copy_(optimisers[0].steps)
        for mine, theirs in (
            (self.optimiser.first, [optimiser.first for optimiser in optimisers]),
            (self.optimiser.second, [optimiser.second for optimiser in optimisers]),
        ):
            for index, whole in enumerate(mine):
                views = share([moments[index] for moments in theirs], whole)
                for moments, view in zip(theirs, views, strict=True):
                    moments[index] = view
        for optimiser in optimisers:
            optimiser.steps = self.optimiser.steps

    def train_epoch(self, epoch: int, beat: Callable[[], object] = lambda: None) -> list[Epoch]:
        """One epoch of every program; `beat` is called after every step."""
        config = self.config
        lr = learning_rate(config.optimiser, epoch, config.epochs)
        log = EpochLog(self.loss, self.net.lead)
        self.net.train()
        batches = (program.data.batches(config.batch_size, program.order) for program in self.programs)
        for replicas in zip(*batches, strict=True):
            x = torch.stack([x for x, _ in replicas])
            y = x if replicas[0][0] is replicas[0][1] else torch.stack([y for _, y in replicas])
            self.optimiser.zero_grad()
            step = backward(self.net, config.rule, self.state, x, y, self.loss)
            self.optimiser.step(lr)
            log.add(step, y)
            beat()
        return log.read()
