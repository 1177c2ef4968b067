"""Healthy programs on tables, graphs, sequences and sounds, and acting ones, for `judged_2026_11_19_evening.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value, no-untyped-def"

import copy
import functools
import math

import torch
from fresh_2026_11 import as_tensors, fit
from judged_2026_11_19_pictures import by_factor, clipped, pre_norm, scheduled, without_decay
from recipes import Causal, Program, chain_of_tokens, draw, mlp, of_tokens, rng
from sklearn.datasets import load_diabetes, make_friedman1
from torch import Tensor, nn
from torch.nn import functional

# ── tables and physics ──────────────────────────────────────────────────────────────────────────────


class Crosses(nn.Module):
    """Cross layers beside a deep network, over embedded fields and numbers (DCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.deep = nn.Embedding(60, 8), mlp(28, 48, 32)
        self.cross, self.head = nn.ModuleList(nn.Linear(28, 28) for _ in range(2)), nn.Linear(60, 1)

    def forward(self, fields: Tensor, numbers: Tensor) -> Tensor:
        h = first = torch.cat([self.table(fields).flatten(1), numbers], 1)
        for layer in self.cross:
            h = first * layer(h) + h
        return self.head(torch.cat([h, self.deep(first).relu()], 1))


def crossed_fields(seed: int) -> Program:
    """Clicks, from three fields of twenty values and four numbers."""
    r = rng(161)
    fields, numbers = torch.randint(20, (4000, 3), generator=r), torch.randn(4000, 4, generator=r)
    effect = torch.randn(3, 20, generator=r)
    both = torch.randn(20, 20, generator=r)
    score = sum(effect[place][fields[:, place]] for place in range(3)) + both[fields[:, 0], fields[:, 1]]
    score = score + numbers[:, 0] * effect[2][fields[:, 2]]
    y = (torch.rand(4000, generator=r) < (1.5 * score).sigmoid()).float()[:, None]
    model = Crosses()
    fields = fields + torch.tensor([0, 20, 40])
    program = fit(model, (torch.cat([fields, numbers], 1), y), nn.BCEWithLogitsLoss(), seed, steps=200, size=96)
    program.batches = [((x[:, :3].long(), x[:, 3:]), y) for x, y in program.batches]
    return program


class EachFeature(nn.Module):
    """A sum of small networks of one feature each (NAM); what each adds is returned, too."""

    def __init__(self, many: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(mlp(1, 24, 24, 1, act=nn.ELU) for _ in range(many))
        self.base = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        parts = torch.cat([part(x[:, [place]]) for place, part in enumerate(self.parts)], 1)
        return parts.sum(1, keepdim=True) + self.base, parts


def additive(seed: int) -> Program:
    x, y = as_tensors(*make_friedman1(1000, 8, noise=0.5, random_state=11))
    loss = lambda out, y: functional.mse_loss(out[0], y) + 1e-2 * out[1].square().mean()  # noqa: E731
    return fit(EachFeature(8), (x, ((y - y.mean()) / y.std())[:, None]), loss, seed, rate=5e-3, size=48)


class Treatment(nn.Module):
    """What would happen with and without treatment: a head for each (TARNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.without, self.treated = mlp(8, 48, 48, act=nn.ELU), mlp(48, 32, 1), mlp(48, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.elu(self.body(x))
        return torch.cat([self.without(h), self.treated(h)], 1)


def treatment(seed: int) -> Program:
    """Each head sees the error of its own group only."""
    r = rng(162)
    x = torch.randn(1200, 8, generator=r)
    given = (torch.rand(1200, generator=r) < x[:, 0].sigmoid()).long()
    y = x[:, 1].sin() + 0.5 * x[:, 2] + given * (0.8 + 0.6 * x[:, 3]) + 0.2 * torch.randn(1200, generator=r)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(out.gather(1, y[:, 1:].long()), y[:, :1])

    return fit(Treatment(), (x, torch.stack([y, given], 1)), loss, seed, rate=4e-3, size=48)


class Kernel(nn.Module):
    """A Gaussian process with a width for each feature; the output is its covariance."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = nn.Parameter(torch.zeros(10))
        self.size, self.noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        far = torch.cdist(h := x * (-self.widths).exp(), h).square()
        return self.size.exp() * torch.exp(-far / 2) + (self.noise.exp() + 1e-4) * torch.eye(len(x))


def gaussian_process(seed: int) -> Program:
    """The marginal likelihood of 150 patients; the whole set in each step."""
    x, y = as_tensors(*load_diabetes(return_X_y=True))
    y = (y - y.mean()) / y.std()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        root = torch.linalg.cholesky(out)
        inner = torch.cholesky_solve(y[:, None], root)[:, 0]
        return (0.5 * y @ inner + root.diagonal().log().sum()) / len(y)

    program = fit(Kernel(), (x, y), loss, seed, rate=5e-2)
    place = torch.randperm(len(x), generator=rng(seed))[:150]
    program.batches = [(x[place], y[place])] * 100
    return program


class Operator(nn.Module):
    """A branch for the function, a trunk for the place (DeepONet)."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.trunk = mlp(20, 48, 48, 24, act=nn.Tanh), mlp(1, 48, 48, 24, act=nn.Tanh)

    def forward(self, function: Tensor, place: Tensor) -> Tensor:
        return (self.branch(function) * self.trunk(place)).sum(1, keepdim=True)


def waves(many: int, r: torch.Generator) -> tuple[Tensor, Tensor]:
    """Amplitudes of sines and cosines of frequencies 1 to 3, and their phases."""
    return torch.randn(many, 3, generator=r), 6.28 * torch.rand(many, 3, generator=r)


def integral(seed: int) -> Program:
    """The integral of a function up to a place."""
    r = rng(163)
    (size, phase), place = waves(2500, r), torch.rand(2500, 1, generator=r)
    turn = 6.28 * torch.arange(1, 4)
    seen = (size[:, None] * (turn * torch.linspace(0, 1, 20)[:, None] + phase[:, None]).sin()).sum(2)
    y = (size * (phase.cos() - (turn * place + phase).cos()) / turn).sum(1, keepdim=True)
    program = fit(Operator(), (torch.cat([seen, place], 1), y / y.std()), nn.MSELoss(), seed, steps=250, size=64)
    program.batches = [((x[:, :20], x[:, 20:]), y) for x, y in program.batches]
    return program


class Modes(nn.Module):
    """Maps between the lowest frequencies, beside a map of each place (FNO)."""

    def __init__(self, wide: int = 16, kept: int = 8) -> None:
        super().__init__()
        self.kept, self.beside = kept, nn.Conv1d(wide, wide, 1)
        self.maps = nn.Parameter(torch.randn(2, wide, wide, kept) / wide)

    def forward(self, x: Tensor) -> Tensor:
        part = torch.fft.rfft(x)[..., : self.kept]
        part = torch.einsum("nik,iok->nok", part, torch.complex(self.maps[0], self.maps[1]))
        return functional.gelu(torch.fft.irfft(part, n=x.shape[-1]) + self.beside(x))


def heat(seed: int) -> Program:
    """A profile of temperature, a while later; the error is relative to the size of the target."""
    (size, phase), r = waves(600, rng(164)), rng(165)
    turn = 6.28 * torch.arange(1, 4)
    wave = lambda part: (part[:, None] * (turn * torch.linspace(0, 1, 33)[:32, None] + phase[:, None]).sin()).sum(2)  # noqa: E731
    x, y = wave(size), wave(size * torch.tensor([0.8, 0.4, 0.1]))
    model = nn.Sequential(nn.Conv1d(1, 16, 1), Modes(), Modes(), nn.Conv1d(16, 1, 1))
    loss = lambda out, y: ((out - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()  # noqa: E731
    keep = torch.randperm(600, generator=r)
    return fit(model, (x[keep, None], y[keep, None]), loss, seed, rate=4e-3, steps=120)


# ── graphs and recommendations ──────────────────────────────────────────────────────────────────────


class Translations(nn.Module):
    """Entities as points, relations as ways between them (TransE); the distance of a triple."""

    def __init__(self) -> None:
        super().__init__()
        self.entity, self.relation = nn.Embedding(60, 16), nn.Embedding(4, 16)

    def forward(self, triple: Tensor) -> Tensor:
        a, r, b = triple.unbind(-1)
        return (self.entity(a) + self.relation(r) - self.entity(b)).norm(dim=-1)


def knowledge(seed: int) -> Program:
    """True triples are to be nearer than false ones, by a margin."""
    r = rng(166)
    a, rel, wrong = (torch.randint(most, (3000,), generator=r) for most in (60, 4, 60))
    b = (a + torch.tensor([1, 5, 12, 30])[rel]) % 60
    x = torch.stack([torch.stack([a, rel, b], 1), torch.stack([a, rel, wrong], 1)], 1)
    loss = lambda out, y: (2 + out[:, 0] - out[:, 1]).relu().mean()  # noqa: E731
    return fit(Translations(), (x, torch.ones(3000)), loss, seed, rate=3e-2, steps=200, size=128)


class Infomax(nn.Module):
    """Whether a node belongs to the graph's summary, or has features of another node (DGI)."""

    def __init__(self, near: Tensor) -> None:
        super().__init__()
        self.near: Tensor
        self.register_buffer("near", near)
        self.one, self.act, self.judge = nn.Linear(12, 32), nn.PReLU(), nn.Bilinear(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        own, other = (self.act(self.near @ self.one(h)) for h in (x, x[torch.randperm(len(x))]))
        summary = own.mean(0).sigmoid().expand(2 * len(x), -1)
        return self.judge(torch.cat([own, other]), summary.contiguous())


def infomax(seed: int) -> Program:
    r = rng(167)
    group = torch.arange(120) % 4
    edges = (torch.rand(120, 120, generator=r) < 0.02 + 0.25 * (group[:, None] == group)).float().triu(1)
    near = edges + edges.T + torch.eye(120)
    x = 1.5 * torch.randn(4, 12, generator=r)[group] + torch.randn(120, 12, generator=r)
    y = (torch.arange(240) < 120).float()[:, None]
    program = fit(Infomax(near / near.sum(1, keepdim=True)), (x, x), nn.BCEWithLogitsLoss(), seed, rate=5e-3)
    program.batches = [(x, y)] * 150
    return program


class NextThing(nn.Module):
    """Self-attention over what a user chose; scores of given candidates (SASRec)."""

    def __init__(self) -> None:
        super().__init__()
        self.things, self.places = nn.Embedding(51, 24, padding_idx=0), nn.Parameter(0.1 * torch.randn(9, 24))
        layer = nn.TransformerEncoderLayer(24, 2, 48, 0.1, batch_first=True, norm_first=True)
        self.body, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(24)

    def forward(self, seen: Tensor, asked: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(9)
        h = self.norm(self.body(self.things(seen) + self.places, mask=mask, is_causal=True))
        return (h[:, :, None] * self.things(asked)).sum(-1)


def next_thing(seed: int) -> Program:
    """Histories of 4 to 10 things, filled up in front; each place asks for the next and for one not chosen."""
    r = rng(168)
    line = [torch.randint(50, (1500,), generator=r)]
    for _ in range(9):
        line.append((line[-1] + torch.tensor([1, 1, 1, 7, 20])[torch.randint(5, (1500,), generator=r)]) % 50)
    x = torch.stack(line, 1) + 1
    x = x * (torch.arange(10) >= torch.randint(7, (1500, 1), generator=r))
    asked = torch.stack([x[:, 1:], torch.randint(1, 51, (1500, 9), generator=r)], 2)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        each = functional.binary_cross_entropy_with_logits(
            out, torch.tensor([1.0, 0.0]).expand_as(out), reduction="none"
        )
        return (each * y[..., None]).sum() / (2 * y.sum())

    data = torch.cat([x[:, :-1], asked.flatten(1)], 1), (x[:, :-1] > 0).float()
    program = fit(NextThing(), data, loss, seed, rate=5e-3, steps=200, size=64)
    program.batches = [((b[:, :9], b[:, 9:].view(-1, 9, 2)), y) for b, y in program.batches]
    return program


def baskets(seed: int) -> Program:
    """What else users like: a denoising autoencoder with a multinomial likelihood (Mult-DAE)."""
    r = rng(169)
    taste = torch.randn(1000, 4, generator=r) @ torch.randn(4, 80, generator=r)
    x = (torch.rand(1000, 80, generator=r) < (2 * taste - 3).sigmoid()).float()
    x = x[x.sum(1) > 3]
    model = nn.Sequential(nn.Dropout(0.5), mlp(80, 48, 16, act=nn.Tanh), nn.Tanh(), mlp(16, 48, 80, act=nn.Tanh))
    loss = lambda out, y: -(out.log_softmax(1) * y).sum(1).mean()  # noqa: E731
    return fit(model, (x / x.norm(dim=1, keepdim=True), x), loss, seed, rate=5e-3, steps=200, size=64)


# ── language ────────────────────────────────────────────────────────────────────────────────────────


class Phrases(nn.Module):
    """Convolutions of three widths over words, the largest value of each, dropout (Kim)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.drop = nn.Embedding(40, 24, padding_idx=0), nn.Dropout(0.5)
        self.looks, self.head = nn.ModuleList(nn.Conv1d(24, 16, wide) for wide in (2, 3, 4)), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x).transpose(1, 2)
        return self.head(self.drop(torch.cat([look(h).relu().amax(2) for look in self.looks], 1)))


def phrases(seed: int) -> Program:
    """Which of three pairs of words occurs in a text."""
    r = rng(170)
    x, y = torch.randint(1, 40, (1500, 14), generator=r), torch.randint(3, (1500,), generator=r)
    place, rows = torch.randint(12, (1500,), generator=r), torch.arange(1500)
    x[rows, place], x[rows, place + 1] = 5 + y, torch.tensor([9, 20, 9])[y]
    program = fit(Phrases(), (x, y), nn.CrossEntropyLoss(), seed, rate=0.8, steps=250, optimiser=torch.optim.Adadelta)
    return clipped(program, 3.0)


class Chain(nn.Module):
    """Scores of tags by a bidirectional LSTM, and of pairs of tags (CRF)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(20, 16), nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.head, self.pairs = nn.Linear(48, 4), nn.Parameter(torch.zeros(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(self.cell(self.words(x))[0]), self.pairs


def tag_chain(seed: int) -> Program:
    """The likelihood of a whole sequence of tags, by the forward algorithm."""
    r = rng(171)
    tags = [torch.randint(4, (1000,), generator=r)]
    for _ in range(8):
        stays = torch.rand(1000, generator=r) < 0.2
        tags.append(torch.where(stays, torch.randint(4, (1000,), generator=r), (tags[-1] + 1) % 4))
    y = torch.stack(tags, 1)
    x = 5 * torch.where(torch.rand(y.shape, generator=r) < 0.6, y, torch.randint(4, y.shape, generator=r))
    x = x + torch.randint(5, y.shape, generator=r)

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        scores, pairs = out
        path = scores.gather(2, y[..., None]).sum((1, 2)) + pairs[y[:, :-1], y[:, 1:]].sum(1)
        total = scores[:, 0]
        for place in range(1, scores.shape[1]):
            total = (total[:, :, None] + pairs).logsumexp(1) + scores[:, place]
        return (total.logsumexp(1) - path).mean()

    return fit(Chain(), (x, y), loss, seed, rate=8e-3, steps=120)


class Switch(nn.Module):
    """Each token goes to one of four experts; the spread of the load is kept even (Switch)."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(wide, 4), nn.ModuleList(mlp(wide, 32, wide) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        most, which = share.max(-1)
        self.balance = 4 * (functional.one_hot(which, 4).float().mean((0, 1)) * share.mean((0, 1))).sum()
        out = sum((which == place)[..., None] * expert(x) for place, expert in enumerate(self.experts))
        return most[..., None] * out


class SparseReader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(24, 32), nn.GRU(32, 32, batch_first=True)
        self.norm, self.switch, self.head = nn.LayerNorm(32), Switch(32), nn.Linear(32, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.cell(self.words(x))[0]
        out = self.head(h + self.switch(self.norm(h)))
        return out, self.switch.balance


def switched(seed: int) -> Program:
    x = chain_of_tokens()
    loss = lambda out, y: of_tokens(out[0], y) + 0.01 * out[1]  # noqa: E731
    return clipped(fit(SparseReader(), (x[:, :-1], x[:, 1:]), loss, seed, rate=5e-3))


@functools.cache
def language() -> nn.Module:
    """A language model that was trained before."""
    with torch.random.fork_rng():
        torch.manual_seed(172)
        model, x = Causal(24), chain_of_tokens()
        program = fit(model, (x[:, :-1], x[:, 1:]), of_tokens, 172, rate=5e-3, steps=200)
        for batch in program.batches:
            program.step(*batch)
    return model


class Tuned(nn.Module):
    """A trained language model, of which only the biases learn, and a new head (BitFit)."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.head = copy.deepcopy(language()), nn.Linear(32, 2)
        self.model.head = nn.Identity()
        for name, p in self.model.named_parameters():
            p.requires_grad_(name.endswith("bias"))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.model(x).mean(1))


def tuned_biases(seed: int) -> Program:
    """Whether most tokens of a text are even."""
    x = chain_of_tokens()[:, :16]
    y = ((x % 2 == 0).sum(1) > 8).long()
    program = fit(Tuned(), (x, y), nn.CrossEntropyLoss(), seed)
    learn = [p for p in program.model.parameters() if p.requires_grad]
    program.optimizer = torch.optim.AdamW(learn, 1e-2, weight_decay=0.0)
    return program


class Prefers(nn.Module):
    """A language model and a frozen copy of it; by how much more likely it finds the better answer (DPO)."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.reference = copy.deepcopy(language()), copy.deepcopy(language()).requires_grad_(False)

    def forward(self, better: Tensor, worse: Tensor) -> Tensor:
        def log(model: nn.Module, x: Tensor) -> Tensor:
            return model(x[:, :-1]).log_softmax(-1).gather(2, x[:, 1:, None])[:, :, 0].sum(1)

        with torch.no_grad():
            known = log(self.reference, better) - log(self.reference, worse)
        return 0.3 * (log(self.policy, better) - log(self.policy, worse) - known)


def preferences(seed: int) -> Program:
    """Of two continuations the one with more even tokens is preferred."""
    x = chain_of_tokens()[:, :13]
    a, b = x[:256], x[256:]
    first = ((a % 2 == 0).sum(1) >= (b % 2 == 0).sum(1))[:, None]
    both = torch.stack([torch.where(first, a, b), torch.where(first, b, a)], 1)
    model = Prefers()
    loss = lambda out, y: -functional.logsigmoid(out).mean()  # noqa: E731
    program = fit(model, (both, torch.ones(256)), loss, seed, rate=5e-4, steps=120)
    program.optimizer = torch.optim.AdamW(model.policy.parameters(), 5e-4)
    program.batches = [((x[:, 0], x[:, 1]), y) for x, y in program.batches]
    return program


class Counted(nn.Module):
    """Two vectors and two offsets for each word (GloVe)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(24, 12), nn.Embedding(24, 12)
        self.a, self.b = nn.Embedding(24, 1), nn.Embedding(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        i, j = x.unbind(1)
        return (self.one(i) * self.two(j)).sum(1) + self.a(i)[:, 0] + self.b(j)[:, 0]


def word_counts(seed: int) -> Program:
    """Logarithms of how often words stand together; rare pairs count less."""
    x = chain_of_tokens()
    count = torch.zeros(24, 24).index_put_(
        (x[:, :-1].flatten(), x[:, 1:].flatten()), torch.tensor(1.0), accumulate=True
    )
    pairs = count.nonzero()
    y = count[pairs[:, 0], pairs[:, 1]]
    loss = lambda out, y: ((y / 60).clamp(max=1) ** 0.75 * (out - y.log()).square()).mean()  # noqa: E731
    return fit(Counted(), (pairs, y), loss, seed, rate=0.1, steps=250, size=64, optimiser=torch.optim.Adagrad)


class Copies(nn.Module):
    """Reads bits, then writes them from memory."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(4, 48, batch_first=True), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, x.shape[1] // 2 :])


def curriculum(seed: int) -> Program:
    """Sequences to repeat, of one bit at first and of four at the end: the loss rises with each new length."""
    model, r = Copies(), rng(seed + 173)
    program = fit(model, (torch.zeros(8, 1), torch.zeros(8)), nn.CrossEntropyLoss(), seed, rate=8e-3)
    program.batches = []
    for t in range(240):
        long = 1 + t // 60
        bits = torch.randint(3, (48, long), generator=r)
        x = torch.cat([functional.one_hot(bits, 4), torch.tensor([0, 0, 0, 1]).expand(48, long, 4)], 1).float()
        program.batches.append((x, bits))
    program.before_loss = lambda out: out.transpose(1, 2)
    return clipped(program)


# ── sounds ──────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def tones() -> tuple[Tensor, Tensor, Tensor]:
    """Tones of three harmonics, 256 samples, the same with noise, and their pitch in 24 steps of an octave."""
    r, time = rng(174), torch.arange(256) / 256
    pitch, loud = 24 * torch.rand(900, 1, generator=r), torch.rand(900, 3, generator=r).square() + 0.05
    turn = 6.28 * 16 * 2 ** (pitch / 24) * time
    x = sum(loud[:, [k]] * ((k + 1) * turn).sin() for k in range(3))
    return x, x + 0.2 * torch.randn(900, 256, generator=r), pitch


def pitch_bins(seed: int) -> Program:
    """Pitch as soft answers of 24 bins (CREPE): convolutions of the waveform, batch normalisation, dropout."""
    _, x, pitch = tones()
    y = torch.exp(-((torch.arange(24) - pitch).square()) / 4)
    parts = [nn.Conv1d(1, 16, 32, 4), nn.ReLU(), nn.BatchNorm1d(16), nn.MaxPool1d(2)]
    parts += [nn.Conv1d(16, 24, 8, 2), nn.ReLU(), nn.BatchNorm1d(24), nn.MaxPool1d(2), nn.Flatten(), nn.Dropout(0.2)]
    return fit(nn.Sequential(*parts, nn.Linear(120, 24)), (x[:, None], y), nn.BCEWithLogitsLoss(), seed)


class Harmonics(nn.Module):
    """Loudness of harmonics from a spectrum; oscillators of known pitch play them (DDSP)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(130, 96), nn.LayerNorm(96), nn.LeakyReLU(), nn.Linear(96, 3), nn.Softplus())

    def forward(self, x: Tensor, pitch: Tensor) -> Tensor:
        loud = self.body(torch.cat([torch.fft.rfft(x).abs() / 16, pitch / 12 - 1], 1))
        turn = 6.28 * 16 * 2 ** (pitch / 24) * torch.arange(256) / 256
        return sum(loud[:, [k]] * ((k + 1) * turn).sin() for k in range(3))


def harmonics(seed: int) -> Program:
    """Spectra of three lengths are compared, and so are their logarithms."""
    clean, x, pitch = tones()

    def loss(out: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for long in (32, 64, 128):
            window = torch.hann_window(long)
            a, b = (torch.stft(one, long, window=window, return_complex=True).abs() for one in (out, y))
            total = total + (a - b).abs().mean() + ((a + 0.1).log() - (b + 0.1).log()).abs().mean()
        return total

    program = fit(Harmonics(), (torch.cat([x, pitch], 1), clean), loss, seed, rate=5e-3)
    program.batches = [((x[:, :256], x[:, 256:]), y) for x, y in program.batches]
    return program


# ── acting ──────────────────────────────────────────────────────────────────────────────────────────


class Decides(nn.Module):
    """A transformer over rewards to come, states and actions in turn (Decision Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.state, self.action = nn.Linear(1, 24), nn.Linear(4, 24), nn.Embedding(4, 24)
        self.places, self.blocks = (
            nn.Parameter(0.02 * torch.randn(18, 24)),
            nn.ModuleList(
                nn.TransformerEncoderLayer(24, 2, 48, 0.0, batch_first=True, norm_first=True) for _ in range(2)
            ),
        )
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, ahead: Tensor, state: Tensor, action: Tensor) -> Tensor:
        h = torch.stack([self.ahead(ahead), self.state(state), self.action(action)], 2).flatten(1, 2) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(18)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(self.norm(h[:, 1::3]))


def decisions(seed: int) -> Program:
    """Offline: good and bad steps towards a goal in the plane; how much is still to come tells which."""
    r = rng(175)
    ways = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    place, goal = 3 * torch.randn(1200, 2, generator=r), 3 * torch.randn(1200, 2, generator=r)
    skill, states, actions, rewards = torch.rand(1200, generator=r), [], [], []
    for _ in range(6):
        states.append(torch.cat([place, goal], 1))
        far = (goal[:, None] - place[:, None] - ways).norm(dim=2)
        any_way = torch.randint(4, (1200,), generator=r)
        actions.append(torch.where(torch.rand(1200, generator=r) < skill, far.argmin(1), any_way))
        new = place + ways[actions[-1]]
        rewards.append((goal - place).norm(dim=1) - (goal - new).norm(dim=1))
        place = new
    state, action, reward = (torch.stack(one, 1) for one in (states, actions, rewards))
    ahead = reward.flip(1).cumsum(1).flip(1)[..., None] / 3
    program = fit(Decides(), (torch.cat([ahead, state / 3, action[..., None]], 2), action), of_tokens, seed, steps=200)
    program.optimizer = without_decay(program.model, 3e-3, 1e-2)
    program.batches = [((b[..., :1], b[..., 1:5], b[..., 5].long()), y) for b, y in program.batches]
    return scheduled(clipped(program), by_factor(lambda t: min(1.0, (t + 1) / 20)))


class Curious(nn.Module):
    """A network learns what a fixed random one says (random network distillation)."""

    def __init__(self) -> None:
        super().__init__()
        self.target, self.predict = mlp(6, 32, 16).requires_grad_(False), mlp(6, 64, 64, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.predict(x), self.target(x).detach()


def curiosity(seed: int) -> Program:
    loss = lambda out, y: (out[0] - out[1]).square().mean()  # noqa: E731
    x = torch.randn(1500, 6, generator=rng(176))
    program = fit(Curious(), (x, torch.zeros(1500)), loss, seed, steps=200)
    program.optimizer = torch.optim.Adam(program.model.predict.parameters(), 2e-3)
    return program


class Soft(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critics = mlp(3, 48, 48, 4), nn.ModuleList(mlp(5, 48, 48, 1) for _ in range(2))
        self.heat = nn.Parameter(torch.tensor(-1.0))

    def act(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.actor(x).chunk(2, 1)
        known = torch.distributions.Normal(mean, spread.clamp(-4, 1).exp())
        raw = known.rsample()
        log = known.log_prob(raw) - 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return raw.tanh(), log.sum(1, keepdim=True)

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        return torch.cat([critic(torch.cat([x, action], 1)) for critic in self.critics], 1)


def soft_actor_critic(seed: int) -> Program:
    """Two critics, an actor and a temperature, with three optimisers; the reward is logged."""
    model, teacher = Soft(), torch.randn(3, 2, generator=rng(177))
    program = fit(model, (torch.randn(2000, 3, generator=rng(178)), torch.zeros(2000)), nn.MSELoss(), seed, size=64)
    program.optimizer = torch.optim.Adam(model.critics.parameters(), 5e-3)
    actor, heat = torch.optim.Adam(model.actor.parameters(), 5e-3), torch.optim.Adam([model.heat], 1e-2)
    program.extra["others"], program.given_loss = [actor, heat], False

    def step(program: Program, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            action = model.act(x)[0]
        reward = 1 - (action - (x @ teacher).tanh()).square().sum(1, keepdim=True)
        loss = program.descend(functional.mse_loss(model(x, action), reward.expand(-1, 2)))
        made, log = model.act(x)
        actor.zero_grad()
        (model.heat.exp().detach() * log - model(x, made).amin(1, keepdim=True)).mean().backward()
        actor.step()
        heat.zero_grad()
        (-model.heat * (log.detach() - 2).mean()).backward()
        heat.step()
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = step
    program.batches = draw(torch.randn(2000, 3, generator=rng(178)), torch.zeros(2000), 250, 64, seed)
    return program


MORE = (
    crossed_fields, additive, treatment, gaussian_process, integral, heat, knowledge, infomax, next_thing, baskets,
    phrases, tag_chain, switched, tuned_biases, preferences, word_counts, curriculum, pitch_bins, harmonics, decisions,
    curiosity, soft_actor_critic,
)  # fmt: skip
