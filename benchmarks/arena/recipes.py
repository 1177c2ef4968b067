"""Small versions of networks that people train, each a function of a seed: model, optimiser, loss, batches, one step.

Shapes: N samples, C classes, T places of a sequence, d features.  Data are the digits of scikit-learn or drawn.
"""
# mypy: disable-error-code="no-untyped-call, no-any-return, union-attr, arg-type, list-item, import-untyped, call-arg"

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Any, Any], Tensor]


@dataclass
class Program:
    """A training program as a user writes it; `step` is the body of the loop."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Loss
    batches: list[tuple[Any, Any]]
    clears: bool = True
    before_loss: Callable[[Any], Any] = lambda out: out  # what the loop does to outputs
    after_backward: Callable[["Program"], None] = lambda program: None
    after_step: Callable[["Program"], None] = lambda program: None
    logs: bool = True  # whether the loop logs its loss
    given_loss: bool = True  # whether the watch gets the loss
    extra: dict[str, Any] = field(default_factory=dict)
    own_step: Callable[["Program", Any, Any], Tensor] | None = None
    metric: Callable[["Program"], dict[str, float]] | None = None

    def step(self, x: Any, y: Any) -> Tensor:
        """One step of training; its loss."""
        if self.own_step is not None:
            return self.own_step(self, x, y)
        return self.descend(self.loss(self.before_loss(self.outputs(x)), y))

    def outputs(self, x: Any) -> Any:
        return self.model(*x) if isinstance(x, tuple) else self.model(x)

    def descend(self, loss: Tensor) -> Tensor:
        """One step down the gradient of a loss, which is returned."""
        if self.clears:
            self.optimizer.zero_grad()
        loss.backward()
        self.after_backward(self)
        self.optimizer.step()
        self.after_step(self)
        return loss


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    known = load_digits()
    x = torch.tensor(known.data, dtype=torch.float32) / 16
    return (x - x.mean()) / x.std(), torch.tensor(known.target)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@functools.cache
def table(load: Callable[[], Any], scaled: bool = True) -> tuple[Tensor, Tensor]:
    data = load()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    return ((x - x.mean(0)) / x.std(0) if scaled else x), y


def draw(x: Any, y: Tensor, steps: int, size: int, seed: int) -> list[tuple[Any, Any]]:
    """Batches of samples drawn with replacement."""
    rng = torch.Generator().manual_seed(seed)
    places = [torch.randint(len(y), (size,), generator=rng) for _ in range(steps)]
    return [(x[place], y[place]) for place in places]


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU, norm: bool = False, drop: float = 0.0) -> nn.Sequential:
    made: list[nn.Module] = []
    for place in range(len(sizes) - 1):
        made.append(nn.Linear(sizes[place], sizes[place + 1]))
        if place < len(sizes) - 2:
            made += [nn.BatchNorm1d(sizes[place + 1])] if norm else []
            made += [act(), *([nn.Dropout(drop)] if drop else [])]
    return nn.Sequential(*made)


def of_digits(
    model: nn.Module, seed: int, *, rate: float = 2e-3, steps: int = 200, flat: bool = True, **more: Any
) -> Program:
    x, y = digits()
    x = x if flat else x.view(-1, 1, 8, 8)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    return Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, steps, 64, seed), **more)


class Residual(nn.Module):
    def __init__(self, body: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.norm = body, norm or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(self.norm(x))
        return out


class Causal(nn.Module):
    """A decoder of tokens, as GPT: learned places, pre-norm blocks, weights of spread 0.02."""

    def __init__(self, tokens: int, wide: int = 32, blocks: int = 2, places: int = 16, *, pre: bool = True) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, wide), nn.Embedding(places, wide)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(wide, 4, 4 * wide, 0.0, "gelu", batch_first=True, norm_first=pre)
            for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, tokens, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        out: Tensor = self.head(self.norm(h))
        return out


def chain_of_tokens(many: int = 512, tokens: int = 24, long: int = 16) -> Tensor:
    """Sequences of a Markov chain with few likely followers."""
    rng = torch.Generator().manual_seed(7)
    table = (3 * torch.randn(tokens, tokens, generator=rng)).softmax(-1)
    line = [torch.randint(tokens, (many,), generator=rng)]
    for _ in range(long):
        line.append(torch.multinomial(table[line[-1]], 1, generator=rng)[:, 0])
    return torch.stack(line, 1)


def of_tokens(out: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase], inputs: int, wide: int, outputs: int) -> None:
        super().__init__()
        self.cell, self.head = cell(inputs, wide, batch_first=True), nn.Linear(wide, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.cell(x)[0][:, -1])
        return out


class Reader(nn.Module):
    def __init__(self, cell: nn.RNNBase, outputs: int) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(cell.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.cell(x)
        return self.head(out[:, -1])


def sequences(seed: int) -> tuple[Tensor, Tensor]:
    """Which of three channels has the largest sum over the last places."""
    rng = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(800, 8, 3, generator=rng)
    return x, x[:, -4:].sum(1).argmax(1)


class Patches(nn.Module):
    """A vision transformer of sixteen patches of four pixels."""

    def __init__(self, wide: int = 32, blocks: int = 2) -> None:
        super().__init__()
        self.cut = nn.Unfold(2, stride=2)
        self.embed, self.places = nn.Linear(4, wide), nn.Parameter(0.02 * torch.randn(17, wide))
        self.cls = nn.Parameter(torch.zeros(1, 1, wide))
        layer = nn.TransformerEncoderLayer(wide, 4, 2 * wide, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(self.cut(x).transpose(1, 2))
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1) + self.places
        out: Tensor = self.head(self.encoder(h)[:, 0])
        return out


class GraphNet(nn.Module):
    def __init__(self, adjacency: Tensor, inputs: int, wide: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.one, self.two = nn.Linear(inputs, wide), nn.Linear(wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.adjacency @ self.one(x))
        out: Tensor = self.adjacency @ self.two(h)
        return out


def conv_net(norm: bool) -> nn.Sequential:
    def part(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1), *([nn.BatchNorm2d(b)] if norm else []), nn.ReLU()]

    return nn.Sequential(*part(1, 8), nn.MaxPool2d(2), *part(8, 16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


def conv_block(wide: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
        nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide),
    )  # fmt: skip


# ── recipes ─────────────────────────────────────────────────────────────────────────────────────────


def mlp_adam(seed: int) -> Program:
    return of_digits(mlp(64, 64, 64, 10), seed)


def mlp_momentum(seed: int) -> Program:
    program = of_digits(mlp(64, 64, 64, 10), seed)
    program.optimizer = torch.optim.SGD(program.model.parameters(), 0.05, momentum=0.9)
    return program


def mlp_dropout(seed: int) -> Program:
    return of_digits(mlp(64, 128, 128, 10, drop=0.3), seed)


def mlp_batchnorm(seed: int) -> Program:
    return of_digits(mlp(64, 64, 64, 10, norm=True), seed)


def mlp_tanh_orthogonal(seed: int) -> Program:
    model = mlp(64, 64, 64, 64, 10, act=nn.Tanh)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.zeros_(module.bias)
    return of_digits(model, seed, rate=1e-3)


def cnn(seed: int) -> Program:
    return of_digits(conv_net(norm=False), seed, flat=False)


def cnn_batchnorm(seed: int) -> Program:
    program = of_digits(conv_net(norm=True), seed, flat=False)
    program.optimizer = torch.optim.AdamW(program.model.parameters(), 2e-3, weight_decay=0.05)
    return program


def resnet(seed: int) -> Program:
    blocks = [module for _ in range(6) for module in (Residual(conv_block(8)), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *blocks, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    program = of_digits(model, seed, flat=False, steps=150)
    program.optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(program.optimizer, 150)
    program.after_step = lambda program: schedule.step()
    return program


def vit(seed: int) -> Program:
    program = of_digits(Patches(), seed, flat=False, steps=250)
    program.optimizer = torch.optim.AdamW(program.model.parameters(), 2e-3, weight_decay=0.05)
    return program


def gru(seed: int) -> Program:
    model = Recurrent(nn.GRU, 3, 32, 3)
    x, y = sequences(seed)
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), nn.CrossEntropyLoss(), draw(x, y, 200, 64, seed))


def lstm_clipped(seed: int) -> Program:
    model = Recurrent(nn.LSTM, 3, 32, 3)
    x, y = sequences(seed)
    program = Program(
        model, torch.optim.Adam(model.parameters(), 1e-2), nn.CrossEntropyLoss(), draw(x, y, 200, 64, seed)
    )
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)  # type: ignore[assignment]
    return program


def gpt(seed: int) -> Program:
    model, x = Causal(24), chain_of_tokens()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    program = Program(model, optimiser, of_tokens, draw(x[:, :-1], x[:, 1:], 200, 32, seed))
    program.after_backward = lambda program: nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)  # type: ignore[assignment]
    return program


def encoder_post_norm_warm(seed: int) -> Program:
    """Which token comes most often; post-norm with a warm-up."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randint(6, (800, 12), generator=rng)
    x[:, :5] = x[:, :1]
    y = functional.one_hot(x, 6).sum(1).argmax(1)
    x = x[:, torch.randperm(12, generator=rng)]

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(6, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(32, 6)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.encoder(self.tokens(x)).mean(1))
            return out

    model = Encoder()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 40))
    program = Program(model, optimiser, nn.CrossEntropyLoss(), draw(x, y, 250, 64, seed))
    program.after_step = lambda program: schedule.step()
    return program


def regression(seed: int) -> Program:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(800, 4, generator=rng)
    y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    model = mlp(4, 64, 64, 1, act=nn.Tanh)
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), nn.MSELoss(), draw(x, y, 300, 64, seed))


def diabetes(seed: int) -> Program:
    known = load_diabetes()
    x, y = (torch.tensor(part, dtype=torch.float32) for part in (known.data, known.target[:, None]))
    x, y = ((part - part.mean(0)) / part.std(0) for part in (x, y))
    model = mlp(10, 32, 32, 1)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.01)
    return Program(model, optimiser, nn.SmoothL1Loss(), draw(x, y, 250, 64, seed))


def autoencoder(seed: int) -> Program:
    x, _ = digits()
    model = nn.Sequential(mlp(64, 48, 16), mlp(16, 48, 64))
    return Program(model, torch.optim.Adam(model.parameters(), 3e-3), nn.MSELoss(), draw(x, x, 300, 64, seed))


def vae(seed: int) -> Program:
    x = (digits()[0] - digits()[0].min()) / (digits()[0].max() - digits()[0].min())

    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = mlp(64, 64, 16), mlp(8, 64, 64)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, spread = self.down(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
            return self.up(z), mean, spread

    def bound(out: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
        shown, mean, spread = out
        error = functional.binary_cross_entropy_with_logits(shown, y, reduction="sum")
        return (error - 0.5 * (1 + spread - mean.square() - spread.exp()).sum()) / len(y)

    model = Vae()
    return Program(model, torch.optim.Adam(model.parameters(), 2e-3), bound, draw(x, x, 250, 64, seed))


def _ring(many: int) -> Tensor:
    turn = 2 * math.pi * torch.rand(many)
    return torch.stack([turn.cos(), turn.sin()], 1) + 0.05 * torch.randn(many, 2)


def gan_discriminator(seed: int) -> Program:
    model = mlp(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    other = mlp(8, 64, 64, 2)
    second = torch.optim.Adam(other.parameters(), 5e-4, betas=(0.5, 0.99))
    program = Program(
        model,
        torch.optim.Adam(model.parameters(), 5e-4, betas=(0.5, 0.99)),
        nn.BCEWithLogitsLoss(),
        [(_ring(64), torch.ones(64, 1)) for _ in range(250)],
    )

    def play(program: Program, x: Tensor, y: Tensor) -> Tensor:
        made = other(torch.randn(len(x), 8))
        loss = program.loss(model(x), y) + program.loss(model(made.detach()), 1 - y)
        program.descend(loss)
        second.zero_grad()
        program.loss(model(made), y).backward()
        second.step()
        return loss.detach()

    program.own_step = play
    return program


def gan_generator(seed: int) -> Program:
    judge = mlp(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    model = mlp(8, 64, 64, 2)
    second = torch.optim.Adam(judge.parameters(), 5e-4, betas=(0.5, 0.99))
    program = Program(
        model,
        torch.optim.Adam(model.parameters(), 5e-4, betas=(0.5, 0.99)),
        lambda out, y: functional.binary_cross_entropy_with_logits(judge(out), torch.ones(len(out), 1)),
        [(torch.randn(64, 8), _ring(64)) for _ in range(250)],
        given_loss=False,
    )

    def play(program: Program, z: Tensor, real: Tensor) -> Tensor:
        with torch.no_grad():
            made = model(z)
        second.zero_grad()
        one, zero = torch.ones(len(z), 1), torch.zeros(len(z), 1)
        wrong = functional.binary_cross_entropy_with_logits
        (wrong(judge(real), one) + wrong(judge(made), zero)).backward()
        second.step()
        loss = program.loss(model(z), None)
        return program.descend(loss)

    program.own_step = play
    return program


def contrastive(seed: int) -> Program:
    """Two noisy views of a digit find each other among the batch (InfoNCE)."""
    x, y = digits()
    model = mlp(64, 64, 32)

    def views(program: Program, x: Tensor, y: Tensor) -> Tensor:
        a, b = (functional.normalize(model(x + 0.5 * torch.randn_like(x)), dim=-1) for _ in range(2))
        loss = functional.cross_entropy(a @ b.T / 0.2, torch.arange(len(x)))
        return program.descend(loss)

    program = Program(
        model, torch.optim.Adam(model.parameters(), 2e-3), lambda out, y: out.square().mean(), draw(x, y, 200, 64, seed)
    )
    program.own_step, program.given_loss = views, False
    return program


def reinforce(seed: int) -> Program:
    """A bandit with a context: three actions, one of which is rewarded."""
    model, teacher = mlp(4, 32, 3), torch.randn(4, 3)
    program = Program(
        model,
        torch.optim.Adam(model.parameters(), 1e-2),
        lambda out, y: out.mean(),
        [(torch.randn(32, 4), None) for _ in range(300)],
        given_loss=False,
    )

    def act(program: Program, x: Tensor, y: Any) -> Tensor:
        chosen = torch.distributions.Categorical(logits=model(x))
        action = chosen.sample()
        reward = (action == (x @ teacher).argmax(1)).float()
        loss = -(chosen.log_prob(action) * (reward - reward.mean())).mean()
        program.descend(loss)
        program.extra["reward"] = float(reward.mean())
        return loss

    program.own_step = act
    return program


def q_learning(seed: int) -> Program:
    """Values of a walk of eight places, one-hot, with a target network; the loss rises as values do."""
    model, slow = mlp(8, 32, 2), mlp(8, 32, 2)
    slow.load_state_dict(model.state_dict())
    program = Program(
        model,
        torch.optim.Adam(model.parameters(), 3e-3),
        nn.SmoothL1Loss(),
        [(torch.randint(7, (64,)), None) for _ in range(300)],
        given_loss=False,
    )

    def learn(program: Program, place: Tensor, y: Any) -> Tensor:
        action = torch.randint(2, place.shape)
        following = (place + 2 * action - 1).clamp(0, 7)
        reward = (following == 7).float()
        now, after = functional.one_hot(place, 8).float(), functional.one_hot(following, 8).float()
        with torch.no_grad():
            target = reward + 0.9 * (following < 7) * slow(after).amax(1)
        loss = functional.smooth_l1_loss(model(now).gather(1, action[:, None])[:, 0], target)
        program.descend(loss)
        for own, kept in zip(model.parameters(), slow.parameters(), strict=True):
            kept.data.lerp_(own.data, 0.05)
        return loss

    program.own_step = learn
    return program


def graph(seed: int) -> Program:
    rng = torch.Generator().manual_seed(11)
    y = torch.randint(3, (150,), generator=rng)
    chance = torch.where(y[:, None] == y[None], 0.15, 0.01)
    edges = (torch.rand(150, 150, generator=rng) < chance).float()
    edges = ((edges + edges.T) > 0).float() + torch.eye(150)
    scale = edges.sum(1).rsqrt()
    x = functional.one_hot(y, 3).float() + 1.5 * torch.randn(150, 3, generator=rng)
    x = torch.cat([x, torch.randn(150, 13, generator=rng)], 1)
    model = GraphNet(scale[:, None] * edges * scale[None], 16, 32, 3)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4)
    return Program(model, optimiser, nn.CrossEntropyLoss(), [(x, y)] * 120)


def diffusion(seed: int) -> Program:
    """Predict the noise that was added to points of a ring."""
    model = mlp(3, 64, 64, 2, act=nn.SiLU)
    batches = []
    for _ in range(300):
        x, level, noise = _ring(128), torch.rand(128, 1), torch.randn(128, 2)
        batches.append((torch.cat([(1 - level).sqrt() * x + level.sqrt() * noise, level], 1), noise))
    return Program(model, torch.optim.Adam(model.parameters(), 2e-3), nn.MSELoss(), batches)


def multi_label(seed: int) -> Program:
    rng = torch.Generator().manual_seed(13)
    x = torch.randn(800, 12, generator=rng)
    y = (x @ torch.randn(12, 6, generator=rng) > 1.5).float()
    model = mlp(12, 48, 6)
    return Program(model, torch.optim.Adam(model.parameters(), 5e-3), nn.BCEWithLogitsLoss(), draw(x, y, 200, 64, seed))


def imbalanced(seed: int) -> Program:
    """One positive in ten, which the inputs tell."""
    rng = torch.Generator().manual_seed(17)
    y = (torch.rand(1000, generator=rng) < 0.1).float()
    x = torch.randn(1000, 6, generator=rng) + 1.5 * y[:, None]
    model = mlp(6, 32, 1)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, optimiser, nn.BCEWithLogitsLoss(), draw(x, y[:, None], 200, 64, seed))


def pixels(seed: int) -> Program:
    """Which pixels of a digit are ink: a cross-entropy with classes at axis 1."""
    x, _ = digits()
    clean = x.view(-1, 1, 8, 8)
    y = (clean[:, 0] > 0.5).long()
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 3, padding=1))
    noisy = clean + 0.5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(2))
    return Program(
        model, torch.optim.Adam(model.parameters(), 5e-3), nn.CrossEntropyLoss(), draw(noisy, y, 150, 32, seed)
    )


def prediction_and_hidden(seed: int) -> Program:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out, hidden = self.cell(x)
            return self.head(out[:, -1]), hidden

    x, _ = sequences(seed)
    model = Pair()
    loss = nn.MSELoss()
    program = Program(
        model, torch.optim.Adam(model.parameters(), 1e-2), loss, draw(x, x.sum((1, 2))[:, None] / 4, 200, 64, seed)
    )
    program.before_loss = lambda out: out[0]
    return program


def probe_on_trained(seed: int) -> Program:
    """A linear head on a trunk that was trained before and is frozen."""
    before = of_digits(mlp(64, 64, 32, 10), seed + 50)
    for x, y in before.batches:
        before.step(x, y)
    trunk = before.model[:-1].requires_grad_(False)  # type: ignore[index]
    head = nn.Linear(32, 10)
    program = of_digits(nn.Sequential(trunk, head), seed)
    program.optimizer = torch.optim.Adam(head.parameters(), 1e-2)
    return program


def accumulated(seed: int) -> Program:
    """Four micro-batches a step."""
    program = of_digits(mlp(64, 64, 10), seed, rate=5e-3)

    def micro(program: Program, x: Tensor, y: Tensor) -> Tensor:
        program.optimizer.zero_grad()
        total = torch.zeros(())
        for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = program.loss(program.model(part), target) / 4
            loss.backward()
            total = total + loss.detach()
        program.optimizer.step()
        return total

    program.own_step, program.logs = micro, False
    return program


HEALTHY: dict[str, Callable[[int], Program]] = {
    one.__name__: one
    for one in (
        mlp_adam, mlp_momentum, mlp_dropout, mlp_batchnorm, mlp_tanh_orthogonal, cnn, cnn_batchnorm, resnet, vit, gru,
        lstm_clipped, gpt, encoder_post_norm_warm, regression, diabetes, autoencoder, vae, gan_discriminator,
        gan_generator, contrastive, reinforce, q_learning, graph, diffusion, multi_label, imbalanced, pixels,
        prediction_and_hidden, probe_on_trained, accumulated,
    )
}  # fmt: skip
