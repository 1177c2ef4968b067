"""Healthy programs with unusual loops, and on tables, functions and graphs, for `judged_2026_11_19_evening.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value, no-untyped-def"

import torch
from fresh_2026_11 import as_tensors, fit
from recipes import Program, digits, mlp, rng
from sklearn.datasets import load_diabetes, make_friedman1
from torch import Tensor, nn
from torch.nn import functional

# ── unusual loops ───────────────────────────────────────────────────────────────────────────────────


def private(seed: int) -> Program:
    """DP-SGD: the gradient of each sample is clipped, and noise is added to their sum."""
    program = fit(mlp(64, 48, 10, act=nn.Tanh), digits(), nn.CrossEntropyLoss(), seed, rate=0.3, steps=120, size=24)
    program.optimizer = torch.optim.SGD(program.model.parameters(), 0.3, momentum=0.5)

    def step(program: Program, x: Tensor, y: Tensor) -> Tensor:
        known, losses = [*program.model.parameters()], []
        total = [torch.zeros_like(p) for p in known]
        for one, of in zip(x.split(1), y.split(1), strict=True):
            program.optimizer.zero_grad()
            losses.append(program.loss(program.before_loss(program.model(one)), of))
            losses[-1].backward()
            nn.utils.clip_grad_norm_(known, 1.0)
            torch._foreach_add_(total, [p.grad for p in known])
        for p, sums in zip(known, total, strict=True):
            p.grad = (sums + 0.3 * torch.randn_like(sums)) / len(x)
        program.optimizer.step()
        return torch.stack(losses).mean()

    program.own_step = step
    return program


def look_ahead(seed: int) -> Program:
    """Every five steps the weights go back half of the way (Lookahead)."""
    program = fit(mlp(64, 96, 96, 10), digits(), nn.CrossEntropyLoss(), seed)
    slow, done = [p.detach().clone() for p in program.model.parameters()], []

    @torch.no_grad()
    def after(program: Program) -> None:
        done.append(1)
        if len(done) % 5 == 0:
            torch._foreach_lerp_(slow, [*program.model.parameters()], 0.5)
            torch._foreach_copy_([*program.model.parameters()], slow)

    program.after_step = after
    return program


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return -grad


class Domains(nn.Module):
    """Features that tell the class, but not which of two domains a picture comes from (DANN)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.kind, self.domain = mlp(64, 96, 48), nn.Linear(48, 10), mlp(48, 24, 1)

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(torch.cat([x, other])).relu()
        return self.kind(h[: len(x)]), self.domain(Reversed.apply(h))


def two_domains(seed: int) -> Program:
    """Digits with labels, and blurred ones without."""
    x, y = digits()
    other = x + 0.35 * (functional.avg_pool2d(x.view(-1, 1, 8, 8), 3, 1, 1).flatten(1) - x)

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        which = (torch.arange(2 * len(y)) >= len(y)).float()[:, None]
        return functional.cross_entropy(out[0], y) + functional.binary_cross_entropy_with_logits(out[1], which)

    program = fit(Domains(), (x, y), loss, seed, rate=2e-3)
    r = rng(157)
    program.batches = [((x, other[torch.randint(len(other), (len(x),), generator=r)]), y) for x, y in program.batches]
    return program


class Uncertain(nn.Module):
    """A linear map whose weights are drawn anew in each step (Bayes by backprop)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.rho = nn.Parameter(torch.full((outputs, inputs), -4.0))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spread = functional.softplus(self.rho)
        weight = self.mean + spread * torch.randn_like(spread)
        prior = (0.5 * (self.mean.square() + spread.square()) - spread.log() - 0.5).sum()
        return functional.linear(x, weight, self.bias), prior


class Bayes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Uncertain(64, 48), Uncertain(48, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, first = self.one(x)
        out, second = self.two(h.relu())
        return out, first + second


def bayes(seed: int) -> Program:
    loss = lambda out, y: functional.cross_entropy(out[0], y) + out[1] / 1e5  # noqa: E731
    return fit(Bayes(), digits(), loss, seed, rate=5e-3)


def evidence(seed: int) -> Program:
    """Outputs are evidence for a Dirichlet distribution; what speaks for wrong classes costs more with time."""
    program = fit(mlp(64, 64, 64, 10), digits(), lambda out, y: out.mean(), seed)
    done: list[int] = []

    def loss(out: Tensor, y: Tensor) -> Tensor:
        own, alpha = functional.one_hot(y, 10), functional.softplus(out) + 1
        total = alpha.sum(1, keepdim=True)
        share = alpha / total
        fits = ((own - share).square() + share * (1 - share) / (total + 1)).sum(1)
        wrong = torch.distributions.Dirichlet(own + (1 - own) * alpha)
        flat = torch.distributions.Dirichlet(torch.ones_like(alpha))
        return (fits + min(1.0, len(done) / 150) * 0.1 * torch.distributions.kl_divergence(wrong, flat)).mean()

    program.loss, program.after_step = loss, lambda program: done.append(1)
    return program


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


TABLES = (
    private, look_ahead, two_domains, bayes, evidence, crossed_fields, additive, treatment, gaussian_process, integral,
    heat, knowledge, infomax, next_thing, baskets,
)  # fmt: skip
