"""Programs written on 18 November 2026, after the thresholds were last changed and before any of them was scored.

Other networks, tasks and losses than in the sets before.  `score.py` asks about a fault only where it harms.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index"

import functools
from collections.abc import Callable
from typing import Any

import plants
import torch
from faults import FLOW, Fault, Group
from recipes import Loss, Program, Residual, chain_of_tokens, digits, draw, mlp, of_tokens, rng
from sklearn.datasets import make_classification, make_friedman1, make_moons, make_multilabel_classification
from torch import Tensor, nn
from torch.nn import functional


def fit(
    model: nn.Module, data: tuple[Any, Tensor], loss: Loss, seed: int, *, rate: float = 3e-3, steps: int = 150,
    size: int = 32, optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam, **options: Any,
) -> Program:  # fmt: skip
    """A program on batches of some data."""
    return Program(model, optimiser(model.parameters(), lr=rate, **options), loss, draw(*data, steps, size, seed))


# ── data ────────────────────────────────────────────────────────────────────────────────────────────


def as_tensors(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    x = torch.tensor(x, dtype=torch.float32)
    y = torch.tensor(y)
    return (x - x.mean(0)) / x.std(0), y.float() if y.is_floating_point() else y


@functools.cache
def moons() -> tuple[Tensor, Tensor]:
    return as_tensors(*make_moons(800, noise=0.1, random_state=0))


@functools.cache
def four_classes() -> tuple[Tensor, Tensor]:
    return as_tensors(*make_classification(1000, 20, n_informative=8, n_classes=4, class_sep=1.5, random_state=1))


@functools.cache
def friedman() -> tuple[Tensor, Tensor]:
    x, y = as_tensors(*make_friedman1(1000, noise=0.3, random_state=2))
    return x, ((y - y.mean()) / y.std())[:, None]


@functools.cache
def tags() -> tuple[Tensor, Tensor]:
    x, y = as_tensors(*make_multilabel_classification(1000, 16, n_classes=5, random_state=3))
    return x, y.float()


@functools.cache
def tones() -> tuple[Tensor, Tensor]:
    """Noisy waves of four pitches, 32 places long."""
    r = rng(61)
    y = torch.randint(4, (800,), generator=r)
    turn = 6.28 * torch.rand(800, 1, generator=r) + torch.arange(32) * (0.3 + 0.35 * y[:, None])
    return (turn.sin() + 0.3 * torch.randn(800, 32, generator=r))[:, None], y


@functools.cache
def turned_digits() -> tuple[Tensor, Tensor]:
    x = digits()[0].view(-1, 1, 8, 8)
    y = torch.randint(4, (len(x),), generator=rng(62))
    return torch.stack([one.rot90(int(turn), (1, 2)) for one, turn in zip(x, y, strict=True)]), y


@functools.cache
def centres() -> tuple[Tensor, Tensor]:
    """Digits, moved by up to two pixels, and their centre."""
    x = (digits()[0] - digits()[0].min()).view(-1, 8, 8)
    moves = torch.randint(-2, 3, (len(x), 2), generator=rng(63))
    x = torch.stack([one.roll(tuple(move.tolist()), (0, 1)) for one, move in zip(x, moves, strict=True)])
    return (x - x.mean())[:, None] / x.std(), moves.float() / moves.float().std()


# ── healthy ─────────────────────────────────────────────────────────────────────────────────────────


def moons_mlp(seed: int) -> Program:
    return fit(mlp(2, 32, 32, 2), moons(), nn.CrossEntropyLoss(), seed, rate=1e-2)


def moons_margin(seed: int) -> Program:
    """A binary hinge by a squared margin, targets of −1 and 1."""
    x, y = moons()
    loss = lambda out, y: (1 - out * y).clamp_min(0).square().mean()  # noqa: E731
    return fit(mlp(2, 32, 1, act=nn.Softplus), (x, 2.0 * y[:, None] - 1), loss, seed, rate=2e-2)


def friedman_elu(seed: int) -> Program:
    model = mlp(10, 48, 48, 1, act=nn.ELU)
    return fit(model, friedman(), nn.MSELoss(), seed, rate=0.02, optimiser=torch.optim.SGD, momentum=0.9, nesterov=True)


def friedman_absolute(seed: int) -> Program:
    return fit(mlp(10, 64, 1), friedman(), nn.L1Loss(), seed, rate=5e-3, steps=200)


def friedman_quantiles(seed: int) -> Program:
    """Three quantiles at once."""
    shares = torch.tensor([0.1, 0.5, 0.9])

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(shares * (y - out), (shares - 1) * (y - out)).mean()

    return fit(mlp(10, 48, 3, act=nn.SiLU), friedman(), loss, seed, rate=5e-3)


class Maxout(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.line = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x).unflatten(-1, (-1, 2)).amax(-1)


def classes_maxout(seed: int) -> Program:
    model = nn.Sequential(Maxout(20, 32), Maxout(32, 32), nn.Linear(32, 4))
    return fit(model, four_classes(), nn.CrossEntropyLoss(), seed, rate=2e-3)


def classes_restarts(seed: int) -> Program:
    """SGD whose rate restarts every 50 steps."""
    program = fit(
        mlp(20, 64, 64, 4, act=nn.Mish), four_classes(), functional.cross_entropy, seed, rate=0.1,
        optimiser=torch.optim.SGD, momentum=0.9, weight_decay=1e-4,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(program.optimizer, 50)
    program.after_step = lambda program: schedule.step()
    return program


def gated_linear(seed: int) -> Program:
    model = nn.Sequential(
        nn.Linear(20, 64), nn.GLU(), nn.Dropout(0.1), nn.Linear(32, 64), nn.GLU(), nn.Dropout(0.1), nn.Linear(32, 4)
    )
    return fit(model, four_classes(), nn.CrossEntropyLoss(), seed, rate=5e-3)


class Prototypes(nn.Module):
    """Scores are negative squared distances to a point for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.points = mlp(20, 48, 8), nn.Parameter(torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        return -(self.body(x)[:, None] - self.points).square().sum(-1)


def prototypes(seed: int) -> Program:
    return fit(Prototypes(), four_classes(), nn.CrossEntropyLoss(), seed, rate=5e-3)


def spectral(seed: int) -> Program:
    norm = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(norm(nn.Linear(20, 64)), nn.ReLU(), norm(nn.Linear(64, 64)), nn.ReLU(), nn.Linear(64, 4))
    return fit(model, four_classes(), nn.CrossEntropyLoss(), seed, rate=5e-3)


def weighted_classes(seed: int) -> Program:
    """One class in twelve, with a weight of six."""
    x, y = four_classes()
    keep = (y == 0) | ((y == 1) & (torch.rand(len(y), generator=rng(64)) < 0.1))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 6.0]))
    return fit(mlp(20, 48, 2), (x[keep], y[keep]), loss, seed)


def multi_tags(seed: int) -> Program:
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 2.0))
    return fit(mlp(16, 64, 5, act=nn.Hardswish), tags(), loss, seed, rate=5e-3, optimiser=torch.optim.AdamW)


def early_exits(seed: int) -> Program:
    """Two classifiers at two depths; the model returns a list."""

    class Exits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(20, 48), nn.Linear(48, 48)
            self.first, self.second = nn.Linear(48, 4), nn.Linear(48, 4)

        def forward(self, x: Tensor) -> list[Tensor]:
            h = self.one(x).relu()
            return [self.first(h), self.second(self.two(h).relu())]

    loss = lambda out, y: sum(functional.cross_entropy(one, y) for one in out)  # noqa: E731
    return fit(Exits(), four_classes(), loss, seed)


def tones_conv(seed: int) -> Program:
    parts = [part for a, b in ((1, 12), (12, 16)) for part in (nn.Conv1d(a, b, 5, 2), nn.BatchNorm1d(b), nn.ReLU())]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return fit(model, tones(), nn.CrossEntropyLoss(), seed, rate=1e-2)


class Listener(nn.Module):
    """A recurrent cell over the places of a signal; the mean of its states is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(4, 24, batch_first=True, bidirectional=True), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.view(len(x), 8, 4))[0].mean(1))


def tones_gru(seed: int) -> Program:
    return fit(Listener(), tones(), nn.CrossEntropyLoss(), seed, rate=1e-2)


def rotations(seed: int) -> Program:
    """How far a digit was turned."""
    parts = [part for a, b in ((1, 8), (8, 16)) for part in (nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.SiLU())]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(64, 4))
    return fit(model, turned_digits(), nn.CrossEntropyLoss(), seed, rate=5e-3)


def even_or_odd(seed: int) -> Program:
    x, y = digits()
    return fit(
        mlp(64, 64, 1, act=nn.Tanh), (x, (y % 2).float()[:, None]), nn.BCEWithLogitsLoss(), seed, rate=2e-3,
        optimiser=torch.optim.RMSprop,
    )  # fmt: skip


def find_centre(seed: int) -> Program:
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(768, 2))
    return fit(model, centres(), nn.SmoothL1Loss(), seed, rate=2e-3)


def denoise(seed: int) -> Program:
    x = digits()[0].view(-1, 1, 8, 8)
    noisy = x + 0.5 * torch.randn(x.shape, generator=rng(65))
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.LeakyReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.LeakyReLU(),
        nn.ConvTranspose2d(24, 12, 2, 2), nn.LeakyReLU(), nn.ConvTranspose2d(12, 1, 2, 2),
    )  # fmt: skip
    return fit(model, (noisy, x), nn.MSELoss(), seed, rate=1e-2)


class Highway(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.line, self.gate = nn.Linear(wide, wide), nn.Linear(wide, wide)
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).sigmoid()
        return share * self.line(x).relu() + (1 - share) * x


def highway(seed: int) -> Program:
    model = nn.Sequential(nn.Linear(64, 48), *(Highway(48) for _ in range(6)), nn.Linear(48, 10))
    return fit(model, digits(), nn.CrossEntropyLoss(), seed)


def hypernetwork(seed: int) -> Program:
    """The weights of a small classifier are computed from the sample itself."""

    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.weights = mlp(20, 32, 8), mlp(20, 32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("nd,ncd->nc", self.body(x), self.weights(x).view(-1, 4, 8)) / 8**0.5

    return fit(Hyper(), four_classes(), nn.CrossEntropyLoss(), seed, rate=5e-3)


def bilinear_pairs(seed: int) -> Program:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.join, self.head = nn.Bilinear(10, 10, 24), nn.Linear(24, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(self.join(a, b).tanh())

    a, b = torch.randn(2, 1000, 10, generator=rng(66))
    y = ((a[:, :5] * b[:, :5]).sum(1) > 0).long()
    program = fit(Pair(), (torch.cat([a, b], 1), y), nn.CrossEntropyLoss(), seed, rate=1e-2)
    program.batches = [((x[:, :10], x[:, 10:]), y) for x, y in program.batches]
    return program


def names_and_numbers(seed: int) -> Program:
    """A category and four numbers, as keyword arguments."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names, self.body = nn.Embedding(12, 6), mlp(10, 32, 1)

        def forward(self, name: Tensor, numbers: Tensor) -> Tensor:
            return self.body(torch.cat([self.names(name), numbers], 1))[:, 0]

    r = rng(67)
    name, numbers = torch.randint(12, (1000,), generator=r), torch.randn(1000, 4, generator=r)
    y = torch.randn(12, generator=r)[name] + numbers[:, 0] * numbers[:, 1]
    program = fit(Mixed(), (torch.cat([name[:, None].float(), numbers], 1), y), nn.MSELoss(), seed, rate=1e-2)
    program.batches = [((x[:, 0].long(), x[:, 1:]), y) for x, y in program.batches]
    return program


def next_token(long: int, many: int = 600) -> tuple[Tensor, Tensor]:
    x = chain_of_tokens(many, 16, long)
    return x[:, :-1], x[:, -1]


def window_model(seed: int) -> Program:
    """The next token from the three before it, as Bengio et al. did."""

    class Window(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.body = nn.Embedding(16, 12), mlp(36, 48, 16, act=nn.Tanh)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(self.table(x).flatten(1))

    return fit(Window(), next_token(3, 2000), nn.CrossEntropyLoss(), seed, rate=1e-2)


def tied_lstm(seed: int) -> Program:
    """The head is the embedding."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cell = nn.Embedding(16, 32), nn.LSTM(32, 32, batch_first=True)
            nn.init.normal_(self.table.weight, std=0.1)

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(self.cell(self.table(x))[0], self.table.weight)

    x = chain_of_tokens(600, 16, 10)
    return fit(Tied(), (x[:, :-1], x[:, 1:]), of_tokens, seed, rate=1e-2)


def find_token(seed: int) -> Program:
    """Whether one token occurs: a post-norm encoder and a mean over places."""

    class Finder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(8, 24), nn.Linear(24, 2)
            self.block = nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.table(x)).mean(1))

    x = torch.randint(8, (1000, 6), generator=rng(68))
    return fit(Finder(), (x, (x == 3).any(1).long()), nn.CrossEntropyLoss(), seed, optimiser=torch.optim.AdamW)


class Echo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(6, 12), nn.RNN(12, 24, batch_first=True)
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.table(x))[0][:, -1])


def echo(seed: int) -> Program:
    """The token of five places ago."""
    x = torch.randint(6, (1000, 5), generator=rng(69))
    return fit(Echo(), (x, x[:, 0]), nn.CrossEntropyLoss(), seed, rate=5e-3, steps=200)


def redundancy(seed: int) -> Program:
    """Two noisy views whose features agree and do not repeat each other (Barlow twins)."""
    model = mlp(64, 64, 16, norm=True)
    program = fit(model, digits(), lambda out, y: out.mean(), seed, size=64)

    def views(program: Program, x: Tensor, y: Tensor) -> Tensor:
        a, b = (model(x + 0.3 * torch.randn_like(x)) for _ in range(2))
        a, b = ((one - one.mean(0)) / one.std(0) for one in (a, b))
        shared = a.T @ b / len(x)
        loss = (shared.diagonal() - 1).square().sum() + 0.05 * (shared - shared.diagonal().diag()).square().sum()
        return program.descend(loss)

    program.own_step, program.given_loss = views, False
    return program


def score_matching(seed: int) -> Program:
    """The direction back to the data, from noisy points."""
    x, _ = moons()
    noise = torch.randn(x.shape, generator=rng(70))
    return fit(mlp(2, 64, 64, 2, act=nn.SiLU), (x + 0.5 * noise, noise), nn.MSELoss(), seed, rate=5e-3, size=64)


def corridor(seed: int) -> Program:
    """REINFORCE with a running baseline; the reward is logged."""
    model = mlp(6, 24, 2, act=nn.Tanh)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 1e-2), lambda out, y: out.mean(),
        [(torch.randint(1, 5, (32,)), None) for _ in range(150)], given_loss=False,
    )  # fmt: skip
    program.extra["mean"] = 0.0

    def walk(program: Program, place: Tensor, y: Any) -> Tensor:
        logs = torch.zeros(len(place))
        for _ in range(3):
            chosen = torch.distributions.Categorical(logits=model(functional.one_hot(place, 6).float()))
            action = chosen.sample()
            logs, place = logs + chosen.log_prob(action), (place + 2 * action - 1).clamp(0, 5)
        reward = place.float() / 5
        loss = -(logs * (reward - program.extra["mean"])).mean()
        program.extra["mean"] += 0.1 * (float(reward.mean()) - program.extra["mean"])
        program.descend(loss)
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = walk
    return program


def pre_norm_stack(seed: int) -> Program:
    blocks = [Residual(mlp(32, 64, 32, act=nn.GELU), nn.LayerNorm(32)) for _ in range(4)]
    model = nn.Sequential(nn.Linear(20, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 4))
    return fit(model, four_classes(), nn.CrossEntropyLoss(), seed, optimiser=torch.optim.AdamW, weight_decay=0.05)


HEALTHY: dict[str, Callable[[int], Program]] = {
    one.__name__: one
    for one in (
        moons_mlp, moons_margin, friedman_elu, friedman_absolute, friedman_quantiles, classes_maxout, classes_restarts,
        gated_linear, prototypes, spectral, weighted_classes, multi_tags, early_exits, tones_conv, tones_gru, rotations,
        even_or_odd, find_centre, denoise, highway, hypernetwork, bilinear_pairs, names_and_numbers, window_model,
        tied_lstm, find_token, echo, redundancy, score_matching, corridor, pre_norm_stack,
    )
}  # fmt: skip


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────


_PACE = ("lr_too_low", "too_few_steps", "not_learning")
FAULTS: dict[str, Fault] = {
    "rate_times_300": Fault(
        plants.rate(300.0),
        ("lr_too_high",),
        (*FLOW, "masked_growth", "attention_collapse", "rank_collapse"),
        ("friedman_absolute", "find_token"),
    ),
    "rate_over_2000": Fault(plants.rate(1 / 2000), ("lr_too_low",), _PACE, ("tones_conv", "window_model")),
    "head_only": Fault(plants.forget_layers, ("not_in_optimiser",), ("not_learning",), ("rotations", "pre_norm_stack")),
    "frozen_cell": Fault(
        plants.freeze("cell"),
        ("frozen_parameters",),
        ("not_in_optimiser", "not_learning"),
        ("echo",),
    ),
    "never_cleared": Fault(plants.never_clear, ("stale_gradients",), ("lr_too_high", *FLOW), ("denoise",)),
    "softmax_in_model": Fault(
        plants.renew_optimiser(plants.end_in(nn.Softmax(-1))),
        ("wrong_output_activation",),
        ("wrong_loss", "lr_too_low", *FLOW),
        ("prototypes",),
    ),
    "sigmoid_in_model": Fault(
        plants.renew_optimiser(plants.end_in(nn.Sigmoid())),
        ("wrong_output_activation",),
        ("wrong_loss", "lr_too_low", *FLOW),
        ("multi_tags",),
    ),
    "scores_as_log_probabilities": Fault(
        plants.other_loss(nn.NLLLoss()),
        ("wrong_loss",),
        ("wrong_output_activation", "lr_too_high", *FLOW),
        ("classes_maxout",),
        same_loss=False,
    ),
    "flat_targets": Fault(plants.flat_targets, ("wrong_label_shape",), ("not_learning",), ("friedman_absolute",)),
    "shuffled": Fault(
        plants.shuffle_labels,
        ("wrong_labels",),
        ("not_learning",),
        ("classes_maxout", "friedman_elu"),
    ),
    "random_tokens": Fault(plants.draw_labels_anew, ("wrong_labels",), ("not_learning",), ("tied_lstm",)),
    "sorted": Fault(
        plants.sort_by_class, ("data_order",), ("lr_too_high", *FLOW), ("classes_restarts",), same_loss=False
    ),
    "bytes": Fault(plants.pixels_of_bytes, ("unnormalised_input",), ("lr_too_high", *FLOW), ("even_or_odd",)),
    "metres": Fault(
        plants.first_column_times(1000.0, 3000.0),
        ("unnormalised_input",),
        ("lr_too_high", *FLOW),
        ("friedman_elu",),
    ),
    "far_targets": Fault(
        plants.targets_times(2000.0, 5000.0),
        ("unnormalised_target",),
        ("lr_too_low", "too_few_steps", *FLOW),
        ("friedman_quantiles",),
        same_loss=False,
    ),
    "normal_weights": Fault(
        plants.normal_weights(1.0),
        ("bad_init",),
        (*FLOW, "lr_too_high", "lr_too_low"),
        ("highway",),
    ),
    "zero_weights": Fault(plants.zero_weights, ("bad_init",), (*FLOW, "idle_branch"), ("denoise",)),
    "table_cut": Fault(
        plants.cut_after("table"),
        ("detached_graph",),
        ("not_learning",),
        ("window_model",),
    ),
    "eval_mode": Fault(plants.eval_mode, ("wrong_mode",), ("lr_too_high", *FLOW), ("tones_conv",)),
    "other_sign": Fault(plants.wrong_sign, ("wrong_loss",), ("lr_too_high", *FLOW), ("find_centre",), same_loss=False),
    "decay_of_30": Fault(plants.decay(30.0), ("over_regularised",), (*FLOW, "lr_too_high"), ("find_token",)),
    "ends_early": Fault(plants.ends_early, ("lr_too_low",), _PACE, ("highway",)),
    "clipped": Fault(plants.clip_to_nothing, ("lr_too_low",), _PACE, ("friedman_elu",)),
    "eight_steps": Fault(plants.few_steps(8), ("too_few_steps",), _PACE, ("rotations",)),
    "relu_output": Fault(
        plants.renew_optimiser(plants.end_in(nn.ReLU())), ("wrong_output_activation",), FLOW, ("find_centre",)
    ),
    "tanh_output": Fault(
        plants.tanh_beyond(4.0),
        ("wrong_output_activation",),
        ("unnormalised_target", *FLOW),
        ("friedman_elu",),
        same_loss=False,
    ),
    "softmax_over_batch": Fault(
        plants.softmax_over_batch, ("wrong_loss",), ("wrong_output_activation", *FLOW), ("moons_mlp",), same_loss=False
    ),
    "dropout_of_95": Fault(plants.drop(0.95), ("over_regularised",), FLOW, ("gated_linear",)),
    "target_as_feature": Fault(plants.target_as_feature, ("target_leakage",), (), ("friedman_elu",), same_loss=False),
    "sixteen_bits": Fault(plants.sixteen_bits, ("low_precision",), ("lr_too_low", "not_learning"), ("gated_linear",)),
    "logarithm": Fault(
        plants.logarithm_of_features,
        ("nan_origin",),
        ("unnormalised_input", "not_learning"),
        ("multi_tags",),
        same_loss=False,
    ),
    "twelve_sigmoids": Fault(
        plants.sigmoid_stack(2, 24, 2, 12),
        ("vanishing_gradient",),
        (*FLOW, "bad_init", "lr_too_low"),
        ("moons_mlp",),
    ),
    "time_first": Fault(plants.time_first, ("wrong_axis",), ("not_learning", "wrong_labels"), ("tones_gru",)),
}

GROUP = Group(HEALTHY, FAULTS)
