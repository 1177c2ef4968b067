"""Networks of kinds that benchmarks/predict.py has not, written down before any of them was predicted or measured."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Make = Callable[[], nn.Module]


class Dense(nn.Module):
    """A block of DenseNet (Huang et al. 2017): every layer takes all earlier outputs."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        widths = [channels + growth * place for place in range(layers)]
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in widths])
        self.convs = nn.ModuleList([nn.Conv2d(n, growth, 3, padding=1, bias=False) for n in widths])

    def forward(self, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(functional.relu(norm(x)))], 1)
        return x


class Highway(nn.Module):
    """x + T(x) · (H(x) − x) (Srivastava et al. 2015), the gate open at a quarter."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(d, d), nn.Linear(d, d)
        nn.init.constant_(self.gate.bias, -1.0)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.inner(x)) + (1 - gate) * x


class DeepSets(nn.Module):
    """A network of each element, their mean, a network of the mean (Zaheer et al. 2017)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(16, d), nn.ELU(), nn.Linear(d, d), nn.ELU(), nn.Linear(d, d))
        self.whole = nn.Sequential(nn.Linear(d, d), nn.ELU(), nn.Linear(d, d), nn.ELU(), nn.Linear(d, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(self.each(x).mean(1))  # type: ignore[no-any-return]


class LSTM(nn.Module):
    """Eight steps of a long short-term memory, written with its gates."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d, self.input, self.hidden, self.readout = d, nn.Linear(24, 4 * d), nn.Linear(d, 4 * d), nn.Linear(d, 8)

    def forward(self, x: Tensor) -> Tensor:
        h, c = torch.zeros(x.shape[0], self.d), torch.zeros(x.shape[0], self.d)
        for step in range(x.shape[1]):
            gates = self.input(x[:, step]) + (self.hidden(h) if step else 0)
            i, f, g, o = gates.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.readout(h)  # type: ignore[no-any-return]


class Perceiver(nn.Module):
    """Learned latents that attend to the input, then to themselves (Jaegle et al. 2021)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(16, d) * 0.02)
        self.norm_latents, self.norm_input = nn.LayerNorm(d), nn.LayerNorm(d)
        self.cross = nn.MultiheadAttention(d, 4, batch_first=True)
        layers = [nn.TransformerEncoderLayer(d, 4, 2 * d, 0.0, "gelu", batch_first=True, norm_first=True) for _ in "ab"]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        known = self.norm_input(x)
        h = latents + self.cross(self.norm_latents(latents), known, known, need_weights=False)[0]
        return self.layers(h)  # type: ignore[no-any-return]


class SqueezeExcite(nn.Module):
    """A residual convolution whose channels are gated by a network of their means (Hu et al. 2018)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(d, d, 3, padding=1), nn.GroupNorm(4, d)
        self.squeeze, self.excite = nn.Linear(d, d // 4), nn.Linear(d // 4, d)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.silu(self.norm(self.conv(x)))
        gate = torch.sigmoid(self.excite(functional.relu(self.squeeze(h.mean((2, 3))))))
        return x + h * gate[:, :, None, None]


class Sine(nn.Module):
    """sin(30 (W x + b)) with the initialisation of SIREN (Sitzmann et al. 2020)."""

    def __init__(self, before: int, after: int, first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after)
        bound = 1 / before if first else math.sqrt(6 / before) / 30
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(x))


class WaveNet(nn.Module):
    """A gated, dilated, causal convolution with a residual and a 1×1 convolution (van den Oord et al. 2016)."""

    def __init__(self, d: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.value, self.gate = (nn.Conv1d(d, d, 2, dilation=dilation) for _ in range(2))
        self.mix = nn.Conv1d(d, d, 1)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (self.dilation, 0))
        return x + self.mix(torch.tanh(self.value(padded)) * torch.sigmoid(self.gate(padded)))  # type: ignore[no-any-return]


def densenet() -> nn.Module:
    """Two dense blocks with a transition."""
    parts = [nn.Conv2d(3, 32, 3, padding=1), Dense(32, 16, 4), nn.Conv2d(96, 48, 1), nn.AvgPool2d(2), Dense(48, 16, 4)]
    return nn.Sequential(*parts)


NETWORKS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "DenseNet": (densenet, (16, 3, 16, 16)),
    "highway network": (lambda: nn.Sequential(*[Highway(128) for _ in range(10)]), (64, 128)),
    "DeepSets": (lambda: DeepSets(128), (32, 20, 16)),
    "LSTM, unrolled": (lambda: LSTM(128), (32, 8, 24)),
    "Perceiver": (lambda: Perceiver(128), (8, 40, 128)),
    "squeeze-and-excitation": (lambda: nn.Sequential(*[SqueezeExcite(64) for _ in range(4)]), (8, 64, 12, 12)),
    "SIREN": (lambda: nn.Sequential(Sine(16, 128, True), *[Sine(128, 128, False) for _ in range(4)]), (128, 16)),
    "WaveNet": (lambda: nn.Sequential(*[WaveNet(64, 2**place) for place in range(5)]), (8, 64, 64)),
}
