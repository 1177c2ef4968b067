"""A fourth set of networks for benchmarks/predict.py, written down before any of them was predicted or measured."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from predict_third_set import _TEXT, _TOKENS, _ids, _of

Make = Callable[[], nn.Module]


def lenet() -> nn.Module:
    """Convolutions, means over windows and tanh (LeCun et al. 1998)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    )


def alexnet() -> nn.Module:
    """Convolutions and overlapping max-pooling, for small images (Krizhevsky et al. 2012)."""
    parts: list[nn.Module] = []
    for before, after, size in ((3, 64, 5), (64, 96, 5), (96, 128, 3)):
        parts += [nn.Conv2d(before, after, size, padding=size // 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    head = (nn.Flatten(), nn.Dropout(), nn.Linear(128 * 9, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(*parts, *head)


def generator() -> nn.Module:
    """Transposed convolutions and BatchNorm, weights of deviation 0.02 (DCGAN, Radford et al. 2016)."""
    parts: list[nn.Module] = [nn.ConvTranspose2d(64, 128, 4, bias=False), nn.BatchNorm2d(128), nn.ReLU()]
    for before, after in ((128, 64), (64, 32)):
        parts += [nn.ConvTranspose2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*parts, nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh())
    for layer in model:
        if isinstance(layer, nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0, 0.02)
    return model


class Denoiser(nn.Module):
    """The input minus what a plain convolutional network makes of it (DnCNN, Zhang et al. 2017)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        inner = [p for _ in range(5) for p in (nn.Conv2d(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d), nn.ReLU())]
        self.noise = nn.Sequential(nn.Conv2d(1, d, 3, padding=1), nn.ReLU(), *inner, nn.Conv2d(d, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.noise(x)  # type: ignore[no-any-return]


class SuperResolution(nn.Module):
    """Residual blocks without normalisation, scaled by 0.1 (EDSR, Lim et al. 2017)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(3, d, 3, padding=1), nn.Conv2d(d, 12, 3, padding=1)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(d, d, 3, padding=1), nn.ReLU(), nn.Conv2d(d, d, 3, padding=1)) for _ in range(6)]
        )

    def forward(self, x: Tensor) -> Tensor:
        h = first = self.head(x)
        for block in self.blocks:
            h = h + 0.1 * block(h)
        return self.tail(h + first)  # type: ignore[no-any-return]


class WideBlock(nn.Module):
    """Pre-activation block of a wide residual network, with dropout (Zagoruyko and Komodakis 2016)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(before), nn.BatchNorm2d(after)
        self.conv1, self.conv2 = (nn.Conv2d(n, after, 3, padding=1, bias=False) for n in (before, after))
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(functional.relu(self.norm1(x)))
        inner = self.conv2(functional.dropout(functional.relu(self.norm2(inner)), 0.3))
        return inner + self.shortcut(x)  # type: ignore[no-any-return]


class Shuffled(nn.Module):
    """Half of the channels passed on, half through convolutions, then exchanged (ShuffleNet v2, Ma et al. 2018)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        half = d // 2
        self.branch = nn.Sequential(
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()),
            *(nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half)),
            *(nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, taken = x.chunk(2, 1)
        y = torch.cat([kept, self.branch(taken)], 1)
        return y.reshape(y.shape[0], 2, -1, *y.shape[2:]).transpose(1, 2).flatten(1, 2)


class DeepCross(nn.Module):
    """Products with the input beside a deep network (Wang et al. 2017)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.crosses = nn.ModuleList([nn.Linear(d, d) for _ in range(3)])
        self.deep = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(d + 128, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for cross in self.crosses:
            h = x * cross(h) + h
        return self.head(torch.cat([h, self.deep(x)], -1))  # type: ignore[no-any-return]


class Flow(nn.Module):
    """Affine coupling layers (RealNVP, Dinh et al. 2017)."""

    def __init__(self, d: int, layers: int) -> None:
        super().__init__()
        half = d // 2
        self.nets = nn.ModuleList(
            [nn.Sequential(nn.Linear(half, 128), nn.ReLU(), nn.Linear(128, d)) for _ in range(layers)]
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        for net in self.nets:
            scale, shift = net(a).chunk(2, -1)
            a, b = b * torch.exp(torch.tanh(scale)) + shift, a
        return torch.cat([a, b], -1)


class EulerSteps(nn.Module):
    """Steps of a differential equation with one network for all (Chen et al. 2018)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, d))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = x + 0.125 * self.field(x)
        return x


class TabularBlock(nn.Module):
    """BatchNorm, two linear layers with dropout, a residual (Gorishniy et al. 2021)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.dropout(functional.relu(self.first(self.norm(x))), 0.2)
        return x + self.second(inner)  # type: ignore[no-any-return]


class Linformer(nn.Module):
    """Attention over tokens that are projected to fewer (Wang et al. 2020), pre-LN."""

    def __init__(self, d: int, tokens: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.out = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, d)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.keys, self.values = (nn.Linear(tokens, 12, bias=False) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        k = self.keys(self.k(h).transpose(1, 2)).transpose(1, 2)
        v = self.values(self.v(h).transpose(1, 2)).transpose(1, 2)
        x = x + self.out(functional.scaled_dot_product_attention(self.q(h), k, v))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class SetAttention(nn.Module):
    """Attention between elements without normalisation, then attention of one seed (Lee et al. 2019)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.embed, self.seed = nn.Linear(8, d), nn.Parameter(torch.randn(1, 1, d))
        self.attend = nn.ModuleList([nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(3)])
        self.feed = nn.ModuleList([nn.Linear(d, d) for _ in range(3)])
        self.head = nn.Linear(d, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for attend, feed in zip(self.attend[:2], self.feed[:2], strict=True):
            h = h + attend(h, h, h, need_weights=False)[0]
            h = h + functional.relu(feed(h))
        pooled = self.attend[2](self.seed.expand(len(x), -1, -1), h, h, need_weights=False)[0]
        return self.head(pooled + functional.relu(self.feed[2](pooled)))  # type: ignore[no-any-return]


_VISION: dict[str, Any] = {"image_size": 32, "patch_size": 4, **_TEXT}

FOURTH: dict[str, tuple[Make, tuple[int, ...] | Callable[[], Tensor]]] = {
    "LeNet-5": (lenet, (32, 1, 28, 28)),
    "AlexNet": (alexnet, (16, 3, 32, 32)),
    "DCGAN generator": (generator, (32, 64, 1, 1)),
    "DnCNN": (lambda: Denoiser(48), (8, 1, 20, 20)),
    "EDSR": (lambda: SuperResolution(48), (4, 3, 16, 16)),
    "wide residual network": (
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), WideBlock(16, 64), WideBlock(64, 64), WideBlock(64, 64)),
        (16, 3, 12, 12),
    ),
    "ShuffleNet v2": (lambda: nn.Sequential(*[Shuffled(64) for _ in range(4)]), (16, 64, 12, 12)),
    "deep and cross network": (lambda: DeepCross(96), (64, 96)),
    "RealNVP": (lambda: Flow(64, 6), (64, 64)),
    "neural ODE, Euler steps": (lambda: EulerSteps(128), (64, 128)),
    "tabular residual network": (lambda: nn.Sequential(*[TabularBlock(96) for _ in range(6)]), (128, 96)),
    "Linformer": (lambda: nn.Sequential(*[Linformer(96, 48) for _ in range(3)]), (8, 48, 96)),
    "set transformer": (lambda: SetAttention(96), (16, 24, 8)),
    "ELECTRA (transformers)": (_of("ElectraModel", vocab_size=300, embedding_size=48, **_TEXT), _ids),
    "GPT-J (transformers)": (
        _of("GPTJModel", n_embd=96, n_layer=3, n_head=4, rotary_dim=8, n_positions=64, **_TOKENS),
        _ids,
    ),
    "OLMo (transformers)": (_of("OlmoModel", **_TOKENS, **_TEXT), _ids),
    "Falcon (transformers)": (
        _of(
            "FalconModel",
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            parallel_attn=True,
            **_TOKENS,
        ),
        _ids,
    ),
    "DeiT (transformers)": (_of("DeiTModel", **_VISION), (8, 3, 32, 32)),
    "BEiT (transformers)": (_of("BeitModel", use_mean_pooling=False, **_VISION), (8, 3, 32, 32)),
    "RegNet (transformers)": (
        _of("RegNetModel", embedding_size=32, hidden_sizes=[48, 96], depths=[1, 2], groups_width=16),
        (16, 3, 48, 48),
    ),
    "CLIP vision tower (transformers)": (_of("CLIPVisionModel", **_VISION), (8, 3, 32, 32)),
    "PatchTST (transformers)": (
        _of(
            "PatchTSTModel",
            num_input_channels=3,
            context_length=64,
            patch_length=8,
            patch_stride=8,
            d_model=96,
            ffn_dim=192,
            num_attention_heads=4,
            num_hidden_layers=3,
        ),
        (8, 64, 3),
    ),
}
"""Networks of the fourth set."""
