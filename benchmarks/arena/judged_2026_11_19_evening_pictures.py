"""Healthy programs on pictures, representations and generators for `judged_2026_11_19_evening.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value, no-untyped-def"

import copy
import functools
import math

import torch
from fresh_2026_11 import fit, moons
from judged_2026_11_19_pictures import scheduled
from recipes import Program, digits, mlp, rng
from torch import Tensor, nn
from torch.nn import functional


def images() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x.view(-1, 1, 8, 8), y


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────


def larger_pictures(seed: int) -> Program:
    """Sub-pixel convolutions (ESPCN): from 4 × 4 to 8 × 8."""
    y = images()[0]
    parts = [nn.Conv2d(1, 24, 3, padding=1), nn.Tanh(), nn.Conv2d(24, 16, 3, padding=1), nn.Tanh()]
    model = nn.Sequential(*parts, nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2))
    return fit(model, (functional.avg_pool2d(y, 2), y), nn.L1Loss(), seed, rate=4e-3)


class Capsules(nn.Module):
    """Sixteen capsules of eight numbers, routed to one per class in three rounds; lengths are the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 24, 3), nn.Conv2d(24, 32, 3, 2)
        self.votes = nn.Parameter(0.1 * torch.randn(16, 10, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        h = squash(self.second(self.first(x).relu()).flatten(1).view(len(x), -1, 8))
        votes = torch.einsum("npi,pcij->npcj", h, self.votes)
        scores = torch.zeros(votes.shape[:3])
        for _ in range(3):
            out = squash((scores.softmax(2)[..., None] * votes).sum(1))
            scores = scores + (votes.detach() * out[:, None]).sum(-1)
        return out.norm(dim=-1)


def squash(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-8).sqrt()


def capsules(seed: int) -> Program:
    def margins(out: Tensor, y: Tensor) -> Tensor:
        own = functional.one_hot(y, 10)
        return (own * (0.9 - out).relu() ** 2 + 0.5 * (1 - own) * (out - 0.1).relu() ** 2).sum(1).mean()

    return fit(Capsules(), images(), margins, seed, steps=120)


class LooksAround(nn.Module):
    """A spatial transformer: a map of the plane, which begins as the identity, is applied before the network."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 32), nn.ReLU())
        self.turn = nn.Linear(32, 6)
        nn.init.zeros_(self.turn.weight)
        self.turn.bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
        body = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.body = nn.Sequential(*body, nn.Linear(216, 10))

    def forward(self, x: Tensor) -> Tensor:
        grid = functional.affine_grid(self.turn(self.place(x)).view(-1, 2, 3), list(x.shape), align_corners=False)
        return self.body(functional.grid_sample(x, grid, align_corners=False))


def look_around(seed: int) -> Program:
    """Digits somewhere in a larger picture."""
    (x, y), r = images(), rng(151)
    wide = torch.zeros(len(x), 1, 12, 12)
    for one, (top, left) in zip(zip(wide, x, strict=True), torch.randint(5, (len(x), 2), generator=r), strict=True):
        one[0][:, top : top + 8, left : left + 8] = one[1] - x.min()
    return fit(LooksAround(), (wide / wide.std(), y), nn.CrossEntropyLoss(), seed, rate=3e-3, steps=200)


class Signs(nn.Linear):
    """Only the signs of weights are used; the gradient passes straight through."""

    def forward(self, x: Tensor) -> Tensor:
        signs = self.weight + (self.weight.sign() - self.weight).detach()
        return functional.linear(x, signs / self.in_features**0.5)


def binary_weights(seed: int) -> Program:
    """BinaryConnect: the weights behind the signs are kept within −1 and 1."""
    hidden = [part for a, b in ((64, 96), (96, 96)) for part in (Signs(a, b, False), nn.BatchNorm1d(b), nn.Hardtanh())]
    program = fit(nn.Sequential(*hidden, nn.Linear(96, 10)), digits(), nn.CrossEntropyLoss(), seed, rate=5e-3)

    @torch.no_grad()
    def clamp(program: Program) -> None:
        for p in program.model.parameters():
            p.clamp_(-1, 1)

    program.after_step = clamp
    return program


@functools.cache
def rectangles() -> tuple[Tensor, Tensor]:
    """Bright rectangles in noise; centre and size of each as shares of the picture."""
    r = rng(152)
    size = 0.2 + 0.4 * torch.rand(900, 2, generator=r)
    centre = size / 2 + (1 - size) * torch.rand(900, 2, generator=r)
    place = (torch.arange(16) + 0.5) / 16
    inside = ((place - centre[..., None]).abs() < size[..., None] / 2).float()
    x = inside[:, 0, :, None] * inside[:, 1, None] + 0.3 * torch.randn(900, 16, 16, generator=r)
    return (x[:, None] - 0.15) / 0.5, torch.cat([centre, size], 1)


def boxes(seed: int) -> Program:
    """Generalised intersection over union, and the distance of the numbers themselves."""
    parts = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(384, 64), nn.ReLU(), nn.Linear(64, 4), nn.Sigmoid())

    def loss(out: Tensor, y: Tensor) -> Tensor:
        low, high = (torch.stack([one[:, :2] + part * one[:, 2:] / 2 for one in (out, y)]) for part in (-1, 1))
        both = (high.amin(0) - low.amax(0)).clamp(min=0).prod(1)
        union = out[:, 2:].prod(1) + y[:, 2:].prod(1) - both
        hull = (high.amax(0) - low.amin(0)).prod(1)
        return (1 - both / union + (hull - union) / hull).mean() + 2 * functional.l1_loss(out, y)

    return fit(model, rectangles(), loss, seed, rate=2e-3, size=48)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Captions(nn.Module):
    """A convolution, then an LSTM that writes, given the letters so far."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 48), nn.Tanh())
        self.letters, self.cell = nn.Embedding(28, 24, padding_idx=0), nn.LSTM(24, 48, batch_first=True)
        self.head = nn.Linear(48, 28)

    def forward(self, x: Tensor, so_far: Tensor) -> Tensor:
        state = self.see(x)[None]
        return self.head(self.cell(self.letters(so_far), (state, torch.zeros_like(state)))[0])


def captions(seed: int) -> Program:
    """The English word for a digit, letter by letter; 0 fills up and is not counted."""
    x, y = images()
    word = torch.tensor([[27, *(ord(c) - 96 for c in word), 27, *[0] * (5 - len(word))] for word in WORDS])[y]
    loss = lambda out, y: functional.cross_entropy(out.transpose(1, 2), y, ignore_index=0)  # noqa: E731
    program = fit(Captions(), (torch.cat([x.flatten(1), word], 1), word[:, 1:]), loss, seed, rate=5e-3)
    program.batches = [((b[:, :64].view(-1, 1, 8, 8), b[:, 64:-1].long()), y) for b, y in program.batches]
    return program


@functools.cache
def backbone() -> nn.Module:
    """A network with batch normalisation, trained to tell low digits from high ones."""
    with torch.random.fork_rng():
        torch.manual_seed(153)
        parts = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
        parts += [nn.Conv2d(16, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*parts, nn.Linear(384, 2))
        x, y = images()
        program = fit(model, (x, (y > 4).long()), nn.CrossEntropyLoss(), 153)
        for batch in program.batches:
            program.step(*batch)
    return model[:-1]


class FineTuned(nn.Module):
    """Batch normalisation stays as it was learned, in eval mode, as in detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = copy.deepcopy(backbone()), nn.Linear(384, 10)
        for module in self.body:
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(False)

    def train(self, mode: bool = True) -> "FineTuned":
        super().train(mode)
        for module in self.body:
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def frozen_norms(seed: int) -> Program:
    model = FineTuned()
    model.train()
    program = fit(model, images(), nn.CrossEntropyLoss(), seed)
    groups = [
        {"params": [p for p in model.body.parameters() if p.requires_grad], "lr": 0.01},
        {"params": model.head.parameters(), "lr": 0.05},
    ]
    program.optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
    return program


def one_picture(seed: int) -> Program:
    """Deep image prior: a network from fixed noise to one noisy picture of eight digits; the batch has one sample."""
    clean = torch.cat([images()[0][7:15].view(2, 4, 8, 8).transpose(2, 3).flatten(1, 2)[:, None]], 0).flatten(2)
    y = (clean.view(1, 1, 16, 32) * 0.25) + 0.1 * torch.randn(1, 1, 16, 32, generator=rng(154))
    parts = [nn.Conv2d(8, 24, 3, padding=1), nn.BatchNorm2d(24), nn.LeakyReLU(0.2)]
    parts += [nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24)]
    model = nn.Sequential(*parts, nn.LeakyReLU(0.2), nn.Upsample(scale_factor=2), nn.Conv2d(24, 1, 3, padding=1))
    x = 0.3 * torch.rand(1, 8, 4, 8, generator=rng(155))
    program = fit(model, (x, y), nn.MSELoss(), seed, rate=1e-2, size=1)
    program.batches = [(x, y)] * 200
    return program


# ── representations and generators ──────────────────────────────────────────────────────────────────


class Siamese(nn.Module):
    """SimSiam: the prediction of one view's code for the other's, through which no gradient flows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(mlp(64, 96, 48, norm=True), nn.BatchNorm1d(48, affine=False))
        self.predict = mlp(48, 24, 48, norm=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a, b = (self.body(functional.dropout(x, 0.2) + 0.4 * torch.randn_like(x)) for _ in range(2))
        return self.predict(a), b.detach(), self.predict(b), a.detach()


def siamese(seed: int) -> Program:
    def loss(out: tuple[Tensor, ...], y: Tensor) -> Tensor:
        a, b, c, d = out
        return -(functional.cosine_similarity(a, b) + functional.cosine_similarity(c, d)).mean() / 2

    return scheduled(
        fit(
            Siamese(), digits(), loss, seed, rate=0.1, size=64,
            optimiser=torch.optim.SGD, momentum=0.9, weight_decay=1e-4,
        ),
        lambda optimiser: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 150),
    )  # fmt: skip


def supervised_contrast(seed: int) -> Program:
    """Codes of one class attract each other (SupCon)."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        z, self_ = functional.normalize(out, dim=1), torch.eye(len(y), dtype=torch.bool)
        log = (z @ z.T / 0.2).masked_fill(self_, -1e9).log_softmax(1)
        same = (y[:, None] == y) & ~self_
        return -((log * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return fit(mlp(64, 96, 96, 24, act=nn.GELU), digits(), loss, seed, rate=2e-3, size=64)


class Queue(nn.Module):
    """MoCo: keys of a slow copy; those of earlier batches are the other answers."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.share = mlp(64, 96, 24), 0.02
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.queue: Tensor
        self.register_buffer("queue", functional.normalize(torch.randn(256, 24), dim=1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = (x + 0.4 * torch.randn_like(x) for _ in range(2))
        query = functional.normalize(self.query(a), dim=1)
        with torch.no_grad():
            torch._foreach_lerp_([*self.key.parameters()], [*self.query.parameters()], self.share)
            key = functional.normalize(self.key(b), dim=1)
        out = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.T], 1) / 0.2
        self.queue = torch.cat([key, self.queue])[:256]
        return out


def momentum_queue(seed: int) -> Program:
    model = Queue()
    program = fit(model, digits(), nn.CrossEntropyLoss(), seed, steps=200)
    program.optimizer = torch.optim.Adam(model.query.parameters(), 2e-3)
    program.batches = [(x, torch.zeros_like(y)) for x, y in program.batches]
    return program


class Letters(nn.Module):
    """A discrete code: eight letters of an alphabet of eight, drawn with Gumbel noise; it cools down."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.heat = mlp(64, 96, 64), mlp(64, 96, 64), 1.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.down(x).view(-1, 8, 8)
        if self.training:
            self.heat = max(0.5, 0.997 * self.heat)
        return self.up(functional.gumbel_softmax(scores, self.heat).flatten(1)), scores


def discrete_code(seed: int) -> Program:
    x = (digits()[0] - digits()[0].min()) / (digits()[0].max() - digits()[0].min())

    def bound(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        log = out[1].log_softmax(-1)
        prior = (log.exp() * (log + math.log(8))).sum((1, 2)).mean()
        return functional.binary_cross_entropy_with_logits(out[0], y, reduction="sum") / len(y) + 0.1 * prior

    return fit(Letters(), (x, x), bound, seed, rate=5e-3, steps=250)


def sliced_distance(seed: int) -> Program:
    """A generator whose points, seen along random lines, lie as those of the data."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        line = functional.normalize(torch.randn(2, 24), dim=0)
        return ((out @ line).sort(0).values - (y @ line).sort(0).values).square().mean()

    x = torch.randn(800, 4, generator=rng(156))
    return fit(mlp(4, 64, 64, 2), (x, moons()[0]), loss, seed, size=128)


def picture_to_picture(seed: int) -> Program:
    """From outlines to digits: a judge of pairs, and the distance to the right picture (pix2pix)."""
    y = images()[0]
    x = (y - functional.avg_pool2d(y, 3, 1, 1)) / 0.5
    down, up = nn.Conv2d(1, 16, 4, 2, 1), nn.ConvTranspose2d(32, 16, 4, 2, 1)
    parts = [down, nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), up, nn.ReLU()]
    model = nn.Sequential(*parts, nn.Conv2d(16, 1, 3, padding=1))
    judge = nn.Sequential(nn.Conv2d(2, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 3, padding=1))
    second = torch.optim.Adam(judge.parameters(), 1e-3, betas=(0.5, 0.999))
    program = fit(model, (x, y), nn.L1Loss(), seed, rate=2e-3, steps=120, betas=(0.5, 0.999))
    says = lambda x, y, real: functional.binary_cross_entropy_with_logits(  # noqa: E731
        out := judge(torch.cat([x, y], 1)), torch.full_like(out, real)
    )

    def play(program: Program, x: Tensor, y: Tensor) -> Tensor:
        made = program.model(x)
        second.zero_grad()
        ((says(x, y, 1.0) + says(x, made.detach(), 0.0)) / 2).backward()
        second.step()
        return program.descend(says(x, made, 1.0) + 20 * program.loss(made, y))

    program.own_step, program.given_loss = play, False
    return program


PICTURES = (
    larger_pictures, capsules, look_around, binary_weights, boxes, captions, frozen_norms, one_picture, siamese,
    supervised_contrast, momentum_queue, discrete_code, sliced_distance, picture_to_picture,
)  # fmt: skip
