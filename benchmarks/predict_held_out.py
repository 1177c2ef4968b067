"""Networks of kinds that benchmarks/predict.py has not, written down before any of them was predicted or measured.

The rules were corrected on `NETWORKS` after its scores had been taken; `SECOND` was written then.
"""

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


# A second set, written after the first had been used to correct rules, and before any of it was predicted or measured.


class ResNeXt(nn.Module):
    """A pre-activation bottleneck with groups, BatchNorm and squeeze-and-excitation (Xie et al. 2017)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(d), nn.ReLU(), nn.Conv2d(d, d // 2, 1, bias=False)),
            *(nn.BatchNorm2d(d // 2), nn.ReLU(), nn.Conv2d(d // 2, d // 2, 3, padding=1, groups=8, bias=False)),
            *(nn.BatchNorm2d(d // 2), nn.ReLU(), nn.Conv2d(d // 2, d, 1, bias=False)),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(d, d // 4, 1), nn.ReLU(), nn.Conv2d(d // 4, d, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return x + h * self.squeeze(h)  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 (Sandler et al. 2018), as models are often written: functions, attributes, a flag."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = 4 * before
        self.expand, self.n1 = nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.depth, self.n2 = (
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
        )
        self.project, self.n3 = nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after)
        self.is_residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu6(self.n1(self.expand(x)))
        h = functional.relu6(self.n2(self.depth(h)))
        h = self.n3(self.project(h))
        return x + h if self.is_residual else h  # type: ignore[no-any-return]


class GatedConv(nn.Module):
    """A gated convolution with weight norm (Dauphin et al. 2017); returns the stream and its gate."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(d, 2 * d, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = self.conv(x).chunk(2, 1)
        return x + value * torch.sigmoid(gate), gate


class GatedConvNet(nn.Module):
    """Gated convolutions; the last gate is returned beside the result."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([GatedConv(d) for _ in range(5)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = x
        for block in self.blocks:
            x, gate = block(x)
        return x / 2**0.5, gate


class T5Block(nn.Module):
    """RMSNorm by hand, attention without a scale and with a learned bias by distance, ReLU (Raffel et al. 2020)."""

    def __init__(self, d: int, heads: int = 4, reach: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.scale1, self.scale2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        nn.init.normal_(self.q.weight, 0, (d * d / heads) ** -0.5)
        for layer in (self.k, self.v, self.o):
            nn.init.normal_(layer.weight, 0, d**-0.5)
        self.bias = nn.Embedding(2 * reach + 1, heads)
        self.wi, self.wo = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        self.reach, self.drop = reach, nn.Dropout(0.1)

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        return scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        h = self.norm(x, self.scale1)
        q, k, v = (layer(h).view(n, t, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        places = torch.arange(t)
        apart = (places[:, None] - places[None, :]).clamp(-self.reach, self.reach) + self.reach
        scores = q @ k.transpose(-1, -2) + self.bias(apart).permute(2, 0, 1)
        mixed = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.o(mixed.transpose(1, 2).reshape(n, t, d)))
        return x + self.drop(self.wo(functional.relu(self.wi(self.norm(x, self.scale2)))))  # type: ignore[no-any-return]


class LinearAttention(nn.Module):
    """Attention with the feature map elu + 1 in place of a softmax (Katharopoulos et al. 2020)."""

    def __init__(self, d: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm, self.qkv, self.out = heads, nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        kv = torch.einsum("nhtd,nhte->nhde", k, v)
        norm = torch.einsum("nhtd,nhd->nht", q, k.sum(2))
        mixed = torch.einsum("nhtd,nhde->nhte", q, kv) / norm[..., None]
        return x + self.out(mixed.transpose(1, 2).reshape(n, t, d))  # type: ignore[no-any-return]


class ScaledMixer(nn.Module):
    """A mixer with LayerScale and affine maps in place of norms (ResMLP, Touvron et al. 2021)."""

    def __init__(self, tokens: int, d: int) -> None:
        super().__init__()
        self.a1, self.b1 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.a2, self.b2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.across, self.up, self.down = nn.Linear(tokens, tokens), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma1, self.gamma2 = nn.Parameter(0.1 * torch.ones(d)), nn.Parameter(0.1 * torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma1 * self.across((self.a1 * x + self.b1).mT).mT
        return x + self.gamma2 * self.down(functional.gelu(self.up(self.a2 * x + self.b2)))  # type: ignore[no-any-return]


class StandardisedConv(nn.Conv2d):
    """A convolution whose weight is standardised for every channel (Brock et al. 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True)
        w = (w - mean) / (var * w[0].numel() + 1e-8).sqrt()
        return functional.conv2d(x, w, self.bias, self.stride, self.padding)


class NormFree(nn.Module):
    """A residual block without norms: x + α f(x / β), f with gain √(2/(1 − 1/π)) (NF-ResNet, Brock et al. 2021)."""

    def __init__(self, d: int, beta: float, alpha: float = 0.2) -> None:
        super().__init__()
        self.conv1, self.conv2 = StandardisedConv(d, d, 3, padding=1), StandardisedConv(d, d, 3, padding=1)
        self.alpha, self.beta, self.gain = alpha, beta, (2 / (1 - 1 / math.pi)) ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(functional.relu(x / self.beta) * self.gain)
        return x + self.alpha * self.conv2(functional.relu(h) * self.gain)  # type: ignore[no-any-return]


class GRU(nn.Module):
    """Ten steps of a gated recurrent unit, with `nn.GRUCell`'s equations."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d, self.x, self.h, self.readout = d, nn.Linear(16, 3 * d), nn.Linear(d, 3 * d), nn.Linear(d, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.d)
        for step in range(x.shape[1]):
            xr, xz, xn = self.x(x[:, step]).split(self.d, -1)
            hr, hz, hn = self.h(h).split(self.d, -1)
            z, n = torch.sigmoid(xz + hz), torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
            h = (1 - z) * n + z * h
        return self.readout(h)  # type: ignore[no-any-return]


class TiedLM(nn.Module):
    """A causal language model with tied embeddings, position buffer and dropout; returns a dictionary."""

    places: Tensor

    def __init__(self, d: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(300, d), nn.Embedding(64, d)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(d, 4, 4 * d, 0.1, "gelu", batch_first=True, norm_first=True) for _ in "abc"]
        )
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 300, bias=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, 0, 0.02)
        self.head.weight = self.tokens.weight
        self.register_buffer("places", torch.arange(64))

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        t = ids.shape[1]
        h = self.tokens(ids) + self.positions(self.places[:t])
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return {"logits": self.head(self.norm(h))}


class GraphConv(nn.Module):
    """A graph convolution with a fixed normalised adjacency matrix (Kipf and Welling 2017)."""

    adjacency: Tensor

    def __init__(self, nodes: int, d: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(1)
        a = torch.rand(nodes, nodes, generator=rng)
        a = ((a + a.T) < 0.3).float() + torch.eye(nodes)
        scale = a.sum(1).rsqrt()
        self.register_buffer("adjacency", a * scale[:, None] * scale[None, :])
        self.linear = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(self.linear(self.adjacency @ x), 0.1)


class BilinearFusion(nn.Module):
    """Two towers of one input, normalised, multiplied and concatenated, as in matching models."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(d, d), nn.BatchNorm1d(d), nn.PReLU())
        self.right = nn.Sequential(nn.Linear(d, d), nn.BatchNorm1d(d), nn.Softplus())
        self.top = nn.Sequential(nn.Linear(3 * d, d), nn.Tanh(), nn.Dropout(0.2), nn.Linear(d, 10))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.left(x), self.right(x)
        return self.top(torch.cat([a, b, a * b], -1))  # type: ignore[no-any-return]


class Autoencoder(nn.Module):
    """Strided convolutions down, transposed convolutions up, InstanceNorm and LeakyReLU."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 32), (32, 64))
        down = [part for a, b in sizes for part in (nn.Conv2d(a, b, 4, 2, 1), nn.InstanceNorm2d(b), nn.LeakyReLU(0.2))]
        up = [part for a, b in sizes[::-1] for part in (nn.ConvTranspose2d(b, a, 4, 2, 1), nn.ELU())]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))  # type: ignore[no-any-return]


def mobile() -> nn.Module:
    """A small MobileNetV2."""
    sizes = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1))
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
    ends = (nn.Conv2d(32, 64, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(*stem, *(InvertedResidual(*size) for size in sizes), *ends)


def norm_free() -> nn.Module:
    """Six blocks without norms; β is the expected deviation at their input."""
    return nn.Sequential(
        StandardisedConv(3, 64, 3, padding=1), *[NormFree(64, (1 + 0.04 * n) ** 0.5) for n in range(6)]
    )


def half() -> nn.Module:
    """A residual network with parameters in bfloat16."""
    parts = [nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 128)) for _ in range(6)]
    return nn.Sequential(nn.Linear(32, 128), *parts, nn.Linear(128, 10)).bfloat16()


def _ids() -> Tensor:
    return torch.randint(300, (8, 32))


def _bf16() -> Tensor:
    return torch.randn(64, 32).bfloat16()


def _of(name: str, **options: object) -> Make:
    def make() -> nn.Module:
        import transformers

        stem = name.replace("ForMaskedLM", "").replace("ForCausalLM", "").replace("Encoder", "").removesuffix("Model")
        return getattr(transformers, name)(getattr(transformers, f"{stem}Config")(**options))  # type: ignore[no-any-return]

    return make


_TINY = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192}

SECOND: dict[str, tuple[Make, tuple[int, ...] | Callable[[], Tensor]]] = {
    "ResNeXt with squeeze-and-excitation": (lambda: nn.Sequential(*[ResNeXt(64) for _ in range(4)]), (16, 64, 12, 12)),
    "MobileNetV2": (mobile, (16, 3, 32, 32)),
    "gated convolutions, weight norm": (lambda: GatedConvNet(64), (8, 64, 48)),
    "T5 block, relative bias": (lambda: nn.Sequential(*[T5Block(128) for _ in range(4)]), (8, 32, 128)),
    "linear attention": (lambda: nn.Sequential(*[LinearAttention(128) for _ in range(4)]), (8, 32, 128)),
    "ResMLP with LayerScale": (lambda: nn.Sequential(*[ScaledMixer(49, 96) for _ in range(6)]), (8, 49, 96)),
    "NF-ResNet": (norm_free, (8, 3, 16, 16)),
    "GRU, unrolled": (lambda: GRU(128), (32, 10, 16)),
    "tied language model": (lambda: TiedLM(128), _ids),
    "graph convolutions": (lambda: nn.Sequential(*[GraphConv(40, 64) for _ in range(4)]), (8, 40, 64)),
    "two towers": (lambda: BilinearFusion(128), (64, 128)),
    "convolutional autoencoder": (Autoencoder, (8, 3, 32, 32)),
    "bfloat16 network": (half, _bf16),
    "DistilBERT (transformers)": (
        _of("DistilBertForMaskedLM", vocab_size=300, dim=96, n_layers=3, n_heads=4, hidden_dim=192),
        _ids,
    ),
    "GPT-NeoX (transformers)": (_of("GPTNeoXModel", vocab_size=300, **_TINY), _ids),
    "Mistral, grouped queries (transformers)": (
        _of("MistralForCausalLM", vocab_size=300, num_key_value_heads=2, **_TINY),
        _ids,
    ),
    "T5 encoder (transformers)": (
        _of("T5EncoderModel", vocab_size=300, d_model=96, d_kv=24, d_ff=192, num_layers=3, num_heads=4),
        _ids,
    ),
    "ConvNeXt (transformers)": (
        _of("ConvNextModel", hidden_sizes=[32, 64], depths=[2, 2], num_stages=2, layer_scale_init_value=1.0),
        (8, 3, 64, 64),
    ),
}
"""Networks of the second set."""
