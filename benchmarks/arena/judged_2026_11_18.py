"""Programs written on 18 November 2026 after the setup faults were added, before any of them was scored.

Other networks, data, loops and optimisers than in the sets before.  `score.py` asks about a fault only where it harms.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import plants
import torch
from faults import FLOW, Fault, Group
from fresh_2026_11 import as_tensors, fit, moons
from recipes import Program, chain_of_tokens, digits, draw, mlp, rng
from sklearn.datasets import make_circles, make_friedman2, make_gaussian_quantiles, make_hastie_10_2
from torch import Tensor, nn
from torch.nn import functional

# ── data ────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def circles() -> tuple[Tensor, Tensor]:
    return as_tensors(*make_circles(800, noise=0.08, factor=0.4, random_state=5))


@functools.cache
def hastie() -> tuple[Tensor, Tensor]:
    x, y = as_tensors(*make_hastie_10_2(1500, random_state=6))
    return x, y[:, None]


@functools.cache
def impedance() -> tuple[Tensor, Tensor]:
    x, y = as_tensors(*make_friedman2(1000, random_state=7))
    return x, ((y - y.mean()) / y.std())[:, None]


@functools.cache
def shells() -> tuple[Tensor, Tensor]:
    return as_tensors(*make_gaussian_quantiles(n_samples=1000, n_features=5, n_classes=3, random_state=8))


@functools.cache
def lines() -> tuple[Tensor, Tensor]:
    """Noisy stripes of four directions, 12 × 12."""
    r = rng(81)
    y = torch.randint(4, (800,), generator=r)
    place = torch.arange(12.0)
    turn = (y * math.pi / 4)[:, None, None]
    wave = turn.cos() * place[None, :, None] + turn.sin() * place[None, None]
    shift = 6.28 * torch.rand(800, 1, 1, generator=r)
    return ((1.2 * wave + shift).sin() + 0.4 * torch.randn(800, 12, 12, generator=r))[:, None], y


@functools.cache
def blots() -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of one to five blots, their masks, and how many there are."""
    r = rng(82)
    many = torch.randint(1, 6, (600,), generator=r)
    centres = 12 * torch.rand(600, 5, 2, generator=r)
    grid = torch.arange(12.0)
    square = (centres[..., :1, None] - grid[:, None]) ** 2 + (centres[..., 1:, None] - grid) ** 2
    spots = torch.exp(-square / 2) * (torch.arange(5) < many[:, None])[..., None, None]
    x = spots.sum(1)
    noisy = x + 0.2 * torch.randn(x.shape, generator=r)
    return (noisy - noisy.mean())[:, None] / noisy.std(), (x > 0.5).float()[:, None], (many.float()[:, None] - 3) / 1.4


@functools.cache
def brackets_of(long: int = 10) -> tuple[Tensor, Tensor]:
    """Strings of two brackets, and whether every prefix has at least as many of the first."""
    x = torch.randint(2, (1500, long), generator=rng(83))
    return x, ((1 - 2 * x).cumsum(1).amin(1) >= 0).long()


@functools.cache
def tagged() -> tuple[Tensor, Tensor]:
    """Words of 2 to 8 letters, filled up with 0; the tag of a letter depends on it and the one before."""
    r = rng(84)
    x, long = torch.randint(1, 12, (1000, 8), generator=r), torch.randint(2, 9, (1000, 1), generator=r)
    y = 1 + (x + x.roll(1, 1)) % 4
    inside = torch.arange(8) < long
    return x * inside, y * inside


@functools.cache
def drifting() -> tuple[Tensor, Tensor]:
    """Series with and without a change of their level."""
    r = rng(85)
    y = torch.randint(2, (900,), generator=r)
    when = torch.randint(4, 16, (900, 1), generator=r)
    x = torch.randn(900, 20, generator=r).cumsum(1) * 0.2 + 2.0 * y[:, None] * (torch.arange(20) >= when)
    return x[..., None], y


# ── healthy ─────────────────────────────────────────────────────────────────────────────────────────


class Bumps(nn.Module):
    """Gaussians around learned centres."""

    def __init__(self, inputs: int, many: int) -> None:
        super().__init__()
        self.centres, self.width = nn.Parameter(torch.randn(many, inputs)), nn.Parameter(torch.zeros(many))

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-(x[:, None] - self.centres).square().sum(-1) * self.width.exp())


def circles_bumps(seed: int) -> Program:
    return fit(nn.Sequential(Bumps(2, 24), nn.Linear(24, 2)), circles(), nn.CrossEntropyLoss(), seed, rate=2e-2)


def hastie_margin(seed: int) -> Program:
    """Targets of −1 and 1, NAdam."""
    return fit(
        mlp(10, 64, 64, 1, act=nn.SiLU), hastie(), nn.SoftMarginLoss(), seed, rate=5e-3, steps=250, size=64,
        optimiser=torch.optim.NAdam,
    )  # fmt: skip


def impedance_log_cosh(seed: int) -> Program:
    loss = lambda out, y: (out - y + functional.softplus(-2 * (out - y)) - math.log(2)).mean()  # noqa: E731
    return fit(mlp(4, 48, 48, 1), impedance(), loss, seed, rate=5e-3, optimiser=torch.optim.RAdam)


def impedance_squares(seed: int) -> Program:
    return fit(mlp(4, 32, 32, 1, act=nn.Softplus), impedance(), nn.MSELoss(), seed, rate=1e-2, size=50)


def impedance_student(seed: int) -> Program:
    """Location and scale of a Student t distribution."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return -torch.distributions.StudentT(4.0, out[:, :1], out[:, 1:].exp()).log_prob(y).mean()

    return fit(mlp(4, 48, 48, 2, act=nn.GELU), impedance(), loss, seed, rate=5e-3)


class Splines(nn.Module):
    """Sums of learned functions of one input each, as in Kolmogorov–Arnold networks."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.knots: Tensor
        self.register_buffer("knots", torch.linspace(-2, 2, 7))
        self.mix, self.norm = nn.Linear(7 * inputs, outputs), nn.LayerNorm(inputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(torch.exp(-((self.norm(x)[..., None] - self.knots) ** 2) * 2).flatten(1))


def shells_splines(seed: int) -> Program:
    return fit(
        nn.Sequential(nn.Linear(5, 12), Splines(12, 12), Splines(12, 3)),
        shells(),
        nn.CrossEntropyLoss(),
        seed,
        rate=1e-2,
    )


def shells_sharpness_aware(seed: int) -> Program:
    """Each step uses the gradient at the worst point nearby (SAM)."""
    program = fit(
        mlp(5, 48, 48, 3), shells(), nn.CrossEntropyLoss(), seed, rate=0.1, optimiser=torch.optim.SGD, momentum=0.9
    )

    def aware(program: Program, x: Tensor, y: Tensor) -> Tensor:
        known = [*program.model.parameters()]
        loss = program.loss(program.model(x), y)
        grads = torch.autograd.grad(loss, known)
        size = torch.stack([grad.norm() for grad in grads]).norm()
        moves = [0.02 * grad / size for grad in grads]
        with torch.no_grad():
            torch._foreach_add_(known, moves)
        program.optimizer.zero_grad()
        worst = program.loss(program.model(x), y)
        worst.backward()
        with torch.no_grad():
            torch._foreach_sub_(known, moves)
        program.optimizer.step()
        return worst

    program.own_step = aware
    return program


class Orthogonal(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal by Newton and Schulz's iteration (Muon)."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                known = self.state[p].setdefault("momentum", torch.zeros_like(p))
                known.mul_(0.9).add_(p.grad)
                if p.dim() < 2:
                    p.sub_(0.1 * group["lr"] * known)
                    continue
                x = known / (known.norm() + 1e-7)
                for _ in range(5):
                    x = 1.5 * x - 0.5 * x @ x.T @ x
                p.sub_(group["lr"] * x)


def digits_orthogonal(seed: int) -> Program:
    return fit(mlp(64, 64, 64, 10), digits(), nn.CrossEntropyLoss(), seed, rate=0.02, optimiser=Orthogonal, size=64)


def digits_averaged(seed: int) -> Program:
    """SGD; the mean of its weights is kept beside it."""
    program = fit(
        mlp(64, 96, 10, act=nn.LeakyReLU), digits(), nn.CrossEntropyLoss(label_smoothing=0.05), seed, rate=0.1,
        optimiser=torch.optim.SGD, momentum=0.9, weight_decay=5e-4,
    )  # fmt: skip
    mean = torch.optim.swa_utils.AveragedModel(program.model)
    program.after_step = lambda program: mean.update_parameters(program.model)
    return program


def digits_autocast(seed: int) -> Program:
    """bfloat16 by autocast, two batches a step."""
    program = fit(mlp(64, 64, 64, 10, act=nn.GELU), digits(), nn.CrossEntropyLoss(), seed, rate=4e-3)

    def step(program: Program, x: Tensor, y: Tensor) -> Tensor:
        program.optimizer.zero_grad()
        losses = []
        for part, of in zip(x.chunk(2), y.chunk(2), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                losses.append(program.loss(program.model(part).float(), of) / 2)
            losses[-1].backward()
        program.optimizer.step()
        return torch.stack(losses).sum()

    program.own_step = step
    return program


class Equilibrium(nn.Module):
    """The state that one layer leaves unchanged, after ten rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.turn, self.head = nn.Linear(64, 48), nn.Linear(48, 48, bias=False), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        given = self.given(x)
        state = torch.zeros_like(given)
        for _ in range(10):
            state = (0.6 * self.turn(state) + given).tanh()
        return self.head(state)


def digits_equilibrium(seed: int) -> Program:
    return fit(Equilibrium(), digits(), nn.CrossEntropyLoss(), seed)


class ConvNext(nn.Module):
    """A large convolution by channel, layer norm, two linear maps and a small gain."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.depth, self.norm = nn.Conv2d(wide, wide, 5, padding=2, groups=wide), nn.LayerNorm(wide)
        self.up, self.down = nn.Linear(wide, 3 * wide), nn.Linear(3 * wide, wide)
        self.gain = nn.Parameter(torch.full((wide,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.depth(x).movedim(1, -1))
        return x + (self.gain * self.down(functional.gelu(self.up(h)))).movedim(-1, 1)


class Flat(nn.Module):
    """The mean over a map, or over the places of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x.mean(1)


def lines_convnext(seed: int) -> Program:
    model = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), ConvNext(12), ConvNext(12), Flat(), nn.Linear(12, 4))
    return fit(model, lines(), nn.CrossEntropyLoss(), seed, rate=4e-3, optimiser=torch.optim.AdamW, weight_decay=0.05)


class MayBeSkipped(nn.Module):
    """A residual branch that is left out for a fifth of the samples in training."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        share = (torch.rand(len(x), 1, 1, 1) < 0.8) / 0.8 if self.training else 1.0
        return (x + share * self.body(x)).relu()


def lines_stochastic_depth(seed: int) -> Program:
    """SGD with a linear warm-up."""
    model = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), MayBeSkipped(12), MayBeSkipped(12), Flat(), nn.Linear(12, 4))
    program = fit(
        model, lines(), nn.CrossEntropyLoss(), seed, rate=0.1, optimiser=torch.optim.SGD, momentum=0.9, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.LinearLR(program.optimizer, 0.1, 1.0, 20)
    program.after_step = lambda program: schedule.step()
    return program


def count_blots(seed: int) -> Program:
    x, _, many = blots()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), Flat(), nn.Linear(16, 1)
    )
    return fit(model, (x, many), nn.HuberLoss(), seed, rate=1e-2)


def find_blots(seed: int) -> Program:
    """Segmentation by Dice's overlap."""
    x, mask, _ = blots()
    parts = [part for a, b in ((1, 12), (12, 12)) for part in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())]

    def dice(out: Tensor, y: Tensor) -> Tensor:
        p = out.sigmoid()
        return 1 - (2 * (p * y).sum((1, 2, 3)) + 1).div(p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1).mean()

    return fit(nn.Sequential(*parts, nn.Conv2d(12, 1, 1)), (x, mask), dice, seed, rate=5e-3, steps=120)


class Codes(nn.Module):
    """An autoencoder whose code is the nearest of 16 vectors; returns its output and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = mlp(64, 64, 32), mlp(32, 64, 64)
        self.book = nn.Parameter(torch.randn(16, 8) * 0.3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.down(x).view(-1, 8)
        near = self.book[torch.cdist(h, self.book).argmin(1)]
        pull = (near - h.detach()).square().mean() + 0.25 * (h - near.detach()).square().mean()
        return self.up((h + (near - h).detach()).view(-1, 32)), pull


def vector_quantised(seed: int) -> Program:
    loss = lambda out, y: functional.mse_loss(out[0], y) + out[1]  # noqa: E731
    return fit(Codes(), (digits()[0], digits()[0]), loss, seed, steps=200)


def two_views(seed: int) -> Program:
    """InfoNCE between two noisy views."""
    model = mlp(64, 64, 32)
    program = fit(model, digits(), lambda out, y: out.mean(), seed, size=48)

    def views(program: Program, x: Tensor, y: Tensor) -> Tensor:
        a, b = (functional.normalize(model(x + 0.4 * torch.randn_like(x)), dim=1) for _ in range(2))
        return program.descend(functional.cross_entropy(a @ b.T / 0.2, torch.arange(len(x))))

    program.own_step, program.given_loss = views, False
    return program


class Coupling(nn.Module):
    """Each half of a point is scaled and shifted by functions of the other, four times; returns the log density."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(1, 32, 2, act=nn.Tanh) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b, volume = x[:, :1], x[:, 1:], torch.zeros(len(x), 1)
        for net in self.nets:
            scale, shift = net(a).chunk(2, 1)
            a, b = b * scale.tanh().exp() + shift, a
            volume = volume + scale.tanh()
        return (volume - 0.5 * (a * a + b * b) - math.log(2 * math.pi))[:, 0]


def density_of_moons(seed: int) -> Program:
    x, y = moons()
    return fit(Coupling(), (x, y), lambda out, y: -out.mean(), seed, rate=1e-2, size=64)


def moons_or_noise(seed: int) -> Program:
    """An energy, learned by telling data from noise."""
    x, _ = moons()
    both = torch.cat([x, 4 * torch.rand(len(x), 2, generator=rng(86)) - 2])
    real = torch.arange(len(both)) < len(x)
    return fit(mlp(2, 48, 48, 1), (both, real.float()[:, None]), nn.BCEWithLogitsLoss(), seed, rate=5e-3)


class Denoiser(nn.Module):
    """The noise in a point at a time; `slow` is a moving average of `fast`."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = mlp(3, 64, 64, 2, act=nn.SiLU)
        self.slow = copy.deepcopy(self.fast).requires_grad_(False)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.fast(torch.cat([x, time], 1))


def denoise_moons(seed: int) -> Program:
    x, _ = moons()
    r = rng(87)
    time, noise = torch.rand(len(x), 1, generator=r), torch.randn(x.shape, generator=r)
    mixed = torch.cat([(1 - time).sqrt() * x + time.sqrt() * noise, time], 1)
    model = Denoiser()
    program = fit(model, (mixed, noise), nn.MSELoss(), seed, rate=5e-3, size=64)
    program.batches = [((x[:, :2], x[:, 2:]), y) for x, y in program.batches]

    @torch.no_grad()
    def average(program: Program) -> None:
        for slow, fast in zip(model.slow.parameters(), model.fast.parameters(), strict=True):
            slow.lerp_(fast, 0.05)

    program.after_step = average
    return program


def lorenz(seed: int) -> Program:
    """The velocity of the Lorenz system; the whole set in each step, Rprop."""
    x = 2 * torch.randn(400, 3, generator=rng(88))
    a, b, c = x.T
    y = torch.stack([b - a, a * (1 - c) - b, a * b - c], 1)
    program = fit(mlp(3, 48, 48, 3, act=nn.Tanh), (x, y / y.std()), nn.MSELoss(), seed, optimiser=torch.optim.Rprop)
    program.batches = [(x, y / y.std())] * 120
    return program


def spring(seed: int) -> Program:
    """A Hamiltonian, whose derivatives are the velocities."""
    x = torch.randn(800, 2, generator=rng(89))
    y = torch.stack([x[:, 1], -x[:, 0].sin()], 1)

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(2, 48, 48, 1, act=nn.Tanh)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.body(x).sum(), x, create_graph=True)
            return torch.stack([slope[:, 1], -slope[:, 0]], 1)

    return fit(Energy(), (x, y), nn.MSELoss(), seed, rate=5e-3)


def bags(seed: int) -> Program:
    """Whether a bag of points holds one far from the centre: attention over instances."""
    x = torch.randn(1000, 8, 2, generator=rng(90))
    y = (x.norm(dim=2).amax(1) > 2.4).float()[:, None]

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.score, self.head = mlp(2, 32, 24), nn.Linear(24, 1), nn.Linear(24, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x).relu()
            return self.head((self.score(h).softmax(1) * h).sum(1))

    return fit(Pooled(), (x, y), nn.BCEWithLogitsLoss(), seed, rate=1e-2, steps=250)


def neighbours(seed: int) -> Program:
    """GraphSAGE on the nearest neighbours of two moons; noisy features, the whole graph in each step."""
    x, y = moons()
    near = torch.cdist(x, x).topk(6, largest=False).indices[:, 1:]
    features = torch.cat([x + 0.7 * torch.randn(x.shape, generator=rng(91)), torch.ones(len(x), 1)], 1)

    class Sage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.norm = nn.Linear(6, 24), nn.Linear(48, 2), nn.LayerNorm(24)

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.one(torch.cat([x, x[near].mean(1)], 1))).relu()
            return self.two(torch.cat([h, h[near].mean(1)], 1))

    program = fit(Sage(), (x, y), nn.CrossEntropyLoss(), seed, rate=1e-2)
    program.batches = [(features, y)] * 120
    return program


class Fields(nn.Module):
    """Categories as tokens of a pre-norm encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(10, 24), nn.Parameter(0.1 * torch.randn(5, 24))
        layer = nn.TransformerEncoderLayer(24, 2, 48, 0.1, batch_first=True, norm_first=True)
        self.blocks, self.head = nn.ModuleList([layer, copy.deepcopy(layer)]), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(h.mean(1))


def fields(seed: int) -> Program:
    r = rng(92)
    x = torch.randint(10, (1500, 5), generator=r)
    worth = torch.randn(5, 10, generator=r)
    y = (worth[torch.arange(5), x].sum(1) > 0).float()[:, None]
    return fit(Fields(), (x, y), nn.BCEWithLogitsLoss(), seed, optimiser=torch.optim.AdamW, size=64)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(11, 24), mlp(48, 96, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.table(x).flatten(1))


def modular_sum(seed: int) -> Program:
    x = torch.randint(11, (2000, 2), generator=rng(93))
    return fit(Sum(), (x, x.sum(1) % 11), nn.CrossEntropyLoss(), seed, rate=1e-2, steps=200, size=64)


class Stepwise(nn.Module):
    """An LSTM cell, called place by place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = nn.Embedding(2, 8), nn.LSTMCell(8, 24), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(len(x), 24)
        for one in self.table(x).unbind(1):
            h, c = self.cell(one, (h, c))
        return self.head(h)


def brackets(seed: int) -> Program:
    return fit(Stepwise(), brackets_of(), nn.CrossEntropyLoss(), seed, rate=1e-2, steps=200)


class Pointer(nn.Module):
    """Scores places of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(1, 24, batch_first=True, bidirectional=True), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0])[..., 0]


def point_at_largest(seed: int) -> Program:
    x = torch.randn(1200, 7, 1, generator=rng(94))
    return fit(Pointer(), (x, x[..., 0].argmax(1)), nn.CrossEntropyLoss(), seed, rate=1e-2)


class Monitor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 24, batch_first=True), nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def change_points(seed: int) -> Program:
    return fit(Monitor(), drifting(), nn.CrossEntropyLoss(), seed, rate=1e-2)


class Filled(nn.Module):
    """A post-norm encoder of tokens whose head is the embedding."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(17, 32), nn.Parameter(0.1 * torch.randn(12, 32))
        nn.init.normal_(self.table.weight, std=0.2)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(depth))
        self.head = nn.Linear(32, 17, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def of_places(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out.transpose(1, 2), y)


def masked_tokens(seed: int) -> Program:
    """BERT's task; places that are not hidden have the target −100."""
    x = chain_of_tokens(800, 16, 11)
    hidden = torch.rand(x.shape, generator=rng(95)) < 0.2
    program = fit(
        Filled(), (torch.where(hidden, 16, x), torch.where(hidden, x, -100)), of_places, seed,
        optimiser=torch.optim.AdamW, steps=200,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(program.optimizer, lambda t: min((t + 1) / 20, (200 - t) / 180))
    program.after_step = lambda program: schedule.step()
    return program


class Decaying(nn.Module):
    """A linear recurrence with learned rates of decay, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.given, self.gate = nn.Embedding(16, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.rate, self.norm, self.head = nn.Parameter(torch.linspace(-3, 3, 32)), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        state, states = torch.zeros_like(h[:, 0]), []
        for one in self.given(h).unbind(1):
            state = self.rate.sigmoid() * state + (1 - self.rate.sigmoid()) * one
            states.append(state)
        return self.head(self.norm(h + torch.stack(states, 1) * functional.silu(self.gate(h))))


def state_space(seed: int) -> Program:
    x = chain_of_tokens(600, 16, 10)
    return fit(Decaying(), (x[:, :-1], x[:, 1:]), of_places, seed, rate=1e-2, steps=120)


class Causal(nn.Module):
    """Gated convolutions that look back only (WaveNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(16, 24), nn.Conv1d(24, 16, 1)
        self.layers = nn.ModuleList(nn.Conv1d(24, 48, 2, dilation=wide) for wide in (1, 2, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x).transpose(1, 2)
        for layer in self.layers:
            a, b = layer(functional.pad(h, (layer.dilation[0], 0))).chunk(2, 1)
            h = h + a.tanh() * b.sigmoid()
        return self.head(h)


def gated_convolutions(seed: int) -> Program:
    x = chain_of_tokens(600, 16, 12)
    return fit(Causal(), (x[:, :-1], x[:, 1:]), nn.CrossEntropyLoss(), seed, rate=5e-3)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(12, 16, padding_idx=0), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.table(x))[0])


def tags_of_letters(seed: int) -> Program:
    loss = lambda out, y: functional.cross_entropy(out.reshape(-1, 5), y.reshape(-1), ignore_index=0)  # noqa: E731
    return fit(Tagger(), tagged(), loss, seed, rate=1e-2, steps=200)


def read_tones(seed: int) -> Program:
    """Which tones come one after another, without their places: CTC."""
    r = rng(96)
    y = torch.randint(1, 4, (600, 3), generator=r)
    x = torch.randn(600, 12, 6, generator=r) * 0.4
    x[torch.arange(600)[:, None, None], (torch.arange(3) * 4 + 1)[None, :, None], y[..., None]] += 2.0

    def loss(out: Tensor, y: Tensor) -> Tensor:
        many = torch.full((len(y),), 12), torch.full((len(y),), 3)
        return functional.ctc_loss(out.log_softmax(-1).transpose(0, 1), y, *many)

    return fit(mlp(6, 32, 4), (x, y), loss, seed, rate=1e-2)


def bags_of_words(seed: int) -> Program:
    """A sparse table with an optimiser of its own."""
    r = rng(97)
    y = torch.randint(3, (1000,), generator=r)
    x = torch.where(torch.rand(1000, 10, generator=r) < 0.3, y[:, None] * 20, 0) + torch.randint(
        40, (1000, 10), generator=r
    )
    model = nn.Sequential(nn.EmbeddingBag(80, 16, sparse=True), nn.Linear(16, 3))
    program = fit(model, (x, y), nn.CrossEntropyLoss(), seed)
    program.optimizer = torch.optim.Adam(model[1].parameters(), 1e-2)
    other = torch.optim.SparseAdam(model[0].parameters(), 2e-2)
    program.extra["others"] = [other]

    def step(program: Program) -> None:
        other.step()
        other.zero_grad()

    program.after_step = step
    return program


def bandit(seed: int) -> Program:
    """A policy over eight arms that depend on the context; the reward is logged."""
    worth = torch.randn(4, 8, generator=rng(98))
    model = mlp(4, 24, 8, act=nn.Tanh)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 2e-2), lambda out, y: out.mean(),
        [(torch.randint(4, (48,)), None) for _ in range(150)], given_loss=False,
    )  # fmt: skip

    def pull(program: Program, place: Tensor, y: Any) -> Tensor:
        chosen = torch.distributions.Categorical(logits=model(functional.one_hot(place, 4).float()))
        arm = chosen.sample()
        reward = worth[place, arm] + 0.3 * torch.randn(len(place))
        loss = -(chosen.log_prob(arm) * (reward - reward.mean())).mean() - 0.01 * chosen.entropy().mean()
        program.descend(loss)
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = pull
    return program


def deep_post_norm(seed: int) -> Program:
    """Six post-norm blocks, with a warm-up over half of the steps."""
    x, y = digits()
    blocks = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(6)]
    model = nn.Sequential(nn.Linear(16, 32), *blocks, Flat(), nn.Linear(32, 10))
    program = fit(model, (x.view(-1, 4, 16), y), nn.CrossEntropyLoss(), seed, rate=3e-3, steps=120)
    schedule = torch.optim.lr_scheduler.LambdaLR(program.optimizer, lambda t: min(1.0, (t + 1) / 60))
    program.after_step = lambda program: schedule.step()
    program.extra["schedule"] = schedule
    return program


HEALTHY: dict[str, Callable[[int], Program]] = {
    one.__name__: one
    for one in (
        circles_bumps, hastie_margin, impedance_log_cosh, impedance_squares, impedance_student, shells_splines,
        shells_sharpness_aware, digits_orthogonal, digits_averaged, digits_autocast, digits_equilibrium, lines_convnext,
        lines_stochastic_depth, count_blots, find_blots, vector_quantised, two_views, density_of_moons, moons_or_noise,
        denoise_moons, lorenz, spring, bags, neighbours, fields, modular_sum, brackets, point_at_largest, change_points,
        masked_tokens, state_space, gated_convolutions, tags_of_letters, read_tones, bags_of_words, bandit,
        deep_post_norm,
    )
}  # fmt: skip


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────


def constant_inputs(program: Program) -> None:
    """Every sample of a batch is the first one."""
    program.batches = [(x[:1].expand_as(x).clone(), y) for x, y in program.batches]


def counts_padding(program: Program) -> None:
    program.loss = lambda out, y: functional.cross_entropy(out.reshape(-1, 5), y.reshape(-1))


def copied_head(program: Program) -> None:
    """The head gets a copy of the embedding instead of the embedding."""
    model = program.model
    model.head.weight = nn.Parameter(model.table.weight.detach().clone())


def never_averaged(program: Program) -> None:
    program.after_step = lambda program: None


def second_optimiser(program: Program) -> None:
    """Momentum SGD beside the program's own optimiser."""
    other = torch.optim.SGD(program.model.parameters(), 0.3, momentum=0.9)
    program.extra["others"] = [other]
    program.after_step = lambda program: other.step()


def hardly_updates_statistics(program: Program) -> None:
    """Running statistics of batch normalisation that follow the batches too slowly; inputs with an offset."""
    for module in program.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1e-4


def decays_gains(program: Program) -> None:
    """A large weight decay for everything of one axis."""
    known = [*program.model.parameters()]
    flat, deep = ([p for p in known if (p.dim() < 2) is kind] for kind in (True, False))
    groups = [{"params": deep, "weight_decay": 0.01}, {"params": flat, "weight_decay": 10.0}]
    program.optimizer = torch.optim.AdamW(groups, lr=program.optimizer.param_groups[0]["lr"])


def leaves_out_a_class(program: Program) -> None:
    """Larger batches, without the samples of class 3."""
    x, y = digits()
    program.batches = draw(x[y != 3], y[y != 3], len(program.batches), 128, 1)


def mostly_one_class(program: Program) -> None:
    """Three samples in a hundred are of the second class."""
    x, y = (torch.cat([batch[place] for batch in program.batches]) for place in (0, 1))
    keep = (y[:, 0] if y.dim() > 1 else y) <= 0
    keep |= torch.rand(len(y), generator=rng(99)) < 0.03
    program.batches = draw(x[keep], y[keep], len(program.batches), 64, 1)


def without_warm_up(program: Program) -> None:
    program.after_step = lambda program: None
    for group in program.optimizer.param_groups:
        group["lr"] = group["initial_lr"]


_PACE = ("lr_too_low", "too_few_steps", "not_learning")
FLOW = (*FLOW, "loss_spike", "rank_collapse")
FAULTS: dict[str, Fault] = {
    "rate_times_200": Fault(
        plants.rate(200.0),
        ("lr_too_high",),
        (*FLOW, "masked_growth", "attention_collapse", "missing_warmup"),
        ("digits_equilibrium",),
    ),
    "rate_over_3000": Fault(
        plants.rate(1 / 3000),
        ("lr_too_low",),
        _PACE,
        ("gated_convolutions", "lines_stochastic_depth"),
    ),
    "head_only": Fault(plants.forget_layers, ("not_in_optimiser",), ("not_learning",), ("lines_convnext",)),
    "frozen_cell": Fault(
        plants.freeze("cell"), ("frozen_parameters",), ("not_in_optimiser", "not_learning"), ("point_at_largest",)
    ),
    "never_cleared": Fault(plants.never_clear, ("stale_gradients",), ("lr_too_high", *FLOW), ("impedance_squares",)),
    "softmax_in_model": Fault(
        plants.renew_optimiser(plants.end_in(nn.Softmax(-1))),
        ("wrong_output_activation",),
        ("wrong_loss", "lr_too_low", *FLOW),
        ("modular_sum",),
    ),
    "softmax_in_loop": Fault(
        plants.softmax_in_loop, ("wrong_output_activation",), ("wrong_loss", "lr_too_low", *FLOW), ("digits_averaged",)
    ),
    "sigmoid_in_model": Fault(
        plants.renew_optimiser(plants.end_in(nn.Sigmoid())),
        ("wrong_output_activation",),
        ("wrong_loss", "lr_too_low", *FLOW),
        ("bags", "lorenz"),
    ),
    "scores_as_log_probabilities": Fault(
        plants.other_loss(nn.NLLLoss()),
        ("wrong_loss",),
        ("wrong_output_activation", "lr_too_high", *FLOW),
        ("lines_convnext",),
        same_loss=False,
    ),
    "broadcast": Fault(plants.broadcast_targets, ("wrong_label_shape",), ("not_learning",), ("impedance_squares",)),
    "shuffled": Fault(plants.shuffle_labels, ("wrong_labels",), ("not_learning",), ("hastie_margin", "lines_convnext")),
    "drawn_anew": Fault(plants.draw_labels_anew, ("wrong_labels",), ("not_learning",), ("gated_convolutions",)),
    "sorted": Fault(
        plants.sort_by_class, ("data_order",), ("lr_too_high", *FLOW), ("lines_stochastic_depth",), same_loss=False
    ),
    "bytes": Fault(
        plants.inputs_times(40.0, 100.0),
        ("unnormalised_input",),
        ("lr_too_high", *FLOW),
        ("lines_convnext",),
    ),
    "far_targets": Fault(
        plants.targets_times(3000.0, 8000.0),
        ("unnormalised_target",),
        ("lr_too_low", "too_few_steps", *FLOW),
        ("impedance_log_cosh", "count_blots"),
        same_loss=False,
    ),
    "normal_weights": Fault(
        plants.normal_weights(1.0),
        ("bad_init",),
        (*FLOW, "lr_too_high", "lr_too_low", "attention_collapse"),
        ("digits_averaged",),
    ),
    "equal_weights": Fault(
        plants.change_weights(lambda weight: weight.fill_(0.02)), ("bad_init",), FLOW, ("hastie_margin",)
    ),
    "table_cut": Fault(plants.cut_after("table"), ("detached_graph",), ("not_learning",), ("state_space",)),
    "eval_mode": Fault(plants.eval_mode, ("wrong_mode",), ("lr_too_high", *FLOW), ("lines_stochastic_depth",)),
    "other_sign": Fault(
        plants.wrong_sign,
        ("wrong_loss",),
        ("lr_too_high", *FLOW),
        ("impedance_log_cosh",),
        same_loss=False,
    ),
    "decay_of_20": Fault(plants.decay(20.0), ("over_regularised",), (*FLOW, "lr_too_high"), ("lines_convnext",)),
    "ends_early": Fault(plants.ends_early, ("lr_too_low",), _PACE, ("shells_splines",)),
    "falls_each_batch": Fault(plants.schedule_per_batch, ("lr_too_low",), _PACE, ("gated_convolutions",)),
    "clipped": Fault(plants.clip_to_nothing, ("lr_too_low",), _PACE, ("digits_averaged",)),
    "ten_steps": Fault(plants.few_steps(10), ("too_few_steps",), _PACE, ("find_blots",)),
    "relu_output": Fault(
        plants.renew_optimiser(plants.end_in(nn.ReLU())), ("wrong_output_activation",), FLOW, ("impedance_squares",)
    ),
    "softmax_over_batch": Fault(
        plants.softmax_over_batch,
        ("wrong_loss",),
        ("wrong_output_activation", *FLOW),
        ("shells_splines",),
        same_loss=False,
    ),
    "leak": Fault(plants.target_as_feature, ("target_leakage",), (), ("shells_splines",), same_loss=False),
    "sixteen_bits": Fault(
        plants.sixteen_bits, ("low_precision",), ("lr_too_low", "not_learning"), ("hastie_margin",), same_loss=False
    ),
    "logarithm": Fault(
        plants.logarithm_of_features, ("nan_origin",), ("unnormalised_input", "not_learning"), ("shells_splines",)
    ),
    "twelve_sigmoids": Fault(
        plants.sigmoid_stack(2, 24, 2, 12),
        ("vanishing_gradient",),
        (*FLOW, "bad_init", "lr_too_low"),
        ("circles_bumps",),
    ),
    "time_first": Fault(plants.time_first, ("wrong_axis",), ("not_learning", "wrong_labels"), ("change_points",)),
    "constant_inputs": Fault(constant_inputs, ("constant_input",), (*FLOW, "wrong_labels"), ("lines_convnext",)),
    "counts_padding": Fault(counts_padding, ("loss_over_padding",), (), ("tags_of_letters",), same_loss=False),
    "copied_head": Fault(
        plants.renew_optimiser(copied_head), ("untied_weights",), (), ("masked_tokens",), same_loss=False
    ),
    "never_averaged": Fault(never_averaged, ("stale_copy",), (), ("denoise_moons",), same_loss=False),
    "second_optimiser": Fault(second_optimiser, ("two_optimisers",), ("lr_too_high", *FLOW), ("modular_sum",)),
    "slow_statistics": Fault(
        hardly_updates_statistics, ("eval_mismatch",), (), ("lines_stochastic_depth",), same_loss=False
    ),
    "decays_gains": Fault(decays_gains, ("decayed_gains",), ("over_regularised", *FLOW), ("fields",), same_loss=False),
    "class_left_out": Fault(leaves_out_a_class, ("class_missing",), (), ("digits_averaged",), same_loss=False),
    "mostly_one_class": Fault(
        mostly_one_class, ("class_imbalance",), ("lr_too_low", "not_learning"), ("brackets",), same_loss=False
    ),
    "no_warm_up": Fault(
        without_warm_up, ("missing_warmup",), ("lr_too_high", "attention_collapse", *FLOW), ("deep_post_norm",)
    ),
}

GROUP = Group(HEALTHY, FAULTS)
