"""Replicas that train together: one step for all of them."""

from collections.abc import Callable, Sequence

import torch

from sonde.config import RunConfig
from sonde.core.optimisers import Optimiser
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from sonde.rules import Backprop, DirectFeedback, FeedbackAlignment, Frozen, RuleState
from sonde.rules.rule import Nothing
from sonde.rules.states import Matrices
from sonde.training.backward_by_hand import step_of
from sonde.training.epoch import Epoch, EpochLog
from sonde.training.optimise import Adam, adam
from sonde.training.program import Program, learning_rate
from sonde.training.stacked_layers import LANES, share, stack_networks


def stack_states(states: Sequence[RuleState]) -> RuleState:
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
"""Those that keep the replicas apart; which loss a task has is known when its data are there."""
WIDEST = 128  # up to this width a stack was measured to be faster: `sonde bench stacking`


def stackable(config: RunConfig) -> bool:
    """Whether runs of this configuration train as a stack.

    A width that fills whole vectors keeps the last bits of a replica free of what stands beside it.  A class that
    derives from one of these may compute something else.
    """
    return (
        type(config.model) in STACKED_MODELS
        and type(config.rule) in STACKED_RULES
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
        self.backward = step_of(self.config, self.net, self.state, self.loss)
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
            step = self.backward(x, y)
            self.optimiser.step(lr)
            log.add(step, y)
            beat()
        return log.read()
