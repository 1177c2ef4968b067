"""Small training programs of many kinds.  Each trains 14 steps, with a watch or without, and returns its state."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Watching = Callable[..., Any]
STEPS = 14


def nothing(*args: Any, **kwargs: Any) -> None:
    """In place of `sonde.watch`."""


def state(*models: nn.Module, losses: list[Tensor]) -> list[Tensor]:
    """Weights, buffers and losses: all that must be equal, bit for bit."""
    kept = [tensor.detach().clone() for model in models for tensor in model.state_dict().values()]
    return [*kept, *(loss.detach().clone() for loss in losses)]


def images(step: int, size: int = 8) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, size, size, generator=rng), torch.randint(4, (8,), generator=rng)


def vectors(step: int, width: int = 12) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(step)
    return torch.randn(10, width, generator=rng), torch.randint(4, (10,), generator=rng)


def tokens(step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(step)
    x = torch.randint(11, (6, 7), generator=rng)
    return x, x.roll(1, 1)


def plain_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, *, inplace: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=inplace)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        return self.act(out + x)


def resnet(*, inplace: bool = False) -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=inplace))
    blocks = [ResidualBlock(6, inplace=inplace) for _ in range(2)]
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


class Transformer(nn.Module):
    """Token and place embeddings, encoder layers with dropout, a head that shares the embedding's weights."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 16), nn.Embedding(7, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x) + self.place(torch.arange(x.shape[1]))))


class Attention(nn.Module):
    """Attention that calls the function, not the module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(11, 8),
            nn.GRU(8, 12, batch_first=True),
            nn.Linear(12, 11),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0])


class Checkpointed(nn.Module):
    """Blocks that are computed again in the backward pass, with dropout in them."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.stem = nn.Linear(12, 12)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=self.reentrant)
        return self.head(h)


def supervised(
    make: Callable[[], nn.Module],
    batch: Callable[[int], tuple[Tensor, Tensor]],
    *,
    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    lr: float = 1e-2,
    evaluate: bool = False,
) -> Callable[[Watching], list[Tensor]]:
    def program(watching: Watching) -> list[Tensor]:
        torch.manual_seed(0)
        model, criterion = make(), nn.CrossEntropyLoss()
        steps = optimiser(model.parameters(), lr=lr)
        watch = watching(model, steps, loss=criterion, every=12)
        losses = []
        for step in range(STEPS):
            x, y = batch(step)
            steps.zero_grad()
            loss = criterion(model(x).flatten(0, -2), y.flatten())
            loss.backward()
            steps.step()
            losses.append(loss)
            if evaluate:
                model.eval()
                with torch.no_grad():
                    losses.append(model(x).sum())
                model.train()
        finish(watch)
        return state(model, losses=losses)

    return program


def finish(watch: Any) -> None:
    if watch is not None:
        watch.close()


def gan(watching: Watching) -> list[Tensor]:
    """Two networks, two optimisers, three passes of the discriminator to a step."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(), nn.Linear(16, 12))
    judge = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    of_generator, of_judge = (torch.optim.Adam(net.parameters(), 1e-3) for net in (generator, judge))
    both = nn.ModuleDict({"generator": generator, "judge": judge})
    watches = [
        watching(generator, of_generator, every=12),
        watching(judge, of_judge, every=12),
        watching(both, of_generator, of_judge, every=12),
    ]
    losses = []
    for step in range(STEPS):
        real, _ = vectors(step)
        fake = generator(torch.randn(10, 4))
        of_judge.zero_grad()
        loss = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
        loss.backward()
        of_judge.step()
        of_generator.zero_grad()
        fooled = functional.softplus(-judge(fake)).mean()
        fooled.backward()
        of_generator.step()
        losses += [loss, fooled]
    for watch in watches:
        finish(watch)
    return state(generator, judge, losses=losses)


def accumulation(watching: Watching) -> list[Tensor]:
    torch.manual_seed(0)
    model = plain_mlp()
    steps = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    watch = watching(model, steps, every=12)
    losses = []
    for step in range(STEPS):
        steps.zero_grad()
        for part in range(3):
            x, y = vectors(3 * step + part)
            loss = functional.cross_entropy(model(x), y) / 3
            loss.backward()
            losses.append(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
    finish(watch)
    return state(model, losses=losses)


def autocast(watching: Watching) -> list[Tensor]:
    torch.manual_seed(0)
    model, losses = resnet(), []
    steps = torch.optim.AdamW(model.parameters(), 1e-2)
    watch = watching(model, steps, every=12)
    for step in range(STEPS):
        x, y = images(step)
        steps.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        losses.append(loss)
    finish(watch)
    return state(model, losses=losses)


def scaled(watching: Watching) -> list[Tensor]:
    """A GradScaler, whose first steps overflow and are skipped."""
    torch.manual_seed(0)
    model, losses = plain_mlp(), []
    steps = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    watch = watching(model, steps, scaler=scaler, every=12)
    for step in range(STEPS):
        x, y = vectors(step)
        steps.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss * 16).backward()
        scaler.step(steps)
        scaler.update()
        losses.append(loss)
    finish(watch)
    return state(model, losses=losses)


def by_hand(watching: Watching) -> list[Tensor]:
    """No optimiser at all."""
    torch.manual_seed(0)
    model, losses = plain_mlp(), []
    watch = watching(model, every=12)
    for step in range(STEPS):
        x, y = vectors(step)
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        losses.append(loss)
    finish(watch)
    return state(model, losses=losses)


def closure(watching: Watching) -> list[Tensor]:
    """L-BFGS, which calls the model several times to a step."""
    torch.manual_seed(0)
    model, losses = plain_mlp(), []
    steps = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)
    watch = watching(model, steps, every=12)
    for step in range(STEPS):
        x, y = vectors(step)

        def again(x: Tensor = x, y: Tensor = y) -> Tensor:
            steps.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(steps.step(again))
    finish(watch)
    return state(model, losses=losses)


def averaged(watching: Watching) -> list[Tensor]:
    """A copy of the model is taken in the middle of a watched step, and trained a little."""
    torch.manual_seed(0)
    model, losses = plain_mlp(), []
    steps = torch.optim.SGD(model.parameters(), 0.1)
    watch = watching(model, steps, every=12)
    copied = copy.deepcopy(model)
    for step in range(STEPS):
        x, y = vectors(step)
        steps.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        copied(x).sum().backward()
        with torch.no_grad():
            for mine, theirs in zip(copied.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
        losses.append(loss)
    finish(watch)
    return state(model, copied, losses=losses)


class Frozen(nn.Module):
    """A frozen encoder in eval mode, for which PyTorch has a faster way as long as nothing is hooked to it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2).requires_grad_(False)
        self.embed, self.head = nn.Embedding(11, 16).requires_grad_(False), nn.Linear(16, 11)

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)))


class Cell(nn.Module):
    """One cell, called once for every token; dicts in and tuples out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(11, 8), nn.GRUCell(8, 8), nn.Linear(8, 11)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        h, out = torch.zeros(len(batch["x"]), 8), []
        for column in self.embed(batch["x"]).unbind(1):
            h = self.cell(column, h)
            out.append(h)
        return self.head(torch.stack(out, 1)), {"last": h}


def cell(watching: Watching) -> list[Tensor]:
    torch.manual_seed(0)
    model, losses = Cell(), []
    steps = torch.optim.Adam(model.parameters(), 1e-2)
    watch = watching(model, steps, every=12)
    for step in range(STEPS):
        x, y = tokens(step)
        steps.zero_grad()
        logits, more = model({"x": x})
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten()) + 0.01 * more["last"].square().mean()
        loss.backward()
        steps.step()
        losses.append(loss)
    finish(watch)
    return state(model, losses=losses)


def episode(watching: Watching) -> list[Tensor]:
    """Eighty passes and as many losses before one backward pass; some in place, one only looked at."""
    torch.manual_seed(0)
    model, criterion, losses = plain_mlp(), nn.CrossEntropyLoss(), []
    steps = torch.optim.Adam(model.parameters(), 1e-2)
    watch = watching(model, steps, loss=criterion, every=12)
    for step in range(STEPS):
        x, y = vectors(step)
        steps.zero_grad()
        parts = [criterion(model(x[place % 10 :]), y[place % 10 :]) for place in range(80)]
        for part in parts[::2]:
            part *= 0.5
        loss = torch.stack(parts[1:]).sum()
        loss.backward()
        steps.step()
        losses.append(loss)
    finish(watch)
    return state(model, losses=losses)


def decoder() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 16), Attention(16, 2), nn.Linear(16, 11))


PROGRAMS: dict[str, Callable[[Watching], list[Tensor]]] = {
    "mlp": supervised(plain_mlp, vectors),
    "resnet with batch normalisation": supervised(resnet, images, optimiser=torch.optim.SGD),
    "in-place activations": supervised(lambda: resnet(inplace=True), images),
    "transformer with dropout and tied weights": supervised(Transformer, tokens, evaluate=True),
    "attention by function": supervised(decoder, tokens),
    "gru": supervised(Recurrent, tokens),
    "frozen encoder": supervised(Frozen, tokens, evaluate=True),
    "checkpointing": supervised(lambda: Checkpointed(reentrant=False), vectors),
    "reentrant checkpointing": supervised(lambda: Checkpointed(reentrant=True), vectors),
    "gan with two optimisers": gan,
    "gradient accumulation": accumulation,
    "bfloat16 autocast": autocast,
    "grad scaler": scaled,
    "no optimiser": by_hand,
    "closure": closure,
    "copied in the middle": averaged,
    "cell called many times, dicts and tuples": cell,
    "many passes before one backward pass": episode,
}
