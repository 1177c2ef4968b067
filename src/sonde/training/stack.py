"""Stacks: runs that differ only in the seed, trained together with one step for all."""

from collections.abc import Callable, Sequence

import torch

from sonde.config import RunConfig
from sonde.core.optimisers import Optimiser
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, RuleState
from sonde.rules.rule import Nothing
from sonde.rules.states import Matrices
from sonde.training.backward_by_hand import has_fixed_blocks, step_of
from sonde.training.kernels import LANES, share, stack_networks
from sonde.training.optimise import Adam, adam
from sonde.training.program import Epoch, EpochLog, Program, learning_rate


def stack_states(states: Sequence[RuleState]) -> RuleState:
    """The states of a rule for R replicas as one state."""
    match states[0]:
        case Nothing():
            return states[0]
        case Matrices():
            columns = zip(*(state.matrices for state in states if isinstance(state, Matrices)), strict=True)
            return Matrices([torch.stack(matrices) for matrices in columns])
        case other:
            raise TypeError(f"a {type(other).__name__} cannot be stacked")


STACKED_MODELS = (PlainMLP, ResMLP, ResidualMLP, StudentNet)
STACKED_RULES = (Backprop, FeedbackAlignment, DirectFeedback, Frozen)
STACKED_OPTIMISERS = ("adam", "adamw")
STACKED_LOSSES = (CROSS_ENTROPY, MEAN_SQUARED_ERROR)
"""The losses that keep replicas apart.  The loss of a task is known only once its data are loaded."""
WIDEST_STACKED = 128  # up to this width a stack is faster, as measured by `sonde bench stacking`


def stackable(config: RunConfig) -> bool:
    """Whether runs of this configuration train as a stack.

    The width must fill whole SIMD vectors: then the last bits of a replica do not depend on the others.  Subclasses are
    excluded, because they may compute something else.
    """
    return (
        type(config.model) in STACKED_MODELS
        and not has_fixed_blocks(config)
        and type(config.rule) in STACKED_RULES
        and config.rule.route != "layer"
        and config.model.d <= WIDEST_STACKED
        and config.model.d % LANES == 0
        and config.precision != "bf16"
        and isinstance(config.optimiser, Optimiser)
        and config.optimiser.name in STACKED_OPTIMISERS
    )


class Stack:
    """Trains programs that differ only in the seed and are at the same epoch.

    Weights and moments of each program become views of the stacked tensors.  So between two epochs each program is
    evaluated, probed and saved as if it were alone.  Each draws batches from its own data and generator.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        self.programs = programs
        self.config = programs[0].config
        self.loss = programs[0].loss
        self.net = stack_networks([program.net for program in programs])
        self.state = stack_states([program.credit.state for program in programs])
        self.backward = step_of(self.config, self.net, self.state, self.loss)
        names = [name for name, _ in programs[0].net.named_parameters()]
        stacked = dict(self.net.named_parameters())
        self.optimiser = adam(self.config.optimiser, [stacked[name] for name in names])
        self._join([program.optimiser for program in programs if isinstance(program.optimiser, Adam)])

    def _join(self, optimisers: Sequence[Adam]) -> None:
        """Copy the moments into the stack; those of the programs become views."""
        self.optimiser.steps.copy_(optimisers[0].steps)
        for stacked, replicas in (
            (self.optimiser.first, [optimiser.first for optimiser in optimisers]),
            (self.optimiser.second, [optimiser.second for optimiser in optimisers]),
        ):
            for index, whole in enumerate(stacked):
                views = share([moments[index] for moments in replicas], whole)
                for moments, view in zip(replicas, views, strict=True):
                    moments[index] = view
        for optimiser in optimisers:
            optimiser.steps = self.optimiser.steps

    def train_epoch(self, epoch: int, on_step: Callable[[], object] = lambda: None) -> list[Epoch]:
        """Train one epoch of every program; `on_step` is called after every step."""
        config = self.config
        lr = learning_rate(config.optimiser, epoch, config.epochs)
        log = EpochLog(self.loss, self.net.lead)
        self.net.train()
        batches = (program.data.batches(config.batch_size, program.order) for program in self.programs)
        for replicas in zip(*batches, strict=True):
            x = torch.stack([x for x, _ in replicas])
            y = x if replicas[0][0] is replicas[0][1] else torch.stack([y for _, y in replicas])
            step = self.backward(x, y)
            self.optimiser.step(lr)
            log.add(step, y)
            on_step()
        return log.read()
