"""A third set of networks for benchmarks/predict.py, written down before any of them was predicted or measured."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Make = Callable[[], nn.Module]


def selfnormalising() -> nn.Module:
    """SELU with its initialisation, deviation 1/√fan-in (Klambauer et al. 2017)."""
    model = nn.Sequential(*[part for _ in range(12) for part in (nn.Linear(192, 192), nn.SELU())], nn.Linear(192, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 1 / math.sqrt(192))
            nn.init.zeros_(layer.bias)
    return model


class RadianceField(nn.Module):
    """Eight ReLU layers of encoded positions, which are given again to the fifth (NeRF, Mildenhall et al. 2020)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_relus(60, d, 4))
        self.second = nn.Sequential(*_relus(60 + d, d, 4))
        self.colour = nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.colour(self.second(torch.cat([x, self.first(x)], -1))))


def _relus(before: int, d: int, layers: int) -> list[nn.Module]:
    sizes = [(before, d), *[(d, d)] * (layers - 1)]
    return [part for size in sizes for part in (nn.Linear(*size), nn.ReLU())]


class PointNet(nn.Module):
    """A network of each point and the largest value over points (Qi et al. 2017)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.points = nn.Sequential(nn.Conv1d(3, d, 1), nn.BatchNorm1d(d), nn.ReLU(), nn.Conv1d(d, 2 * d, 1))
        self.head = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.max_pool1d(self.points(x), x.shape[-1]).flatten(1))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """Branches of several sizes, concatenated (Szegedy et al. 2015)."""

    def __init__(self, before: int, each: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(before, each, 1), nn.ReLU())
        self.three = nn.Sequential(
            nn.Conv2d(before, each, 1), nn.ReLU(), nn.Conv2d(each, each, 3, padding=1), nn.ReLU()
        )
        self.five = nn.Sequential(nn.Conv2d(before, each, 1), nn.ReLU(), nn.Conv2d(each, each, 5, padding=2), nn.ReLU())
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(before, each, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class Modulated(nn.Module):
    """Residual convolutions whose channels are scaled and shifted by a network of their means (FiLM, Perez 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 3, padding=1)
        self.norm, self.modulation = nn.GroupNorm(1, channels), nn.Linear(channels, 2 * channels)

    def forward(self, x: Tensor) -> Tensor:
        first = functional.relu(self.conv1(x))
        scale, shift = self.modulation(x.mean((2, 3))).chunk(2, -1)
        inner = self.norm(self.conv2(first)) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        return first + functional.relu(inner)


class Temporal(nn.Module):
    """A block of a temporal convolutional network: two dilated causal convolutions, dropout, a residual (Bai 2018)."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.reach = 2 * dilation
        self.conv1 = nn.Conv1d(channels, channels, 3, padding=self.reach, dilation=dilation)
        self.conv2 = nn.Conv1d(channels, channels, 3, padding=self.reach, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.dropout(functional.relu(self.conv1(x)[..., : -self.reach]), 0.2)
        inner = functional.dropout(functional.relu(self.conv2(inner)[..., : -self.reach]), 0.2)
        return functional.relu(x + inner)


class SoftExperts(nn.Module):
    """A softmax over four networks of a token, all of them computed."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(d), nn.Linear(d, 4)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(4)]
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        weights = torch.softmax(self.router(h), -1)
        outputs = torch.stack([expert(h) for expert in self.experts], -1)
        return x + (outputs * weights.unsqueeze(-2)).sum(-1)


class Hourglass(nn.Module):
    """Max-pooling down, nearest neighbours up, a sum with what was there before (Newell et al. 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.before, self.inside, self.after = (Bottleneck(channels) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        inner = self.inside(functional.max_pool2d(x, 2))
        return self.after(x + functional.interpolate(inner, scale_factor=2))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A pre-activation bottleneck with BatchNorm (He et al. 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner, parts = channels // 2, []
        for before, after, size in ((channels, inner, 1), (inner, inner, 3), (inner, channels, 1)):
            conv = nn.Conv2d(before, after, size, padding=size // 2, bias=False)
            parts += [nn.BatchNorm2d(before), nn.ReLU(), conv]
        self.branch = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)  # type: ignore[no-any-return]


class Translator(nn.Module):
    """torch's TransformerDecoder on the output of an encoder's layer."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.source = nn.TransformerEncoderLayer(d, 4, 2 * d, batch_first=True)
        self.blocks = nn.ModuleList([nn.TransformerDecoderLayer(d, 4, 2 * d, batch_first=True) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        known, y = self.source(x[:, :24]), x[:, 24:]
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1])
        for block in self.blocks:
            y = block(y, known, tgt_mask=mask)
        return y


def _of(name: str, part: str | None = None, **options: Any) -> Make:
    """A model of the package transformers, or a part of it, from its configuration."""

    def make() -> nn.Module:
        import transformers

        model = getattr(transformers, name)(getattr(transformers, f"{name.removesuffix('Model')}Config")(**options))
        return model if part is None else getattr(model, part)  # type: ignore[no-any-return]

    return make


def _ids() -> Tensor:
    return torch.randint(5, 300, (8, 32))


_TEXT: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192}
_TOKENS: dict[str, Any] = {"vocab_size": 300, "use_cache": False}
_WHISPER: dict[str, Any] = {
    "encoder_layers": 3,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}

THIRD: dict[str, tuple[Make, tuple[int, ...] | Callable[[], Tensor]]] = {
    "self-normalising network": (selfnormalising, (64, 192)),
    "NeRF": (lambda: RadianceField(128), (64, 60)),
    "PointNet": (lambda: PointNet(64), (16, 3, 40)),
    "Inception": (lambda: nn.Sequential(Inception(64, 16), Inception(64, 16), Inception(64, 16)), (8, 64, 12, 12)),
    "FiLM": (lambda: nn.Sequential(*[Modulated(64) for _ in range(4)]), (8, 64, 10, 10)),
    "temporal convolutions": (lambda: nn.Sequential(*[Temporal(64, 2**place) for place in range(4)]), (8, 64, 64)),
    "soft mixture of experts": (lambda: nn.Sequential(*[SoftExperts(96) for _ in range(4)]), (8, 32, 96)),
    "hourglass": (lambda: nn.Sequential(Hourglass(64), Hourglass(64)), (8, 64, 16, 16)),
    "transformer decoder": (lambda: Translator(96), (8, 48, 96)),
    "OPT (transformers)": (
        _of(
            "OPTModel",
            ffn_dim=192,
            word_embed_proj_dim=96,
            max_position_embeddings=64,
            pad_token_id=1,
            **_TOKENS,
            **{key: _TEXT[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
        ),
        _ids,
    ),
    "BLOOM (transformers)": (_of("BloomModel", hidden_size=96, n_layer=3, n_head=4, **_TOKENS), _ids),
    "Phi (transformers)": (_of("PhiModel", **_TOKENS, **_TEXT), _ids),
    "Gemma (transformers)": (
        _of("GemmaModel", num_key_value_heads=1, head_dim=24, pad_token_id=0, **_TOKENS, **_TEXT),
        _ids,
    ),
    "Qwen2 (transformers)": (_of("Qwen2Model", num_key_value_heads=2, **_TOKENS, **_TEXT), _ids),
    "ALBERT (transformers)": (_of("AlbertModel", vocab_size=300, embedding_size=48, **_TEXT), _ids),
    "DINOv2 (transformers)": (
        _of("Dinov2Model", hidden_size=96, num_hidden_layers=3, num_attention_heads=4, image_size=32, patch_size=4),
        (8, 3, 32, 32),
    ),
    "Swin (transformers)": (
        _of("SwinModel", image_size=32, patch_size=2, embed_dim=48, depths=[2, 2], num_heads=[2, 4], window_size=4),
        (8, 3, 32, 32),
    ),
    "SegFormer (transformers)": (
        _of(
            "SegformerModel",
            num_encoder_blocks=2,
            depths=[2, 2],
            sr_ratios=[4, 2],
            hidden_sizes=[32, 64],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
        ),
        (8, 3, 64, 64),
    ),
    "Whisper encoder (transformers)": (
        _of("WhisperModel", "encoder", d_model=96, encoder_ffn_dim=192, max_source_positions=32, **_WHISPER),
        (4, 80, 64),
    ),
    "ResNet bottlenecks (transformers)": (
        _of("ResNetModel", embedding_size=32, hidden_sizes=[64, 128], depths=[2, 2]),
        (16, 3, 64, 64),
    ),
    "PoolFormer (transformers)": (
        _of(
            "PoolFormerModel",
            hidden_sizes=[32, 64],
            depths=[2, 2],
            num_encoder_blocks=2,
            patch_sizes=[7, 3],
            strides=[4, 2],
            padding=[2, 1],
            layer_scale_init_value=1.0,
        ),
        (8, 3, 64, 64),
    ),
}
"""Networks of the third set."""
