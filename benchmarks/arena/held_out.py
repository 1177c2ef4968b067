"""Programs that were held out until thresholds changed after their scoring; they count as development since.

Other recipes than those of `recipes.py`, and faults in new places; the names of faults are the same.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item"

import math
from collections.abc import Callable
from typing import Any

import plants
import torch
from faults import FLOW, Fault, Group
from recipes import Program, Residual, digits, draw, mlp, of_digits
from torch import Tensor, nn
from torch.nn import functional

# ── healthy recipes ─────────────────────────────────────────────────────────────────────────────────


def wide_gelu_adamw(seed: int) -> Program:
    program = of_digits(mlp(64, 192, 192, 10, act=nn.GELU), seed)
    program.optimizer = torch.optim.AdamW(program.model.parameters(), 1e-3, weight_decay=0.1)
    return program


def one_cycle(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 64, 10, norm=True), seed)
    program.optimizer = torch.optim.SGD(program.model.parameters(), 0.02, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(program.optimizer, 0.2, total_steps=201)
    program.after_step = lambda program: cycle.step()
    return program


def smoothed_labels(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 10), seed)
    program.loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return program


def focal(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 10), seed)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        log_p = out.log_softmax(-1).gather(1, y[:, None])[:, 0]
        return -((1 - log_p.exp()) ** 2 * log_p).mean()

    program.loss = loss
    return program


def hinge(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 10), seed)
    program.loss = nn.MultiMarginLoss()
    return program


def depthwise(seed: int) -> Program:
    def block(wide: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), nn.Conv2d(wide, wide, 1), nn.GELU()
        )

    model = nn.Sequential(
        nn.Conv2d(1, 16, 2, stride=2), nn.GELU(), Residual(block(16)), Residual(block(16)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    return of_digits(model, seed, flat=False, rate=5e-3, steps=250)


def mixer(seed: int) -> Program:
    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.across, self.along = mlp(16, 32, 16, act=nn.GELU), mlp(24, 48, 24, act=nn.GELU)
            self.one, self.two = nn.LayerNorm(24), nn.LayerNorm(24)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.across(self.one(x).transpose(1, 2)).transpose(1, 2)
            out: Tensor = x + self.along(self.two(x))
            return out

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Linear(4, 24), nn.Sequential(Mix(), Mix())
            self.head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 10))

        def forward(self, x: Tensor) -> Tensor:
            patches = functional.unfold(x, 2, stride=2).transpose(1, 2)
            out: Tensor = self.head(self.blocks(self.embed(patches)).mean(1))
            return out

    return of_digits(Mixer(), seed, flat=False, rate=3e-3)


def set_attention(seed: int) -> Program:
    """The largest of eight numbers in a set, by attention to a learned query."""

    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = mlp(1, 32, 32)
            self.query = nn.Parameter(0.1 * torch.randn(1, 1, 32))
            self.attend, self.head = nn.MultiheadAttention(32, 2, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            pooled, _ = self.attend(self.query.expand(len(x), -1, -1), h, h)
            out: Tensor = self.head(pooled[:, 0])
            return out

    rng = torch.Generator().manual_seed(21)
    x = torch.randn(800, 8, 1, generator=rng)
    model = Pool()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, optimiser, nn.MSELoss(), draw(x, x.amax(1), 300, 64, seed))


def dilated(seed: int) -> Program:
    rng = torch.Generator().manual_seed(22)
    x = torch.randn(800, 1, 24, generator=rng)
    y = (x[:, 0, :12].sum(1) > x[:, 0, 12:].sum(1)).long()
    parts = [
        part
        for place, wide in enumerate((1, 12, 12))
        for part in (nn.Conv1d(wide, 12, 3, padding=2**place, dilation=2**place), nn.ReLU())
    ]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(12 * 24, 2))
    return Program(model, torch.optim.Adam(model.parameters(), 2e-3), nn.CrossEntropyLoss(), draw(x, y, 200, 64, seed))


def bag_of_words(seed: int) -> Program:
    rng = torch.Generator().manual_seed(23)
    x = torch.randint(60, (800, 10), generator=rng)
    score = torch.randn(60, generator=rng)
    y = (score[x].sum(1) > 0).float()[:, None]
    model = nn.Sequential(nn.EmbeddingBag(60, 16), nn.Linear(16, 1))
    optimiser = torch.optim.Adam(model.parameters(), 2e-2)
    return Program(model, optimiser, nn.BCEWithLogitsLoss(), draw(x, y, 250, 64, seed))


def factorised(seed: int) -> Program:
    """Ratings as products of two embeddings."""

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(50, 8)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.3)

        def forward(self, pair: Tensor) -> Tensor:
            return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(-1)

    rng = torch.Generator().manual_seed(24)
    left, right = torch.randn(40, 3, generator=rng), torch.randn(50, 3, generator=rng)
    pairs = torch.stack([torch.randint(40, (2000,), generator=rng), torch.randint(50, (2000,), generator=rng)], 1)
    y = (left[pairs[:, 0]] * right[pairs[:, 1]]).sum(-1)
    model = Factors()
    return Program(model, torch.optim.Adam(model.parameters(), 2e-2), nn.MSELoss(), draw(pairs, y, 300, 128, seed))


def gaussian_likelihood(seed: int) -> Program:
    rng = torch.Generator().manual_seed(25)
    x = 2 * torch.rand(800, 1, generator=rng) - 1
    y = torch.sin(4 * x) + 0.3 * x.abs() * torch.randn(800, 1, generator=rng)
    model = mlp(1, 48, 48, 2, act=nn.Tanh)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.gaussian_nll_loss(out[:, :1], y, functional.softplus(out[:, 1:]) + 1e-3)

    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), loss, draw(x, y, 300, 64, seed))


def poisson(seed: int) -> Program:
    rng = torch.Generator().manual_seed(26)
    x = torch.randn(800, 5, generator=rng)
    y = torch.poisson((1 + x[:, :2].sum(1, keepdim=True)).clamp(-2, 3).exp(), generator=rng)
    model = mlp(5, 32, 1)
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), nn.PoissonNLLLoss(), draw(x, y, 250, 64, seed))


def quantile(seed: int) -> Program:
    rng = torch.Generator().manual_seed(27)
    x = torch.randn(800, 3, generator=rng)
    y = x.sum(1, keepdim=True) + torch.randn(800, 1, generator=rng) * 0.3
    model = mlp(3, 32, 1)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        left = y - out
        return torch.maximum(0.9 * left, -0.1 * left).mean()

    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), loss, draw(x, y, 250, 64, seed))


def distilled(seed: int) -> Program:
    """The answers of a trained teacher, by divergence."""
    teacher = of_digits(mlp(64, 64, 10), seed + 70)
    for x, y in teacher.batches:
        teacher.step(x, y)
    program = of_digits(mlp(64, 24, 10), seed, rate=5e-3)
    with torch.no_grad():
        program.batches = [(x, teacher.model(x).div(2).softmax(-1)) for x, _ in program.batches]
    program.loss = lambda out, y: functional.kl_div(out.div(2).log_softmax(-1), y, reduction="batchmean")
    return program


def mixed_up(seed: int) -> Program:
    program = of_digits(mlp(64, 96, 10), seed)
    rng = torch.Generator().manual_seed(seed)
    made = []
    for x, y in program.batches:
        share, order = float(torch.rand((), generator=rng)), torch.randperm(len(y), generator=rng)
        soft = functional.one_hot(y, 10).float()
        made.append((share * x + (1 - share) * x[order], share * soft + (1 - share) * soft[order]))
    program.batches = made
    return program


def triplets(seed: int) -> Program:
    x, y = digits()
    rng = torch.Generator().manual_seed(28)
    by_class = [x[y == digit] for digit in range(10)]
    batches = []
    for _ in range(200):
        digit = torch.randint(10, (48,), generator=rng)
        other = (digit + torch.randint(1, 10, (48,), generator=rng)) % 10
        pick = [
            torch.stack([by_class[d][torch.randint(len(by_class[d]), (), generator=rng)] for d in which])
            for which in (digit, digit, other)
        ]
        batches.append((torch.cat(pick), digit.repeat(3)))
    model = mlp(64, 64, 16)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.triplet_margin_loss(*out.chunk(3))

    return Program(model, torch.optim.Adam(model.parameters(), 1e-3), loss, batches)


def siren(seed: int) -> Program:
    class Sine(nn.Module):
        def __init__(self, inputs: int, outputs: int, reach: float) -> None:
            super().__init__()
            self.line = nn.Linear(inputs, outputs)
            nn.init.uniform_(self.line.weight, -reach, reach)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(10 * self.line(x))

    x = torch.linspace(-1, 1, 400)[:, None]
    y = torch.sin(12 * x) * torch.exp(-x * x)
    reach = math.sqrt(6 / 48) / 10
    model = nn.Sequential(Sine(1, 48, 1.0), Sine(48, 48, reach), nn.Linear(48, 1))
    return Program(model, torch.optim.Adam(model.parameters(), 1e-3), nn.MSELoss(), draw(x, y, 300, 64, seed))


def flow(seed: int) -> Program:
    """Two affine couplings; the loss is a negative log-likelihood and may fall below zero."""

    class Coupling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nets = nn.ModuleList(mlp(1, 32, 2, act=nn.Tanh) for _ in range(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            logs = torch.zeros(len(x))
            for place, net in enumerate(self.nets):
                a, b = (x[:, :1], x[:, 1:]) if place % 2 else (x[:, 1:], x[:, :1])
                scale, shift = net(a).chunk(2, -1)
                b = b * scale.tanh().exp() + shift
                logs = logs + scale.tanh()[:, 0]
                x = torch.cat([a, b], 1) if place % 2 else torch.cat([b, a], 1)
            return x, logs

    rng = torch.Generator().manual_seed(29)
    z = torch.randn(1000, 2, generator=rng)
    x = torch.stack([z[:, 0], 0.5 * z[:, 0] ** 2 + 0.2 * z[:, 1]], 1)
    model = Coupling()

    def loss(out: tuple[Tensor, Tensor], y: Any) -> Tensor:
        return (0.5 * out[0].square().sum(1) - out[1]).mean()

    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), loss, draw(x, x, 250, 128, seed))


def least_squares_gan(seed: int) -> Program:
    model, other = mlp(1, 32, 1), mlp(4, 32, 1)
    second = torch.optim.Adam(other.parameters(), 1e-3)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 1e-3), nn.MSELoss(),
        [(2 + 0.5 * torch.randn(64, 1), torch.ones(64, 1)) for _ in range(200)],
    )  # fmt: skip

    def play(program: Program, x: Tensor, y: Tensor) -> Tensor:
        made = other(torch.randn(len(x), 4))
        loss = program.loss(model(x), y) + program.loss(model(made.detach()), 0 * y)
        program.descend(loss)
        second.zero_grad()
        program.loss(model(made), y).backward()
        second.step()
        return loss.detach()

    program.own_step = play
    return program


def actor_critic(seed: int) -> Program:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.actor, self.critic = nn.Linear(4, 32), nn.Linear(32, 3), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.body(x).relu()
            return self.actor(h), self.critic(h)

    model, teacher = Both(), torch.randn(4, 3)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 1e-2), lambda out, y: out[0].mean(),
        [(torch.randn(32, 4), None) for _ in range(250)], given_loss=False,
    )  # fmt: skip

    def act(program: Program, x: Tensor, y: Any) -> Tensor:
        scores, value = model(x)
        chosen = torch.distributions.Categorical(logits=scores)
        action = chosen.sample()
        reward = (action == (x @ teacher).argmax(1)).float()
        ahead = reward - value[:, 0]
        loss = -(chosen.log_prob(action) * ahead.detach()).mean() + 0.5 * ahead.square().mean()
        return program.descend(loss)

    program.own_step = act
    return program


def byol(seed: int) -> Program:
    """A student follows a moving average of itself; the copy is part of the model."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.predict, self.teacher = (
                mlp(64, 64, 32, norm=True),
                mlp(32, 32, 32),
                mlp(64, 64, 32, norm=True),
            )
            self.teacher.load_state_dict(self.student.state_dict())
            self.teacher.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            one, two = (x + 0.4 * torch.randn_like(x) for _ in range(2))
            found = functional.normalize(self.predict(self.student(one)), dim=-1)
            return 2 - 2 * (found * functional.normalize(self.teacher(two), dim=-1)).sum(-1)

    x, y = digits()
    model = Pair()
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 2e-3)
    program = Program(model, optimiser, lambda out, y: out.mean(), draw(x, y, 200, 64, seed))

    def follow(program: Program) -> None:
        for own, kept in zip(model.student.parameters(), model.teacher.parameters(), strict=True):
            kept.data.lerp_(own.data, 0.05)

    program.after_step = follow
    return program


def adapters(seed: int) -> Program:
    """Low-rank updates of a trained network, whose own weights are frozen."""
    before = of_digits(mlp(64, 64, 10), seed + 90, steps=300)
    for x, y in before.batches:
        before.step(x, (y + 3) % 10)

    class LowRank(nn.Module):
        def __init__(self, line: nn.Linear) -> None:
            super().__init__()
            self.line = line.requires_grad_(False)
            self.down, self.up = nn.Linear(line.in_features, 8, bias=False), nn.Linear(8, line.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.line(x) + self.up(self.down(x))
            return out

    inner: Any = before.model
    program = of_digits(nn.Sequential(LowRank(inner[0]), nn.ReLU(), LowRank(inner[2])), seed, rate=5e-3)
    program.optimizer = torch.optim.Adam([p for p in program.model.parameters() if p.requires_grad], 5e-3)
    return program


def lion_like(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 64, 10), seed)
    program.optimizer = torch.optim.RMSprop(program.model.parameters(), 1e-3, momentum=0.5)
    return program


def deep_residual(seed: int) -> Program:
    blocks = [Residual(mlp(48, 48, 48), nn.LayerNorm(48)) for _ in range(16)]
    return of_digits(nn.Sequential(nn.Linear(64, 48), *blocks, nn.LayerNorm(48), nn.Linear(48, 10)), seed, rate=1e-3)


def seq_to_seq(seed: int) -> Program:
    """Sorted order of a sequence, token by token, by a bidirectional GRU."""

    class Sorter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell = nn.Embedding(8, 24), nn.GRU(24, 32, batch_first=True, bidirectional=True)
            self.head = nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.cell(self.embed(x))[0])
            return out

    rng = torch.Generator().manual_seed(30)
    x = torch.randint(8, (800, 6), generator=rng)
    model = Sorter()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out.transpose(1, 2), y)

    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), loss, draw(x, x.sort(1).values, 250, 64, seed))


def twins(seed: int) -> Program:
    """Whether two digits are the same: two calls of one trunk inside the model."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = mlp(64, 64, 32), nn.Linear(32, 1)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            out: Tensor = self.head((self.trunk(a) - self.trunk(b)).abs())
            return out

    x, y = digits()
    rng = torch.Generator().manual_seed(31)
    batches = []
    for _ in range(300):
        a = torch.randint(len(y), (64,), generator=rng)
        b = torch.where(
            torch.rand(64, generator=rng) < 0.5,
            torch.stack([(y == y[place]).nonzero()[:, 0][torch.randint(100, (), generator=rng)] for place in a]),
            torch.randint(len(y), (64,), generator=rng),
        )
        batches.append(((x[a], x[b]), (y[a] == y[b]).float()[:, None]))
    model = Twins()
    return Program(model, torch.optim.Adam(model.parameters(), 3e-3), nn.BCEWithLogitsLoss(), batches)


def experts(seed: int) -> Program:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.parts = nn.Linear(64, 4), nn.ModuleList(mlp(64, 32, 10) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            share = self.gate(x).softmax(-1)
            return (torch.stack([part(x) for part in self.parts], 1) * share[..., None]).sum(1)

    return of_digits(Experts(), seed)


def summed_loss(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 10), seed, rate=1e-3)
    program.loss = nn.CrossEntropyLoss(reduction="sum")
    return program


def noisy_half(seed: int) -> Program:
    """A third of the labels is wrong, and the rest can be learned."""
    program = of_digits(mlp(64, 64, 10), seed)
    rng = torch.Generator().manual_seed(32)
    program.batches = [
        (x, torch.where(torch.rand(len(y), generator=rng) < 0.33, torch.randint(10, y.shape, generator=rng), y))
        for x, y in program.batches
    ]
    return program


HEALTHY: dict[str, Callable[[int], Program]] = {
    one.__name__: one
    for one in (
        wide_gelu_adamw, one_cycle, smoothed_labels, focal, hinge, depthwise, mixer, set_attention, dilated,
        bag_of_words, factorised, gaussian_likelihood, poisson, quantile, distilled, mixed_up, triplets, siren, flow,
        least_squares_gan, actor_critic, byol, adapters, lion_like, deep_residual, seq_to_seq, twins, experts,
        summed_loss, noisy_half,
    )
}  # fmt: skip


# ── faults in other places ──────────────────────────────────────────────────────────────────────────


FAULTS: dict[str, Fault] = {
    "rate_times_300": Fault(
        plants.rate(300.0),
        ("lr_too_high",),
        (*FLOW, "masked_growth", "attention_collapse"),
        ("mixer", "deep_residual", "seq_to_seq", "depthwise"),
    ),
    "rate_over_3000": Fault(
        plants.rate(1 / 3000),
        ("lr_too_low",),
        ("too_few_steps", "not_learning"),
        ("one_cycle", "bag_of_words", "twins", "lion_like"),
    ),
    "forgotten": Fault(plants.forget_layers, ("not_in_optimiser",), ("not_learning",), ("mixer", "dilated", "experts")),
    "frozen": Fault(
        plants.freeze_layers,
        ("frozen_parameters",),
        ("not_in_optimiser", "not_learning"),
        ("deep_residual", "seq_to_seq"),
    ),
    "not_cleared": Fault(plants.never_clear, ("stale_gradients",), ("lr_too_high", *FLOW), ("dilated", "quantile")),
    "softmax_twice": Fault(
        plants.softmax_in_loop, ("wrong_output_activation",), ("wrong_loss", *FLOW), ("depthwise", "wide_gelu_adamw")
    ),
    "weights_times_20": Fault(
        plants.weights_times(20.0), ("bad_init",), (*FLOW, "lr_too_low", "lr_too_high"), ("wide_gelu_adamw", "dilated")
    ),
    "one_large_feature": Fault(
        plants.first_column_times(1e4), ("unnormalised_input",), ("lr_too_high", *FLOW), ("quantile", "poisson")
    ),
    "targets_times_500": Fault(
        plants.targets_times(500.0),
        ("unnormalised_target",),
        ("lr_too_low", "too_few_steps", "exploding_gradient", "not_learning"),
        ("factorised",),
    ),
    "pairs_shifted": Fault(
        plants.shift_pairs, ("wrong_labels",), ("not_learning",), ("wide_gelu_adamw", "dilated", "twins")
    ),
    "labels_at_random": Fault(
        plants.draw_labels_anew, ("wrong_labels",), ("not_learning",), ("smoothed_labels", "experts")
    ),
    "broadcast": Fault(plants.broadcast_targets, ("wrong_label_shape",), ("not_learning",), ("siren", "set_attention")),
    "sorted": Fault(
        plants.sort_by_class, ("data_order",), ("lr_too_high", *FLOW), ("wide_gelu_adamw",), same_loss=False
    ),
    "eval_mode": Fault(plants.eval_mode, ("wrong_mode",), ("lr_too_high", *FLOW), ("one_cycle", "depthwise")),
    "detached_trunk": Fault(
        plants.cut_after("trunk"),
        ("detached_graph",),
        ("not_learning",),
        ("twins",),
    ),
    "idle_branches": Fault(plants.close_branches, ("idle_branch",), ("vanishing_gradient",), ("deep_residual",)),
    "tanh_output": Fault(
        plants.tanh_beyond(3.0),
        ("wrong_output_activation",),
        ("unnormalised_target", "wrong_loss", *FLOW),
        ("set_attention",),
    ),
    "sign": Fault(
        plants.wrong_sign, ("wrong_loss",), ("lr_too_high", *FLOW), ("wide_gelu_adamw", "seq_to_seq"), same_loss=False
    ),
    "ten_steps": Fault(
        plants.few_steps(12), ("too_few_steps",), ("lr_too_low", "not_learning"), ("mixer", "seq_to_seq")
    ),
    "early_schedule": Fault(
        plants.schedule_per_batch, ("lr_too_low",), ("too_few_steps", "not_learning"), ("dilated", "deep_residual")
    ),
    "leak": Fault(plants.target_as_feature, ("target_leakage",), (), ("wide_gelu_adamw",), same_loss=False),
}


GROUP = Group(HEALTHY, FAULTS)
