"""Healthy programs on series, words and sounds for `judged_2026_11_19.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

import functools
import math

import torch
from fresh_2026_11 import fit
from judged_2026_11_19_pictures import by_factor, clipped, scheduled, without_decay
from recipes import Program, Reader, Residual, chain_of_tokens, mlp, of_tokens, rng
from torch import Tensor, nn
from torch.nn import functional


@functools.cache
def seasons(many: int = 800, long: int = 36) -> Tensor:
    """Series of two seasons and a trend, each with a level of its own."""
    r = rng(121)
    time, start = torch.arange(float(long)), 24 * torch.rand(many, 1, generator=r)
    waves = (0.5 * (time + start)).sin() + 0.6 * (1.1 * (time + 2 * start)).cos()
    level, slope = torch.randn(many, 1, generator=r), 0.03 * torch.randn(many, 1, generator=r)
    return waves + level + slope * time + 0.1 * torch.randn(many, long, generator=r)


class Continues(nn.Module):
    """A cell that reads a series and continues it, in training at times from the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(1, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor, goal: Tensor) -> Tensor:
        h, made = torch.zeros(len(x), 32), []
        for one in x.unbind(1):
            h = self.cell(one[:, None], h)
        for true in goal.unbind(1):
            made.append(self.head(h))
            told = self.training and torch.rand(()) < 0.5
            h = self.cell(true[:, None] if told else made[-1], h)
        return torch.cat(made, 1)


def scheduled_sampling(seed: int) -> Program:
    x = seasons()
    program = fit(Continues(), (x[:, :24], x[:, 24:30]), nn.MSELoss(), seed, rate=8e-3, steps=120)
    program.batches = [((x, y), y) for x, y in program.batches]
    return clipped(program)


class Remembers(nn.Module):
    """An LSTM writes a series into one code, another reads it out."""

    def __init__(self) -> None:
        super().__init__()
        self.write, self.read = nn.LSTM(1, 32, batch_first=True), nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        code = self.write(x)[1][0][0]
        return self.head(self.read(code[:, None].expand(-1, x.shape[1], -1))[0])


def series_autoencoder(seed: int) -> Program:
    x = seasons()[:, :8, None]
    noisy = x + 0.1 * torch.randn(x.shape, generator=rng(122))
    return clipped(fit(Remembers(), (noisy, x), nn.L1Loss(), seed, rate=2e-2, steps=200))


class Outlook(nn.Module):
    """Mean and variance of each next value (DeepAR)."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(1, 32, 2, batch_first=True, dropout=0.1), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.head(self.cell(x)[0]).chunk(2, -1)
        return mean, functional.softplus(spread) + 1e-4


def gaussian_outlook(seed: int) -> Program:
    x = seasons()[..., None]
    loss = lambda out, y: functional.gaussian_nll_loss(out[0], y, out[1])  # noqa: E731
    return clipped(fit(Outlook(), (x[:, :-1], x[:, 1:]), loss, seed, rate=5e-3, steps=120))


class PatchForecast(nn.Module):
    """The level of a series is removed and added again; patches of four are tokens (PatchTST)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(4, 24), nn.Parameter(0.02 * torch.randn(6, 24))
        layer = nn.TransformerEncoderLayer(24, 4, 48, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(144, 12)

    def forward(self, x: Tensor) -> Tensor:
        level, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True)
        h = self.embed(((x - level) / spread).unflatten(1, (6, 4))) + self.place
        return self.head(self.body(h).flatten(1)) * spread + level


def patch_forecast(seed: int) -> Program:
    x = seasons()
    program = fit(PatchForecast(), (x[:, :24], x[:, 24:]), nn.MSELoss(), seed, rate=3e-3)
    return scheduled(program, lambda optimiser: torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=151))


class Linearised(nn.Module):
    """Causal attention without a softmax: shares are products of positive features."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Linear(wide, 3 * wide, bias=False), nn.Linear(wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        share = (q @ k.mT).tril()
        return self.mix(share @ v / share.sum(-1, keepdim=True))


class Writer(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(24, 32), nn.Parameter(0.02 * torch.randn(16, 32))
        parts = [part for _ in range(2) for part in (Linearised(32), mlp(32, 64, 32, act=nn.GELU))]
        self.blocks = nn.Sequential(*(Residual(part, nn.RMSNorm(32)) for part in parts))
        self.norm, self.head = nn.RMSNorm(32), nn.Linear(32, 24, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.08)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.table(x) + self.place)))


def linear_attention(seed: int) -> Program:
    """Two batches a step; the gradient of each counts half."""
    x = chain_of_tokens()
    program = fit(Writer(), (x[:, :-1], x[:, 1:]), of_tokens, seed, steps=160)
    program.optimizer, done = without_decay(program.model, 1e-2, 0.1), []
    scheduled(clipped(program), by_factor(lambda t: min((t + 1) / 10, 1.02 - t / 80)))

    def accumulate(program: Program, x: Tensor, y: Tensor) -> Tensor:
        loss = program.loss(program.before_loss(program.model(x)), y)
        (loss / 2).backward()
        done.append(1)
        if len(done) % 2 == 0:
            program.after_backward(program)
            program.optimizer.step()
            program.after_step(program)
            if program.clears:
                program.optimizer.zero_grad()
        return loss

    program.own_step = accumulate
    return program


class Sorts(nn.Module):
    """Encoder and decoder of PyTorch, normalised after each block; 0 fills up, 1 starts."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(12, 32), nn.Parameter(0.3 * torch.randn(8, 32))
        self.body = nn.Transformer(32, 4, 4, 4, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, 12)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask, empty = torch.ones(y.shape[1], y.shape[1]).triu(1).bool(), x == 0
        a, b = (self.table(one) + self.place[: one.shape[1]] for one in (x, y))
        return self.head(self.body(a, b, None, mask, None, empty, None, empty, tgt_is_causal=True))


@functools.cache
def unsorted() -> tuple[Tensor, Tensor]:
    """Three to seven letters, and the same in order behind a start sign; filled up with 0."""
    r = rng(123)
    x, many = torch.randint(2, 12, (1200, 7), generator=r), torch.randint(3, 8, (1200, 1), generator=r)
    inside = torch.arange(7) < many
    ordered = torch.where(inside, x, 99).sort(1).values
    return x * inside, torch.cat([torch.ones(1200, 1, dtype=torch.long), ordered * inside], 1)


def sort_letters(seed: int) -> Program:
    """The schedule of the first transformers: up, then down as a root."""
    x, y = unsorted()
    loss = lambda out, y: functional.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=0)  # noqa: E731
    program = fit(Sorts(), (torch.cat([x, y], 1), y[:, 1:]), loss, seed, rate=1.2e-2, steps=140, betas=(0.9, 0.98))
    program.batches = [((both[:, :7], both[:, 7:-1]), y) for both, y in program.batches]
    return scheduled(program, by_factor(lambda t: min((t + 1) / 40, (40 / (t + 1)) ** 0.5)))


@functools.cache
def topics() -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of sentences of six words, a half of them about one of four topics; whether both are about the same."""
    r = rng(124)
    one = torch.randint(4, (1500,), generator=r)
    two = torch.where(torch.rand(1500, generator=r) < 0.5, one, torch.randint(4, (1500,), generator=r))
    words = []
    for topic in (one, two):
        about = 1 + topic[:, None] + 4 * torch.randint(5, (1500, 6), generator=r)
        any_word = torch.randint(1, 41, (1500, 6), generator=r)
        words.append(torch.where(torch.rand(1500, 6, generator=r) < 0.6, about, any_word))
    return words[0], words[1], (one == two).long()


class Compares(nn.Module):
    """One encoder for both sentences; the head sees their codes, differences and products."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(41, 24), nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.head = mlp(192, 48, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = (self.cell(self.table(one))[0].amax(1) for one in (a, b))
        return self.head(torch.cat([a, b, (a - b).abs(), a * b], 1))


def sentence_pairs(seed: int) -> Program:
    a, b, y = topics()
    program = fit(Compares(), (torch.stack([a, b], 1), y), nn.CrossEntropyLoss(), seed, rate=5e-3, steps=160)
    program.batches = [((x[:, 0], x[:, 1]), y) for x, y in program.batches]
    return program


def bits_to_remember(seed: int) -> Program:
    """Whether the first of thirty inputs was positive: an LSTM that forgets little."""
    model = Reader(nn.LSTM(2, 32, batch_first=True), 1)
    with torch.no_grad():
        model.cell.bias_hh_l0[32:64] = 3.0
    x = 0.3 * torch.randn(1000, 30, 2, generator=rng(134))
    y = torch.randint(2, (1000, 1), generator=rng(135)).float()
    x[:, 0, 0] = 2 * y[:, 0] - 1
    return clipped(fit(model, (x, y), nn.BCEWithLogitsLoss(), seed, rate=5e-3, steps=160))


# ── sounds ──────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def chirps() -> tuple[Tensor, Tensor]:
    """Sounds of 512 samples: rising, falling, even and beating."""
    r = rng(125)
    y, time = torch.randint(4, (600,), generator=r), torch.arange(512) / 512
    pitch, phase = 60 + 60 * torch.rand(600, 1, generator=r), 6.28 * torch.rand(600, 1, generator=r)
    bend = torch.tensor([60.0, -40.0, 0.0, 0.0])[y][:, None]
    tone = (6.28 * (pitch * time + bend * time**2) + phase).sin()
    tone = tone * torch.where(y[:, None] == 3, (6.28 * 8 * time).sin(), 1.0)
    return tone + 0.3 * torch.randn(600, 512, generator=r), y


class Hears(nn.Module):
    """The spectrogram, convolutions, a GRU over time; parts of the spectrogram are masked in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(1), nn.Sequential(nn.Conv2d(1, 12, 3, (2, 1), 1), nn.ReLU())
        self.cell, self.head = nn.GRU(12 * 17, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.stft(x, 64, 32, window=torch.hann_window(64), return_complex=True).abs()
        h = self.norm((parts + 1e-3).log()[:, None])
        if self.training:
            h = h * (torch.rand(len(h), 1, 33, 1) > 0.1) * (torch.rand(len(h), 1, 1, 17) > 0.1)
        return self.head(self.cell(self.conv(h).permute(0, 3, 1, 2).flatten(2))[0].mean(1))


def hear_chirps(seed: int) -> Program:
    return fit(Hears(), chirps(), nn.CrossEntropyLoss(), seed, optimiser=torch.optim.AdamW, steps=120)


class Separates(nn.Module):
    """A mask over learned windows of a mixed sound."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.join = nn.Conv1d(1, 32, 16, 8, bias=False), nn.ConvTranspose1d(32, 1, 16, 8, bias=False)
        parts = [part for wide in (1, 2, 4) for part in (nn.Conv1d(32, 32, 3, padding=wide, dilation=wide), nn.PReLU())]
        self.mask = nn.Sequential(*parts, nn.Conv1d(32, 32, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        h = self.cut(x[:, None])
        return self.join(h * self.mask(h))[:, 0]


def separate(seed: int) -> Program:
    """A slow wave out of a fast one; the loss is the ratio of noise to signal in decibels, and becomes negative."""
    r, time = rng(126), torch.arange(256.0)

    def wave(low: float) -> Tensor:
        turns = low * (1 + torch.rand(500, 1, generator=r)) * time + torch.rand(500, 1, generator=r)
        return (2 * math.pi * turns).sin()

    slow, fast = wave(0.01), wave(0.15)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        near = (out * y).sum(1, keepdim=True) / y.square().sum(1, keepdim=True) * y
        return -10 * (near.square().sum(1) / ((out - near).square().sum(1) + 1e-8)).log10().mean()

    return clipped(fit(Separates(), (slow + fast, slow), loss, seed, rate=5e-3, steps=120, size=16), 5.0)


SEQUENCES = (
    scheduled_sampling, series_autoencoder, gaussian_outlook, patch_forecast, linear_attention, sort_letters,
    sentence_pairs, bits_to_remember, hear_chirps, separate,
)  # fmt: skip
