"""Healthy programs on pictures for `judged_2026_11_19.py`."""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped"
# mypy: disable-error-code="attr-defined, operator, misc, index, assignment, func-returns-value"

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from fresh_2026_11 import fit
from recipes import Program, Residual, digits, mlp, rng
from torch import Tensor, nn
from torch.nn import functional


def scheduled(program: Program, make: Callable[[torch.optim.Optimizer], Any]) -> Program:
    """A schedule that takes one step after each step of the optimiser."""
    schedule = make(program.optimizer)
    program.after_step = lambda program: schedule.step()
    program.extra["schedule"] = schedule
    return program


def by_factor(factor: Callable[[int], float]) -> Callable[[torch.optim.Optimizer], Any]:
    return lambda optimiser: torch.optim.lr_scheduler.LambdaLR(optimiser, factor)


def clipped(program: Program, norm: float = 1.0) -> Program:
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), norm)
    return program


class Averaged(nn.Module):
    """A network and the moving average of its weights."""

    def __init__(self, fast: nn.Module) -> None:
        super().__init__()
        self.fast, self.slow = fast, copy.deepcopy(fast).requires_grad_(False)

    def forward(self, *x: Tensor) -> Tensor:
        return self.fast(*x)

    @torch.no_grad()
    def update(self, share: float) -> None:
        torch._foreach_lerp_([*self.slow.parameters()], [*self.fast.parameters()], share)


def conv(inputs: int, outputs: int, act: nn.Module | None = None, **options: Any) -> list[nn.Module]:
    """Convolution, batch normalisation, activation."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False, **options), nn.BatchNorm2d(outputs), act or nn.ReLU()]


POOL = (nn.AdaptiveAvgPool2d(1), nn.Flatten())


@functools.cache
def scenes() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures of a disc, a square or a cross; which one, its centre and size, and the class of each pixel."""
    r, many = rng(101), 700
    y, place = torch.randint(3, (many,), generator=r), 4 + 8 * torch.rand(many, 2, generator=r)
    grid = torch.arange(16.0)
    size = (2.5 + 2 * torch.rand(many, generator=r))[:, None, None]
    down, across = (grid[:, None] - place[:, :1, None]).abs(), (grid - place[:, 1:, None]).abs()
    far, near = torch.maximum(down, across), torch.minimum(down, across)
    kinds = torch.stack([down**2 + across**2 < size**2, far < 0.85 * size, (near < 0.3 * size) & (far < size)])
    inside = kinds[y, torch.arange(many)]
    x = inside + 0.3 * torch.randn(many, 16, 16, generator=r)
    return (x - x.mean())[:, None] / x.std(), y, torch.cat([place, size[:, 0]], 1), inside * (y + 1)[:, None, None]


def pictures() -> tuple[Tensor, Tensor]:
    x, y = digits()
    return x.view(-1, 1, 8, 8), y


def digits_cutmix(seed: int) -> Program:
    """Rectangles of another sample; the loss has a term for each of the two labels."""
    model = nn.Sequential(*conv(1, 16), nn.MaxPool2d(2), *conv(16, 32), *POOL, nn.Linear(32, 10))
    program = fit(model, pictures(), nn.CrossEntropyLoss(), seed, rate=5e-3)

    def mixed(program: Program, x: Tensor, y: Tensor) -> Tensor:
        other, wide = torch.randperm(len(x)), int(torch.randint(6, ()))
        x, share = x.clone(), wide * wide / 64
        x[:, :, :wide, :wide] = x[other, :, :wide, :wide]
        out = program.before_loss(program.model(x))
        return program.descend((1 - share) * program.loss(out, y) + share * program.loss(out, y[other]))

    program.own_step = mixed
    return program


class Inverted(nn.Module):
    """A residual branch that is wide inside, with a convolution by channel (MobileNetV2)."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        many = 4 * wide
        self.body = nn.Sequential(
            nn.Conv2d(wide, many, 1, bias=False), nn.BatchNorm2d(many), nn.ReLU6(),
            *conv(many, many, nn.ReLU6(), groups=many), nn.Conv2d(many, wide, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def inverted_residuals(seed: int) -> Program:
    model = nn.Sequential(*conv(1, 12, stride=2), Inverted(12), Inverted(12), *POOL, nn.Dropout(0.1), nn.Linear(12, 3))
    program = fit(
        model,
        scenes()[:2],
        nn.CrossEntropyLoss(),
        seed,
        rate=4e-3,
        optimiser=torch.optim.RMSprop,
        momentum=0.9,
        eps=1e-3,
    )
    return scheduled(program, lambda optimiser: torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.99))


class Attention(nn.Module):
    """Written out, with two heads; `scale` multiplies the logits."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.qkv, self.mix, self.scale = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide), (wide / 2) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        share = (self.scale * q @ k.transpose(-1, -2)).softmax(-1)
        return self.mix((share @ v).transpose(1, 2).flatten(2))


def pre_norm(wide: int, blocks: int) -> list[nn.Module]:
    parts = ((Attention(wide), mlp(wide, 2 * wide, wide, act=nn.GELU)) for _ in range(blocks))
    return [Residual(part, nn.LayerNorm(wide)) for pair in parts for part in pair]


def without_decay(model: nn.Module, rate: float, decay: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    kinds = ([p for p in model.parameters() if (p.dim() > 1) is kind] for kind in (True, False))
    groups = [{"params": some, "weight_decay": part} for some, part in zip(kinds, (decay, 0.0), strict=True)]
    return torch.optim.AdamW(groups, lr=rate)


class Hybrid(nn.Module):
    """Convolutions, then attention between their places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, 2, 1), nn.GELU(), nn.Conv2d(24, 24, 3, 2, 1))
        self.place, self.blocks = nn.Parameter(0.02 * torch.randn(16, 24)), nn.Sequential(*pre_norm(24, 2))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.stem(x).flatten(2).transpose(1, 2) + self.place)
        return self.head(self.norm(h).mean(1))


def hybrid_attention(seed: int) -> Program:
    """Warm-up, then half a cosine."""
    program = fit(Hybrid(), scenes()[:2], nn.CrossEntropyLoss(label_smoothing=0.1), seed, steps=200)
    program.optimizer = without_decay(program.model, 3e-3, 0.05)
    return scheduled(clipped(program), by_factor(lambda t: min((t + 1) / 15, 1.02 - t / 200)))


def grid_detector(seed: int) -> Program:
    """For each of 4 × 4 cells: whether an object's centre is in it, where, and its class."""
    x, kind, boxes, _ = scenes()
    y, (row, column) = torch.zeros(len(x), 4, 4, 4), (boxes[:, :2] / 4).long().clamp(max=3).T
    y[torch.arange(len(x)), :, row, column] = torch.cat(
        [torch.ones(len(x), 1), boxes[:, :2] / 4 % 1, kind[:, None].float()], 1
    )

    def loss(out: Tensor, y: Tensor) -> Tensor:
        there = y[:, 0] > 0
        found = functional.binary_cross_entropy_with_logits(out[:, 0], y[:, 0], pos_weight=torch.tensor(5.0))
        box = functional.smooth_l1_loss(out[:, 1:3].movedim(1, -1)[there], y[:, 1:3].movedim(1, -1)[there])
        return found + 2 * box + functional.cross_entropy(out[:, 3:].movedim(1, -1)[there], y[:, 3][there].long())

    model = nn.Sequential(*conv(1, 16, nn.LeakyReLU(0.1), stride=2), *conv(16, 32, stride=2), nn.Conv2d(32, 6, 3, 1, 1))
    return fit(model, (x, y), loss, seed, rate=4e-3, steps=200)


def keypoints(seed: int) -> Program:
    """A map of heat around the centre, half of the picture's size."""
    x, _, boxes, _ = scenes()
    grid = 2 * torch.arange(8.0) + 0.5
    far = (grid[:, None] - boxes[:, :1, None]) ** 2 + (grid - boxes[:, 1:2, None]) ** 2
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2, 2), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    return fit(model, (x, (-far / 8).exp()[:, None]), nn.MSELoss(), seed, steps=200)


def segment(seed: int) -> Program:
    """Pixels of four classes with weights; the margin has no class.  The rate falls as a polynomial."""
    x, _, _, masks = scenes()
    y = torch.full_like(masks, 255)
    y[:, 1:-1, 1:-1] = masks[:, 1:-1, 1:-1]
    parts = [
        part
        for a, wide in ((1, 1), (24, 2), (24, 4))
        for part in (nn.Conv2d(a, 24, 3, padding=wide, dilation=wide), nn.GroupNorm(4, 24), nn.ReLU())
    ]
    loss = nn.CrossEntropyLoss(torch.tensor([0.4, 1.0, 1.0, 1.5]), ignore_index=255)
    program = fit(
        nn.Sequential(*parts, nn.Conv2d(24, 4, 1)), (x, y), loss, seed, rate=0.05, steps=160, size=16,
        optimiser=torch.optim.SGD, momentum=0.9, weight_decay=1e-4,
    )  # fmt: skip
    return scheduled(program, by_factor(lambda t: (1 - t / 161) ** 0.9))


class Angles(nn.Module):
    """Cosines between an embedding and one direction for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.ways = mlp(64, 96, 16, act=nn.PReLU, norm=True), nn.Parameter(torch.randn(10, 16))

    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(self.body(x), dim=1) @ functional.normalize(self.ways, dim=1).T


def arc_margin(seed: int) -> Program:
    """Angles to the own class count 0.3 more."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        turned = (out.clamp(-0.999, 0.999).acos() + 0.3 * functional.one_hot(y, 10)).cos()
        return functional.cross_entropy(12 * turned, y)

    return fit(
        Angles(),
        digits(),
        loss,
        seed,
        rate=0.05,
        optimiser=torch.optim.SGD,
        momentum=0.9,
        nesterov=True,
        weight_decay=5e-4,
    )


class Distance(nn.Module):
    """The distance between embeddings of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(64, 64, 64, 16)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return ((self.body(a) - self.body(b)).square().sum(1) + 1e-6).sqrt()


def alike_or_not(seed: int) -> Program:
    """Pairs, half of them of one digit; others are pushed apart up to a margin."""
    x, y = digits()
    r = rng(102)
    one = torch.randint(len(y), (3000,), generator=r)
    order, many = y.argsort(), torch.bincount(y)
    inside = (torch.rand(3000, generator=r) * many[y[one]]).long()
    same = order[(many.cumsum(0) - many)[y[one]] + inside]
    two = torch.where(torch.rand(3000, generator=r) < 0.5, same, torch.randint(len(y), (3000,), generator=r))
    loss = lambda out, y: (y * out**2 + (1 - y) * (2 - out).relu() ** 2).mean()  # noqa: E731
    program = fit(Distance(), (torch.stack([x[one], x[two]], 1), (y[one] == y[two]).float()), loss, seed, rate=1e-3)
    program.batches = [((both[:, 0], both[:, 1]), y) for both, y in program.batches]
    return program


@functools.cache
def trained(below: int, seed: int, steps: int) -> nn.Module:
    """A network that knows the digits below some number."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, (x, y) = mlp(64, 128, 64, 10), digits()
        program = fit(model, (x[y < below], y[y < below]), nn.CrossEntropyLoss(), seed, steps=steps)
        for one in program.batches:
            program.step(*one)
    return model


def gradual_unfreezing(seed: int) -> Program:
    """A new head on pretrained layers, which join after 40 steps with a tenth of its rate."""
    body = copy.deepcopy(trained(5, 0, 120)[:4]).requires_grad_(False)
    program = fit(nn.Sequential(body, nn.Linear(64, 10)), digits(), nn.CrossEntropyLoss(), seed)
    groups = [{"params": program.model[1].parameters(), "lr": 1e-2}, {"params": body.parameters(), "lr": 1e-3}]
    program.optimizer, done = torch.optim.AdamW(groups), []

    def thaw(program: Program) -> None:
        done.append(1)
        body.requires_grad_(len(done) > 40)

    program.after_step = thaw
    return program


class Student(nn.Module):
    """Returns scores and a guess of the teacher's hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.hint, self.head = mlp(64, 24, 24, 24), nn.Linear(24, 64), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.head(h.relu()), self.hint(h)


def hints(seed: int) -> Program:
    """Distillation of scores and of features; the batch holds what the teacher says."""
    (x, _), model = digits(), trained(10, 1, 250)
    with torch.no_grad():
        known = torch.cat([model(x), model[:3](x)], 1)

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        scores = functional.kl_div((out[0] / 3).log_softmax(1), (y[:, :10] / 3).softmax(1), reduction="batchmean")
        return 9 * scores + functional.mse_loss(out[1], y[:, 10:])

    return fit(Student(), (x, known), loss, seed, rate=4e-3, steps=200)


def adversarial(seed: int) -> Program:
    """Each batch is moved by its own gradient first."""
    program = fit(mlp(64, 128, 10, act=nn.ELU), digits(), nn.CrossEntropyLoss(), seed, size=64)

    def attacked(program: Program, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (way,) = torch.autograd.grad(program.loss(program.model(x), y), x)
        return program.descend(program.loss(program.before_loss(program.model((x + 0.1 * way.sign()).detach())), y))

    program.own_step = attacked
    return program


def mean_teacher(seed: int) -> Program:
    """Four labels a batch; for the others the averaged network's answer is the target."""
    program = fit(Averaged(mlp(64, 64, 64, 10)), digits(), nn.CrossEntropyLoss(), seed, rate=2e-3, steps=200, size=48)

    def consistent(program: Program, x: Tensor, y: Tensor) -> Tensor:
        noisy, clean = (x + 0.2 * torch.randn_like(x) for _ in range(2))
        with torch.no_grad():
            goal = program.model.slow(clean).softmax(1)
        out = program.model(noisy)
        apart = (out.softmax(1) - goal).square().sum(1).mean()
        return program.descend(program.loss(program.before_loss(out[:4]), y[:4]) + 2 * apart)

    program.own_step = consistent
    program.after_step = lambda program: program.model.update(0.1)
    return program


PICTURES = (
    digits_cutmix, inverted_residuals, hybrid_attention, grid_detector, keypoints, segment, arc_margin,
    alike_or_not, gradual_unfreezing, hints, adversarial, mean_teacher,
)  # fmt: skip
