"""Programs written after thresholds were frozen on 18 November 2026, before any of them was scored.

Other architectures, tasks and loops than those of development: tables, sets, points, graphs, segmentation, forecasts,
likelihoods, rankings.  A fault is kept only if the loss of its twin shows that it harms (`score.py --verify`).
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index"

import copy
import math
from collections.abc import Callable
from typing import Any

import plants
import torch
from faults import FLOW, Fault, Group
from recipes import Program, Reader, chain_of_tokens, draw, of_tokens, rng, table
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from torch import Tensor, nn
from torch.nn import functional


def clipped(program: Program) -> None:
    nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────


def wine_selu(seed: int) -> Program:
    """A self-normalising network with Adamax."""
    model = nn.Sequential(
        nn.Linear(13, 32), nn.SELU(), nn.AlphaDropout(0.05), nn.Linear(32, 32), nn.SELU(), nn.Linear(32, 3)
    )
    x, y = table(load_wine)
    optimiser = torch.optim.Adamax(model.parameters(), 5e-3)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 200, 32, seed))


class WideDeep(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.wide = nn.Linear(inputs, 1)
        self.deep = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.wide(x) + self.deep(x))


def cancer_wide_deep(seed: int) -> Program:
    """Probabilities and nn.BCELoss, RMSprop."""
    model = WideDeep(30)
    x, y = table(load_breast_cancer)
    optimiser = torch.optim.RMSprop(model.parameters(), 1e-3)
    return Program(model, optimiser, nn.BCELoss(), draw(x, y[:, None].float(), 200, 64, seed))


def iris_log_softmax(seed: int) -> Program:
    model = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3), nn.LogSoftmax(1))
    x, y = table(load_iris)
    optimiser = torch.optim.Adagrad(model.parameters(), 0.05)
    return Program(model, optimiser, nn.NLLLoss(), draw(x, y, 200, 30, seed))


def cancer_newton(seed: int) -> Program:
    """Logistic regression by L-BFGS, with a closure."""
    model = nn.Linear(30, 1)
    x, y = table(load_breast_cancer)
    program = Program(
        model, torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4), nn.BCEWithLogitsLoss(),
        [(x, y[:, None].float())] * 20,
    )  # fmt: skip

    def closed(program: Program, x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            program.optimizer.zero_grad()
            loss = program.loss(model(x), y)
            loss.backward()
            return loss

        return torch.as_tensor(program.optimizer.step(closure))

    program.own_step = closed
    return program


def two_heads(seed: int) -> Program:
    """Cultivar and alcohol of a wine from the other features: a dictionary of outputs, a sum of two losses."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
            self.kind, self.amount = nn.Linear(24, 3), nn.Linear(24, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.trunk(x)
            return {"kind": self.kind(h), "amount": self.amount(h)}

    x, y = table(load_wine)
    both = torch.cat([y[:, None].float(), x[:, :1]], 1)

    def loss(out: dict[str, Tensor], y: Tensor) -> Tensor:
        kind = functional.cross_entropy(out["kind"], y[:, 0].long())
        return kind + 0.5 * functional.mse_loss(out["amount"], y[:, 1:])

    model = Heads()
    return Program(model, torch.optim.Adam(model.parameters(), 3e-3), loss, draw(x[:, 1:], both, 200, 32, seed))


def factorisation_machine(seed: int) -> Program:
    """Clicks from three categorical fields."""

    class Machine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.factors = nn.Embedding(60, 1), nn.Embedding(60, 8)
            nn.init.normal_(self.factors.weight, std=0.1)

        def forward(self, x: Tensor) -> Tensor:
            v = self.factors(x)
            pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
            return self.line(x).sum((1, 2)) + pairs

    r = rng(41)
    x = torch.stack([torch.randint(20, (3000,), generator=r) + 20 * place for place in range(3)], 1)
    score = torch.randn(60, 3, generator=r)
    y = (torch.rand(3000, generator=r) < (1.5 * (score[x[:, 0]] * score[x[:, 1]]).sum(1)).sigmoid()).float()
    model = Machine()
    optimiser = torch.optim.Adam(model.parameters(), 2e-2)
    return Program(model, optimiser, nn.BCEWithLogitsLoss(), draw(x, y, 250, 256, seed))


def ordinal(seed: int) -> Program:
    """Four ordered grades as three yes-or-no questions."""
    r = rng(42)
    x = torch.randn(1000, 8, generator=r)
    grade = torch.bucketize(x[:, :3].sum(1) + 0.2 * torch.randn(1000, generator=r), torch.tensor([-1.5, 0.0, 1.5]))
    y = (grade[:, None] > torch.arange(3)).float()
    model = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(), nn.Linear(32, 3))
    optimiser = torch.optim.NAdam(model.parameters(), 3e-3)
    return Program(model, optimiser, nn.BCEWithLogitsLoss(), draw(x, y, 200, 64, seed))


def rank_net(seed: int) -> Program:
    """Which of two documents is better, from the difference of two scores."""

    class Scorer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, pair: Tensor) -> Tensor:
            return (self.net(pair[:, 0]) - self.net(pair[:, 1]))[:, 0]

    r = rng(43)
    x = torch.randn(2000, 2, 10, generator=r)
    value = x[..., 0] + x[..., 1] * x[..., 2]
    y = (value[:, 0] > value[:, 1]).float()
    model = Scorer()
    optimiser = torch.optim.AdamW(model.parameters(), 4e-3)
    return Program(model, optimiser, functional.binary_cross_entropy_with_logits, draw(x, y, 250, 64, seed))


def cox(seed: int) -> Program:
    """Survival times by the partial likelihood of Cox."""
    r = rng(44)
    x = torch.randn(800, 6, generator=r)
    time = -torch.rand(800, generator=r).log() * (-1.5 * x[:, 0] - x[:, 1]).exp()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        order = y.argsort(descending=True)
        risk = out[order, 0]
        return (risk.logcumsumexp(0) - risk).mean()

    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), loss, draw(x, time, 200, 64, seed))


def mixture_density(seed: int) -> Program:
    """An inverse problem: a mixture of five normal distributions for each input."""
    r = rng(45)
    y = torch.rand(1000, 1, generator=r)
    x = y + 0.3 * (2 * math.pi * y).sin() + 0.02 * torch.randn(1000, 1, generator=r)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        weight, mean, spread = out.chunk(3, -1)
        log_p = -0.5 * ((y - mean) / spread.exp()).square() - spread - 0.5 * math.log(2 * math.pi)
        return -(weight.log_softmax(-1) + log_p).logsumexp(-1).mean()

    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 15))
    return Program(model, torch.optim.Adam(model.parameters(), 1e-2), loss, draw(x, y, 300, 128, seed))


def robust_regression(seed: int) -> Program:
    """The Huber loss on targets with outliers."""
    r = rng(46)
    x = torch.randn(1000, 5, generator=r)
    y = (2 * x[:, :1] - x[:, 1:2] * x[:, 2:3]) + 0.1 * torch.randn(1000, 1, generator=r)
    y = torch.where(torch.rand(1000, 1, generator=r) < 0.03, y + 8, y)
    model = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    return Program(model, torch.optim.Adam(model.parameters(), 3e-3), nn.HuberLoss(), draw(x, y, 250, 64, seed))


# ── images, points, graphs, sets ────────────────────────────────────────────────────────────────────


def shapes(many: int = 600, size: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Images with a noisy disc, square or cross, their masks and their classes."""
    r = rng(47)
    kind = torch.randint(3, (many,), generator=r)
    middle = torch.randint(5, size - 5, (many, 2), generator=r)
    grid = torch.arange(size)
    dy = (grid[None, :, None] - middle[:, :1, None]).abs()
    dx = (grid[None, None] - middle[:, 1:, None]).abs()
    disc, square, cross = dx**2 + dy**2 <= 12, (dx <= 3) & (dy <= 3), ((dx <= 1) & (dy <= 4)) | ((dy <= 1) & (dx <= 4))
    mask = torch.stack([disc, square, cross], 1)[torch.arange(many), kind].float()
    return (mask + 0.4 * torch.randn(mask.shape, generator=r))[:, None], mask[:, None], kind


def u_net(seed: int) -> Program:
    """A mask for each image: cross-entropy and Dice."""

    def twice(wide: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(wide, out, 3, padding=1), nn.GroupNorm(2, out), nn.ReLU())

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.low, self.up = twice(1, 8), twice(8, 16), twice(24, 8)
            self.head = nn.Conv2d(8, 1, 1)

        def forward(self, x: Tensor) -> Tensor:
            a = self.down(x)
            b = self.low(functional.max_pool2d(a, 2))
            b = functional.interpolate(b, scale_factor=2.0, mode="nearest")
            return self.head(self.up(torch.cat([a, b], 1)))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        p = out.sigmoid()
        dice = 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
        return functional.binary_cross_entropy_with_logits(out, y) + dice

    x, mask, _ = shapes()
    model = Net()
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), loss, draw(x, mask, 120, 16, seed))


def squeeze_excite(seed: int) -> Program:
    class Gate(nn.Module):
        def __init__(self, wide: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide)
            self.gate = nn.Sequential(nn.Linear(wide, 4), nn.ReLU(), nn.Linear(4, wide), nn.Sigmoid())

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm(self.conv(x)).relu()
            return x + h * self.gate(h.mean((2, 3)))[..., None, None]

    model = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), Gate(12), Gate(12), nn.Flatten(), nn.Linear(12 * 64, 3))
    x, _, y = shapes()
    program = Program(
        model, torch.optim.SGD(model.parameters(), 0.02, momentum=0.9), nn.CrossEntropyLoss(), draw(x, y, 150, 32, seed)
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(program.optimizer, [100], 0.1)
    program.after_step = lambda program: schedule.step()
    return program


def dense_net(seed: int) -> Program:
    """Concatenated features, batch normalisation, a validation pass every 30 steps."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, padding=1)
            self.layers = nn.ModuleList(
                nn.Sequential(nn.BatchNorm2d(8 * (n + 1)), nn.ReLU(), nn.Conv2d(8 * (n + 1), 8, 3, padding=1))
                for n in range(3)
            )
            self.head = nn.Linear(32 * 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for layer in self.layers:
                x = torch.cat([x, layer(x)], 1)
            return self.head(functional.avg_pool2d(x, 4).flatten(1))

    x, _, y = shapes()
    model = Dense()
    program = Program(
        model, torch.optim.Adam(model.parameters(), 3e-3), nn.CrossEntropyLoss(), draw(x[100:], y[100:], 120, 24, seed)
    )
    program.extra["step"] = 0

    def validate(program: Program) -> None:
        program.extra["step"] += 1
        if program.extra["step"] % 30 == 0:
            model.eval()
            with torch.no_grad():
                model(x[:50])
            if not program.extra.get("forgets"):
                model.train()

    program.after_step = validate
    return program


def masked_images(seed: int) -> Program:
    """Patches that were masked are rebuilt by an encoder of the others."""
    x = shapes()[0]
    patches = functional.unfold(x, 4, stride=4).transpose(1, 2)
    r = rng(48)
    hidden = torch.rand(len(x), 16, generator=r) < 0.4

    class Rebuild(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Linear(16, 32), nn.Parameter(0.02 * torch.randn(16, 32))
            self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
            self.head = nn.Linear(32, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.block(self.embed(x) + self.place))

    seen = torch.where(hidden[..., None], 0.0, patches)
    model = Rebuild()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    return Program(model, optimiser, nn.MSELoss(), draw(seen, patches, 200, 32, seed))


def quantised(seed: int) -> Program:
    """An autoencoder with a code book and straight-through gradients; the model returns output and two penalties."""

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
            self.up = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
            self.book = nn.Embedding(24, 8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.down(x)
            code = self.book(torch.cdist(z, self.book.weight).argmin(-1))
            penalty = (code - z.detach()).square().mean() + 0.25 * (z - code.detach()).square().mean()
            return self.up(z + (code - z).detach()), penalty

    x = functional.unfold(shapes()[1], 4, stride=4).transpose(1, 2).reshape(-1, 16)
    x = x[x.sum(1) > 0]
    model = Codes()
    return Program(
        model, torch.optim.Adam(model.parameters(), 3e-3),
        lambda out, y: functional.mse_loss(out[0], y) + out[1], draw(x, x, 300, 128, seed),
    )  # fmt: skip


def fourier_picture(seed: int) -> Program:
    """A picture as a function of coordinates, through random Fourier features."""
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij"), -1)
    x = grid.view(-1, 2)
    y = (torch.sin(6 * x[:, :1]) * torch.cos(4 * x[:, 1:]) + (x.square().sum(1, keepdim=True) < 0.3).float()) / 2

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("waves", 2 * torch.randn(2, 32))
            self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x: Tensor) -> Tensor:
            turn = x @ self.waves
            return self.net(torch.cat([turn.sin(), turn.cos()], -1))

    model = Features()
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), nn.MSELoss(), draw(x, y, 250, 128, seed))


def point_net(seed: int) -> Program:
    """A class for a cloud of points: a shared network, and the largest value over points."""
    r = rng(49)
    y = torch.randint(3, (900,), generator=r)
    turn = 2 * math.pi * torch.rand(900, 24, generator=r)
    ring = torch.stack([turn.cos(), turn.sin()], -1)
    box = ring / ring.abs().amax(-1, keepdim=True)
    line = torch.stack([turn.cos(), 0.2 * turn.sin()], -1)
    x = torch.stack([ring, box, line], 1)[torch.arange(900), y] + 0.03 * torch.randn(900, 24, 2, generator=r)

    class Cloud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
            self.all = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.all(self.each(x).amax(1))

    model = Cloud()
    return Program(model, torch.optim.Adam(model.parameters(), 2e-3), nn.CrossEntropyLoss(), draw(x, y, 200, 32, seed))


def deep_sets(seed: int) -> Program:
    """The spread of the numbers in a set."""
    r = rng(50)
    scale = 0.2 + 2 * torch.rand(1000, 1, generator=r)
    x = scale[..., None] * torch.randn(1000, 20, 1, generator=r)

    class Sets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.Sequential(nn.Linear(1, 32), nn.ELU(), nn.Linear(32, 32))
            self.all = nn.Sequential(nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.all(self.each(x).mean(1))

    model = Sets()
    return Program(model, torch.optim.Adam(model.parameters(), 3e-3), nn.L1Loss(), draw(x, x.std(1), 250, 64, seed))


class Attend(nn.Module):
    """A graph attention layer of one head."""

    def __init__(self, edges: Tensor, wide: int, out: int) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.line, self.left, self.right = nn.Linear(wide, out), nn.Linear(out, 1), nn.Linear(out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.line(x)
        weight = functional.leaky_relu(self.left(h) + self.right(h).T, 0.2).masked_fill(self.edges == 0, -1e9)
        return weight.softmax(-1) @ h


def graph_attention(seed: int) -> Program:
    """Classes of the nodes of one graph; each step uses all of them."""
    r = rng(51)
    y = torch.randint(4, (160,), generator=r)
    edges = (torch.rand(160, 160, generator=r) < torch.where(y[:, None] == y[None], 0.12, 0.01)).float()
    edges = ((edges + edges.T + torch.eye(160)) > 0).float()
    x = functional.one_hot(y, 4).float() + 1.2 * torch.randn(160, 4, generator=r)
    x = torch.cat([x, torch.randn(160, 8, generator=r)], 1)
    model = nn.Sequential(Attend(edges, 12, 24), nn.ELU(), Attend(edges, 24, 4))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    return Program(model, optimiser, nn.CrossEntropyLoss(), [(x, y)] * 120)


# ── sequences ───────────────────────────────────────────────────────────────────────────────────────


def series(seed: int = 52) -> Tensor:
    r = rng(seed)
    t = torch.arange(2000) / 10
    return t.sin() + 0.5 * (2.3 * t).sin() + 0.1 * torch.randn(2000, generator=r)


def forecast(seed: int) -> Program:
    """The next value of a series, by causal convolutions."""
    x = series().unfold(0, 25, 1)

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv1d(1 if n == 0 else 16, 16, 3, dilation=2**n) for n in range(3))
            self.head = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = x[:, None]
            for n, layer in enumerate(self.layers):
                h = layer(functional.pad(h, (2 * 2**n, 0))).relu()
            return self.head(h[..., -1])

    model = Causal()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, optimiser, nn.MSELoss(), draw(x[:, :-1], x[:, -1:], 250, 64, seed))


def first_or_second(seed: int) -> Program:
    """Which half of a sequence is larger, by an LSTM of two layers."""
    r = rng(53)
    x = torch.randn(1000, 14, 2, generator=r)
    y = (x[:, :7, 0].sum(1) > x[:, 7:, 0].sum(1)).long()
    model = Reader(nn.LSTM(2, 24, 2, batch_first=True), 2)
    optimiser = torch.optim.Adam(model.parameters(), 8e-3)
    program = Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 250, 64, seed))
    program.after_backward = clipped
    return program


def sum_rnn(seed: int) -> Program:
    """The mean of a sequence by a recurrent network of tanh units, which starts orthogonal."""
    r = rng(54)
    x = torch.randn(1000, 20, 1, generator=r)
    cell = nn.RNN(1, 32, batch_first=True)
    nn.init.orthogonal_(cell.weight_hh_l0)
    model = Reader(cell, 1)
    program = Program(
        model, torch.optim.RMSprop(model.parameters(), 2e-3), nn.MSELoss(), draw(x, 2 * x.mean(1), 250, 64, seed)
    )
    program.after_backward = clipped
    return program


def char_stream(seed: int) -> Program:
    """A stream of tokens cut into pieces; the hidden state is carried on and detached."""
    tokens = chain_of_tokens(32, 12, 16 * 12).view(32, -1)

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.cell, self.head = nn.Embedding(12, 16), nn.GRU(16, 48, batch_first=True), nn.Linear(48, 12)

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            out, state = self.cell(self.embed(x), state)
            return self.head(out), state

    model = Stream()
    pieces = [(tokens[:, n : n + 12], tokens[:, n + 1 : n + 13]) for n in range(0, 180, 12)]
    zero = torch.zeros(1, 32, 48)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 5e-3), lambda out, y: of_tokens(out[0], y),
        [((x, zero), y) for _ in range(14) for x, y in pieces],
    )  # fmt: skip

    def carry(program: Program, x: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        out = model(x[0], program.extra.get("state", x[1]))
        program.extra["state"] = out[1].detach()
        loss = program.loss(out, y)
        return program.descend(loss)

    program.own_step, program.after_backward = carry, clipped
    return program


class Block(nn.Module):
    """As of LLaMA: RMS normalisation, attention without biases, a gated feed-forward layer."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.one, self.two = nn.RMSNorm(wide), nn.RMSNorm(wide)
        self.q, self.k, self.v, self.out = (nn.Linear(wide, wide, bias=False) for _ in range(4))
        self.up, self.gate, self.down = (
            nn.Linear(wide, 2 * wide, bias=False),
            nn.Linear(wide, 2 * wide, bias=False),
            nn.Linear(2 * wide, wide, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        q, k, v = (line(h).unflatten(-1, (2, -1)).transpose(1, 2) for line in (self.q, self.k, self.v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        h = self.two(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


def small_llama(seed: int) -> Program:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.blocks = nn.Embedding(16, 32), nn.Sequential(Block(32), Block(32))
            self.norm, self.head = nn.RMSNorm(32), nn.Linear(32, 16, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.blocks(self.tokens(x))))

    x = chain_of_tokens(400, 16, 12)
    model = Language()
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    program = Program(model, optimiser, of_tokens, draw(x[:, :-1], x[:, 1:], 200, 32, seed))
    program.after_backward = clipped
    return program


def fourier_mixing(seed: int) -> Program:
    """Tokens mixed by a Fourier transform: does the first token come again?"""

    class Mix(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(24), nn.LayerNorm(24)
            self.feed = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x + torch.fft.fft2(x).real)
            return self.two(x + self.feed(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.mixes, self.head = nn.Embedding(10, 24), nn.Sequential(Mix(), Mix()), nn.Linear(24, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.mixes(self.tokens(x))[:, 0])

    x = torch.randint(10, (1000, 8), generator=rng(55))
    model = Net()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, (x[:, 0] + 1) % 10, 250, 64, seed))


def translate(seed: int) -> Program:
    """A sequence reversed by an encoder, attention and a decoder that is fed the right answers."""

    class Translate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 24)
            self.encode, self.decode = nn.GRU(24, 32, batch_first=True), nn.GRU(24, 32, batch_first=True)
            self.head = nn.Linear(64, 9)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory, state = self.encode(self.embed(source))
            h, _ = self.decode(self.embed(target), state)
            seen = (h @ memory.transpose(1, 2)).softmax(-1) @ memory
            return self.head(torch.cat([h, seen], -1))

    x = torch.randint(1, 9, (1000, 5), generator=rng(56))
    y = x.flip(1)
    shifted = torch.cat([torch.zeros(1000, 1, dtype=torch.long), y[:, :-1]], 1)
    r = rng(seed)
    places = [torch.randint(1000, (64,), generator=r) for _ in range(250)]
    model = Translate()
    return Program(
        model, torch.optim.Adam(model.parameters(), 5e-3), of_tokens,
        [((x[place], shifted[place]), y[place]) for place in places],
    )  # fmt: skip


def skip_gram(seed: int) -> Program:
    """Word vectors with negative samples; the loss is computed by the model."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centre, self.context = nn.Embedding(24, 12), nn.Embedding(24, 12)
            nn.init.zeros_(self.context.weight)

        def forward(self, word: Tensor, near: Tensor, far: Tensor) -> Tensor:
            v = self.centre(word)
            right = functional.logsigmoid((v * self.context(near)).sum(-1))
            wrong = functional.logsigmoid(-(v[:, None] * self.context(far)).sum(-1)).sum(-1)
            return -(right + wrong).mean()

    x = chain_of_tokens()
    model = Words()
    r = rng(seed)
    batches = []
    for _ in range(250):
        row, place = torch.randint(512, (128,), generator=r), torch.randint(15, (128,), generator=r)
        batches.append(((x[row, place], x[row, place + 1], torch.randint(24, (128, 4), generator=r)), None))
    return Program(model, torch.optim.Adam(model.parameters(), 2e-2), lambda out, y: out, batches, given_loss=False)


# ── other objectives and loops ──────────────────────────────────────────────────────────────────────


def physics(seed: int) -> Program:
    """u″ = −u with u(0) = 0 and u′(0) = 1: derivatives of the network are in the loss."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    program = Program(
        model, torch.optim.Adam(model.parameters(), 3e-3), lambda out, y: out.square().mean(),
        [(3 * torch.rand(64, 1), None) for _ in range(250)], given_loss=False,
    )  # fmt: skip

    def residual(program: Program, x: Tensor, y: Any) -> Tensor:
        x = torch.cat([torch.zeros(1, 1), x]).requires_grad_()
        u = model(x)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        loss = (second + u).square().mean() + u[0].square().sum() + (first[0] - 1).square().sum()
        return program.descend(loss)

    program.own_step = residual
    return program


def euler_steps(seed: int) -> Program:
    """A vector field, learned through eight Euler steps."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 2))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(8):
                x = x + 0.1 * self.field(x)
            return x

    r = rng(57)
    x = torch.randn(1000, 2, generator=r)
    turn = torch.tensor([[math.cos(0.8), -math.sin(0.8)], [math.sin(0.8), math.cos(0.8)]])
    model = Field()
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), nn.MSELoss(), draw(x, x @ turn, 200, 64, seed))


def averaged_copy(seed: int) -> Program:
    """A moving average of the weights outside of the model, and weight normalisation inside."""
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(norm(nn.Linear(13, 32)), nn.ReLU(), norm(nn.Linear(32, 3)))
    x, y = table(load_wine)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 5e-3), nn.CrossEntropyLoss(), draw(x, y, 200, 32, seed)
    )
    kept = [p.detach().clone() for p in model.parameters()]

    def follow(program: Program) -> None:
        for own, mean in zip(model.parameters(), kept, strict=True):
            mean.lerp_(own.detach(), 0.02)

    program.after_step = follow
    return program


def half_precision(seed: int) -> Program:
    """Autocast to bfloat16, weights in float32, two groups of parameters with rates of their own."""
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    groups = [{"params": model[:4].parameters(), "lr": 5e-4}, {"params": model[4].parameters(), "lr": 5e-3}]
    x, y = table(load_breast_cancer)
    program = Program(model, torch.optim.AdamW(groups), nn.CrossEntropyLoss(), draw(x, y, 200, 64, seed))

    def cast(program: Program, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = program.model(x)
        loss = program.loss(out.float(), y)
        return program.descend(loss)

    program.own_step = cast
    return program


def clipped_policy(seed: int) -> Program:
    """PPO on a task of one step, with the reward logged."""
    model, teacher = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3)), torch.randn(4, 3)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 5e-3), lambda out, y: out.mean(),
        [(torch.randn(64, 4), None) for _ in range(200)], given_loss=False,
    )  # fmt: skip

    def act(program: Program, x: Tensor, y: Any) -> Tensor:
        with torch.no_grad():
            old = torch.distributions.Categorical(logits=program.extra.get("old", model)(x))
            action = old.sample()
        reward = (action == (x @ teacher).argmax(1)).float()
        new = torch.distributions.Categorical(logits=model(x))
        ratio = (new.log_prob(action) - old.log_prob(action)).exp()
        ahead = reward - reward.mean()
        loss = -torch.minimum(ratio * ahead, ratio.clamp(0.8, 1.2) * ahead).mean() - 0.01 * new.entropy().mean()
        program.extra["old"] = copy.deepcopy(model)
        program.descend(loss)
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = act
    return program


def critic(seed: int) -> Program:
    """A Wasserstein critic with a gradient penalty, against a generator that learns, too."""
    model = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    other = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    second = torch.optim.Adam(other.parameters(), 1e-3, betas=(0.0, 0.9))
    program = Program(
        model, torch.optim.Adam(model.parameters(), 1e-3, betas=(0.0, 0.9)), lambda out, y: out.mean(),
        [(torch.randn(64, 2) * 0.3 + torch.tensor([1.0, -1.0]), None) for _ in range(150)], given_loss=False,
    )  # fmt: skip

    def play(program: Program, x: Tensor, y: Any) -> Tensor:
        made = other(torch.randn(len(x), 4))
        share = torch.rand(len(x), 1)
        between = (share * x + (1 - share) * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        loss = model(made.detach()).mean() - model(x).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        program.descend(loss)
        second.zero_grad()
        (-model(made).mean()).backward()
        second.step()
        return loss.detach()

    program.own_step = play
    return program


HEALTHY: dict[str, Callable[[int], Program]] = {
    one.__name__: one
    for one in (
        wine_selu, cancer_wide_deep, iris_log_softmax, cancer_newton, two_heads, factorisation_machine, ordinal,
        rank_net, cox, mixture_density, robust_regression, u_net, squeeze_excite, dense_net, masked_images, quantised,
        fourier_picture, point_net, deep_sets, graph_attention, forecast, first_or_second, sum_rnn, char_stream,
        small_llama, fourier_mixing, translate, skip_gram, physics, euler_steps, averaged_copy, half_precision,
        clipped_policy, critic,
    )
}  # fmt: skip


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────


PACE = ("lr_too_low", "too_few_steps", "not_learning")
FAULTS: dict[str, Fault] = {
    "rate_times_100": Fault(
        plants.rate(100.0),
        ("lr_too_high",),
        (*FLOW, "masked_growth", "attention_collapse", "rank_collapse"),
        ("small_llama", "graph_attention", "deep_sets"),
    ),
    "rate_over_1000": Fault(
        plants.rate(1e-3), ("lr_too_low",), ("too_few_steps", "not_learning"), ("point_net", "forecast", "translate")
    ),
    "layers_replaced_late": Fault(plants.late_layer, ("not_in_optimiser",), ("not_learning",), ("squeeze_excite",)),
    "encoder_frozen": Fault(plants.freeze("layers"), ("frozen_parameters",), ("not_learning",), ("forecast",)),
    "never_cleared": Fault(
        plants.never_clear, ("stale_gradients",), ("lr_too_high", *FLOW), ("char_stream", "forecast", "point_net")
    ),
    "eval_after_validation": Fault(plants.forgets_train, ("wrong_mode",), ("lr_too_high", *FLOW), ("dense_net",)),
    "softmax_in_model": Fault(
        plants.end_in(nn.Softmax(-1)),
        ("wrong_output_activation",),
        ("wrong_loss", "lr_too_low", *FLOW),
        ("point_net", "dense_net"),
    ),
    "sigmoid_twice": Fault(
        plants.other_loss(nn.BCEWithLogitsLoss()),
        ("wrong_output_activation",),
        ("wrong_loss", "lr_too_low", *FLOW),
        ("cancer_wide_deep",),
    ),
    "scores_for_log_probabilities": Fault(
        plants.raw_scores,
        ("wrong_loss",),
        ("wrong_output_activation", "lr_too_high", *FLOW),
        ("iris_log_softmax",),
        same_loss=False,
    ),
    "flat_targets": Fault(
        plants.flat_targets, ("wrong_label_shape",), ("not_learning",), ("robust_regression", "sum_rnn", "deep_sets")
    ),
    "shuffled": Fault(
        plants.shuffle_labels,
        ("wrong_labels",),
        ("not_learning",),
        ("wine_selu", "point_net", "first_or_second", "deep_sets"),
    ),
    "random_tokens": Fault(plants.draw_labels_anew, ("wrong_labels",), ("not_learning",), ("small_llama",)),
    "sorted": Fault(plants.sort_by_class, ("data_order",), ("lr_too_high", *FLOW), ("point_net",), same_loss=False),
    "raw_wine": Fault(
        plants.raw_features(load_wine), ("unnormalised_input",), ("lr_too_high", *FLOW), ("averaged_copy",)
    ),
    "raw_cells": Fault(
        plants.raw_features(load_breast_cancer), ("unnormalised_input",), ("lr_too_high", *FLOW), ("cancer_wide_deep",)
    ),
    "far_targets": Fault(
        plants.targets_times(2000.0, 5000.0),
        ("unnormalised_target",),
        ("lr_too_low", "too_few_steps", *FLOW),
        ("forecast", "robust_regression", "euler_steps"),
    ),
    "normal_weights": Fault(
        plants.normal_weights(1.0), ("bad_init",), (*FLOW, "lr_too_high", "lr_too_low"), ("dense_net", "point_net")
    ),
    "zero_weights": Fault(
        plants.zero_weights, ("bad_init",), (*FLOW, "idle_branch"), ("wine_selu", "robust_regression")
    ),
    "time_first": Fault(
        plants.time_first, ("wrong_axis",), ("not_learning", "wrong_labels"), ("first_or_second", "sum_rnn")
    ),
    "encoder_cut": Fault(plants.cut_after("encode"), ("detached_graph",), ("not_learning",), ("translate",)),
    "other_sign": Fault(
        plants.wrong_sign,
        ("wrong_loss",),
        ("lr_too_high", *FLOW),
        ("fourier_mixing", "graph_attention", "mixture_density"),
        same_loss=False,
    ),
    "decay_of_20": Fault(
        plants.decay(20.0), ("over_regularised",), (*FLOW, "lr_too_high"), ("small_llama", "masked_images")
    ),
    "schedule_per_batch": Fault(plants.ends_early, ("lr_too_low",), PACE, ("fourier_mixing", "u_net")),
    "clipped_to_nothing": Fault(plants.clip_to_nothing, ("lr_too_low",), PACE, ("squeeze_excite",)),
    "eight_steps": Fault(plants.few_steps(8), ("too_few_steps",), PACE, ("masked_images", "translate")),
    "no_activations": Fault(
        plants.renew_optimiser(plants.drop_activations), ("missing_activation",), FLOW, ("fourier_picture",)
    ),
    "almost_all_dropped": Fault(plants.drop(0.95), ("over_regularised",), FLOW, ("wine_selu",)),
    "zero_division": Fault(
        plants.zero_division, ("nan_origin",), ("unnormalised_input", "not_learning"), ("wine_selu",)
    ),
    "root_of_zero": Fault(plants.root_in_loss, ("nan_origin",), ("wrong_loss", *FLOW), ("forecast",)),
    "softmax_over_batch": Fault(
        plants.softmax_over_batch, ("wrong_loss",), ("wrong_output_activation", *FLOW), ("fourier_mixing",)
    ),
    "tanh_output": Fault(
        plants.end_in(nn.Tanh()), ("wrong_output_activation",), ("unnormalised_target", *FLOW), ("robust_regression",)
    ),
    "relu_output": Fault(plants.end_in(nn.ReLU()), ("wrong_output_activation",), (*FLOW,), ("forecast", "euler_steps")),
    "twelve_sigmoids": Fault(
        plants.sigmoid_stack(13, 32, 3, 12), ("vanishing_gradient",), (*FLOW, "bad_init", "lr_too_low"), ("wine_selu",)
    ),
    "growing_state": Fault(
        plants.renew_optimiser(plants.growing_state),
        ("exploding_gradient",),
        ("bad_init", "lr_too_high", *FLOW),
        ("sum_rnn",),
    ),
    "label_in_features": Fault(plants.target_as_feature, ("target_leakage",), (), ("wine_selu",), same_loss=False),
    "sixteen_bits": Fault(plants.sixteen_bits, ("low_precision",), ("lr_too_low", "not_learning"), ("point_net",)),
}


GROUP = Group(HEALTHY, FAULTS)
