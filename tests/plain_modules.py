"""Networks as others write them, none of which knows of Sonde.  N samples, T tokens, V words."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import sonde

N, T, V = 6, 5, 11


class ConvNet(nn.Module):
    """A stem, residual convolutions with BatchNorm that keep the shape, pooling, a linear head."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.stages = nn.ModuleList(ConvBlock(channels) for _ in range(2))
        self.fc = nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for stage in self.stages:
            h = stage(h)
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))  # type: ignore[no-any-return]


class ConvBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class LeNet(nn.Module):
    """Maps that shrink, and then a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Sequential(nn.Flatten(), nn.Linear(24, 16), nn.ReLU()), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.pool2(self.conv2(self.pool1(self.conv1(x))))))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """Somebody's vision transformer on `nn.TransformerEncoder`, pooled as they like."""

    def __init__(self, pool: str = "cls", dropout: float = 0.0) -> None:
        super().__init__()
        self.patch = nn.Linear(16, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 8) * 0.5)
        self.pos = nn.Parameter(torch.randn(1, 5, 8) * 0.5)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(F.unfold(x, 4, stride=4).transpose(1, 2))
        h = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], 1) + self.pos
        h = self.norm(self.encoder(h))
        read = {"cls": h[:, 0], "last": h[:, -1], "mean": h.mean(1)}[self.pool]
        return self.head(read)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Returns the state and, for whoever wants them, the attention weights; told the mask and where it stands."""

    def __init__(self, d: int, returns_more: bool) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.returns_more = returns_more

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *, bias: Tensor) -> Tensor | tuple[Tensor, ...]:
        q, k, v = self.qkv(self.ln1(hidden)).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + bias
        weights = scores.masked_fill(mask, -torch.inf).softmax(-1) if mask is not None else scores.softmax(-1)
        hidden = hidden + self.proj(weights @ v)
        hidden = hidden + self.out(F.gelu(self.fc(self.ln2(hidden))))
        return (hidden, weights) if self.returns_more else hidden


class GPT(nn.Module):
    """Word and position embeddings, causal blocks, a head that is the word embedding."""

    def __init__(self, *, returns_more: bool = False, uses_more: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, 8), nn.Embedding(T, 8)
        self.h = nn.ModuleList(Attention(8, returns_more) for _ in range(3))
        self.ln_f, self.lm_head = nn.LayerNorm(8), nn.Linear(8, V, bias=False)
        self.lm_head.weight = self.wte.weight
        self.uses_more = uses_more

    def forward(self, idx: Tensor) -> Tensor:
        place = torch.arange(idx.shape[1], device=idx.device)
        h = self.wte(idx) + self.wpe(place)
        mask = place[:, None] < place
        bias = (place[:, None] - place).to(h.dtype) * 0.1 + idx[:, None].to(h.dtype) * 0.01  # each sample's own
        for block in self.h:
            out = block(h, mask, bias=bias)
            h = out[0] if isinstance(out, tuple) else out
            if self.uses_more:
                bias = out[1]
        return self.lm_head(self.ln_f(h))  # type: ignore[no-any-return]


def sequential() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 4),
    )


def images(n: int = N) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 8, 8, generator=rng), torch.randint(4, (n,), generator=rng)


def words(n: int = N) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(2)
    return torch.randint(V, (n, T), generator=rng), torch.randint(V, (n, T), generator=rng)


@dataclass(frozen=True)
class Guest:
    """A network, how its units are named, and what it learns from."""

    make: Callable[[], nn.Module]
    batch: Callable[..., tuple[Tensor, Tensor]]
    units: list[str] | None = None

    def build(self) -> nn.Module:
        """The module itself, always with the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make()

    def chain(self) -> "sonde.network.chain.Chain":
        return sonde.chain(self.build(), units=self.units, sample=self.batch()[0])


GUESTS: dict[str, Guest] = {
    "sequential": Guest(sequential, images),
    "convnet": Guest(ConvNet, images, ["stages.*"]),
    "lenet": Guest(LeNet, images, ["pool1", "conv2", "pool2", "fc1"]),
    "vit_cls": Guest(ViT, images, ["encoder.layers.*"]),
    "vit_mean": Guest(lambda: ViT("mean"), images, ["encoder.layers.*"]),
    "gpt": Guest(GPT, words, ["h.*"]),
    "gpt_tuples": Guest(lambda: GPT(returns_more=True), words, ["h.*"]),
    "gpt_passes_on": Guest(lambda: GPT(returns_more=True, uses_more=True), words, ["h.*"]),
}
