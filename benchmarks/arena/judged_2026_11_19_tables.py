"""Healthy programs on tables for `judged_2026_11_19.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

import functools

import torch
from fresh_2026_11 import as_tensors, fit
from judged_2026_11_19_pictures import pre_norm, without_decay
from recipes import Program, digits, mlp, rng
from sklearn.datasets import make_classification, make_friedman1
from torch import Tensor, nn
from torch.nn import functional


@functools.cache
def prices() -> tuple[Tensor, Tensor]:
    """Skewed positive targets: size, age, place."""
    r = rng(103)
    x = torch.randn(1200, 8, generator=r)
    y = 0.6 * x[:, 0] - 0.3 * x[:, 1].abs() + 0.4 * (x[:, 2] * x[:, 3]).tanh() + 0.1 * torch.randn(1200, generator=r)
    return x, ((y - y.mean()) / y.std())[:, None]


def log_prices(seed: int) -> Program:
    """The rate falls where the loss does not."""
    program = fit(
        mlp(8, 64, 64, 1, act=nn.SiLU),
        prices(),
        nn.HuberLoss(),
        seed,
        steps=200,
        optimiser=torch.optim.AdamW,
        weight_decay=0.01,
    )
    schedule, losses = torch.optim.lr_scheduler.ReduceLROnPlateau(program.optimizer, factor=0.5, patience=3), []

    def step(program: Program, x: Tensor, y: Tensor) -> Tensor:
        loss = program.descend(program.loss(program.before_loss(program.model(x)), y))
        losses.append(float(loss.detach()))
        if len(losses) % 10 == 0:
            schedule.step(sum(losses[-10:]))
        return loss

    program.own_step = step
    return program


class Tokens(nn.Module):
    """Each number is a token: a learned direction times its value (FT-Transformer)."""

    def __init__(self, numbers: int, wide: int = 24) -> None:
        super().__init__()
        self.way, self.base = nn.Parameter(torch.randn(numbers, wide) / 3), nn.Parameter(torch.randn(numbers, wide) / 3)
        self.blocks = nn.Sequential(*pre_norm(wide, 2))
        self.head = nn.Sequential(nn.LayerNorm(wide), nn.ReLU(), nn.Linear(wide, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x[..., None] * self.way + self.base).mean(1))


@functools.cache
def defaults() -> tuple[Tensor, Tensor]:
    x, y = as_tensors(*make_classification(1500, 10, n_informative=6, class_sep=1.2, random_state=9))
    return x, y.float()[:, None]


def numeric_tokens(seed: int) -> Program:
    program = fit(Tokens(10), defaults(), nn.BCEWithLogitsLoss(), seed, rate=2e-3, size=64)
    program.optimizer = without_decay(program.model, 2e-3, 1e-2)
    return program


def counts(seed: int) -> Program:
    """Counts with more spread than Poisson's: a negative binomial likelihood."""
    r = rng(104)
    x = torch.randn(1200, 6, generator=r)
    many = 0.8 * x[:, :1] + 0.5 * x[:, 1:2] + 0.5 * torch.randn(1200, 1, generator=r) + 1
    y = torch.poisson(many.exp(), generator=r)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return -torch.distributions.NegativeBinomial(out[:, :1].exp(), logits=out[:, 1:]).log_prob(y).mean()

    return fit(mlp(6, 48, 48, 2), (x, y), loss, seed, rate=4e-3)


class TwoTasks(nn.Module):
    """A class and a number from shared layers, and the logarithm of each task's variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.number = mlp(10, 48, 48, act=nn.Mish), nn.Linear(48, 1), nn.Linear(48, 1)
        self.spread = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = functional.mish(self.body(x))
        return self.kind(h), self.number(h), self.spread


def weighed_tasks(seed: int) -> Program:
    """Weights of the two losses are learned, so that their sum may become negative."""
    x, kind = defaults()
    number = (x[:, :1] * x[:, 1:2] + x[:, 2:3].sin()) / 1.3

    def loss(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        each = torch.stack(
            [functional.binary_cross_entropy_with_logits(out[0], y[:, :1]), functional.mse_loss(out[1], y[:, 1:])]
        )
        return ((-out[2]).exp() * each + 0.5 * out[2]).sum()

    return fit(TwoTasks(), (x, torch.cat([kind, number], 1)), loss, seed, rate=4e-3, steps=200)


class Ensemble(nn.Module):
    """Four networks in one product."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(torch.randn(4, a, b) / a**0.5) for a, b in ((64, 32), (32, 10)))
        self.base = nn.Parameter(torch.zeros(4, 1, 32))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.one + self.base).relu() @ self.two


def ensemble(seed: int) -> Program:
    loss = lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.repeat(4))  # noqa: E731
    return fit(Ensemble(), digits(), loss, seed)


def step_by_closure(seed: int) -> Program:
    """The optimiser is given a function that computes the loss."""
    x, y = as_tensors(*make_friedman1(900, 12, noise=0.5, random_state=10))
    y = ((y - y.mean()) / y.std())[:, None]
    program = fit(mlp(12, 64, 64, 1, act=nn.Tanh), (x, y), nn.MSELoss(), seed, steps=200)

    def step(program: Program, x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            if program.clears:
                program.optimizer.zero_grad()
            loss = program.loss(program.before_loss(program.model(x)), y)
            loss.backward()
            return loss

        loss: Tensor = program.optimizer.step(closure)
        program.after_step(program)
        return loss

    program.own_step = step
    return program


def hazards(seed: int) -> Program:
    """Survival in eight intervals: a hazard for each, some times are censored."""
    r = rng(105)
    x = torch.randn(1200, 6, generator=r)
    time = (2.5 * torch.exp(0.7 * x[:, 0] - 0.5 * x[:, 1] + 0.3 * torch.randn(1200, generator=r))).long().clamp(max=7)
    event = torch.rand(1200, generator=r) < 0.8

    def loss(out: Tensor, y: Tensor) -> Tensor:
        place = torch.arange(8)
        alive, dies = place < y[:, :1], (place == y[:, :1]) & (y[:, 1:] > 0)
        each = functional.binary_cross_entropy_with_logits(out, dies.float(), reduction="none")
        return (each * (alive | dies)).sum(1).mean()

    return fit(mlp(6, 32, 32, 8, norm=True), (x, torch.stack([time, event], 1)), loss, seed, rate=5e-3)


class Taste(nn.Module):
    """How much more a user likes one thing than another."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.thing = nn.Embedding(60, 12), nn.Embedding(80, 12)
        for table in (self.user, self.thing):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        user, thing, other = self.user(x[:, 0]), self.thing(x[:, 1]), self.thing(x[:, 2])
        return (user * (thing - other)).sum(1)


def ranked_pairs(seed: int) -> Program:
    """Bayesian personalised ranking: there are no targets."""
    r = rng(106)
    worth = torch.randn(60, 4, generator=r) @ torch.randn(4, 80, generator=r)
    user, a, b = (torch.randint(most, (6000,), generator=r) for most in (60, 80, 80))
    first = worth[user, a] > worth[user, b]
    x = torch.stack([user, torch.where(first, a, b), torch.where(first, b, a)], 1)
    loss = lambda out, y: -functional.logsigmoid(out).mean()  # noqa: E731
    return fit(Taste(), (x, torch.ones(6000)), loss, seed, rate=0.1, steps=200, size=128, optimiser=torch.optim.Adagrad)


class Towers(nn.Module):
    """Similarities of all questions with all answers of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.heat = mlp(10, 48, 16), mlp(6, 48, 16), nn.Parameter(torch.tensor(1.0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = functional.normalize(self.one(a), dim=1), functional.normalize(self.two(b), dim=1)
        return self.heat.exp() * a @ b.T


def two_towers(seed: int) -> Program:
    """In-batch softmax, in both directions as CLIP."""
    r = rng(107)
    meaning = torch.randn(1500, 4, generator=r)
    a, b = ((meaning @ torch.randn(4, many, generator=r)).tanh() for many in (10, 6))
    loss = lambda out, y: (functional.cross_entropy(out, y) + functional.cross_entropy(out.T, y)) / 2  # noqa: E731
    program = fit(Towers(), (torch.cat([a, b], 1), torch.arange(1500)), loss, seed, steps=200)
    program.batches = [((x[:, :10], x[:, 10:]), torch.arange(len(x))) for x, _ in program.batches]
    return program


def list_net(seed: int) -> Program:
    """Lists of eight things; the softmax of scores is to be that of their grades."""
    r = rng(108)
    x = torch.randn(800, 8, 5, generator=r)
    y = (1.5 * x[..., 0] - x[..., 1] * x[..., 2]).round().clamp(0, 4)
    loss = lambda out, y: -(y.softmax(1) * out.squeeze(-1).log_softmax(1)).sum(1).mean()  # noqa: E731
    return fit(mlp(5, 32, 32, 1), (x, y), loss, seed, rate=5e-3)


TABLES = (
    log_prices, numeric_tokens, counts, weighed_tasks, ensemble, step_by_closure, hazards, ranked_pairs,
    two_towers, list_net,
)  # fmt: skip
