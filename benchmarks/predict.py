"""How well `sonde.predict` predicts: networks at initialisation against the mean over fresh draws.

Writes benchmarks/predict.json and the tables in docs/predict.md.  The networks are written down here, or are those of
torch and transformers; none was chosen for its result.  Those of predict_held_out.py were written after the rules.

    python benchmarks/predict.py                       all networks, 20 draws each; a few minutes
    python benchmarks/predict.py --only mixer --details
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional

import predict_fourth_set
import predict_held_out
import predict_third_set
from sonde.core.errors import SondeError
from sonde.observe.experiments.copies import reset
from sonde.observe.predict import Prediction, predict

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "predict.md"
DRAWS = 20

Make = Callable[[], nn.Module]
Batch = tuple[int, ...] | Callable[[], Tensor]


class Residual(nn.Module):
    """x + scale · f(x)."""

    def __init__(self, branch: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.branch, self.scale = branch, nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.branch(x)  # type: ignore[no-any-return]


class PostNorm(nn.Module):
    """LayerNorm(α x + f(x)), as in DeepNorm."""

    def __init__(self, d: int, alpha: float) -> None:
        super().__init__()
        self.branch, self.norm, self.alpha = wide(d), nn.LayerNorm(d), alpha

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.alpha * x + self.branch(x))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """The block of a ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        shortcut = [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.shortcut = nn.Sequential(*(shortcut if before != after else []))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class Mixer(nn.Module):
    """A block of MLP-Mixer (Tolstikhin et al. 2021)."""

    def __init__(self, tokens: int, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.tokens, self.channels = nn.LayerNorm(d), nn.LayerNorm(d), wide(tokens), wide(d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """A block of gMLP (Liu et al. 2021)."""

    def __init__(self, tokens: int, d: int) -> None:
        super().__init__()
        self.norm, self.up, self.gate_norm = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.LayerNorm(2 * d)
        self.spatial, self.down = nn.Conv1d(tokens, tokens, 1), nn.Linear(2 * d, d)
        nn.init.ones_(self.spatial.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        value, gate = functional.gelu(self.up(self.norm(x))).chunk(2, -1)
        return x + self.down(value * self.spatial(self.gate_norm(gate)))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """A feed-forward block of Llama."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.gate, self.up, self.down = nn.RMSNorm(d), *(nn.Linear(*s, bias=False) for s in _SWIGLU(d))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]


def _SWIGLU(d: int) -> Iterator[tuple[int, int]]:
    yield from ((d, 3 * d), (d, 3 * d), (3 * d, d))


class UNet(nn.Module):
    """Two levels down and up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"down1": (3, 32), "down2": (32, 64), "down3": (64, 128), "up2": (192, 64), "up1": (96, 32)}
        for name, (before, after) in sizes.items():
            conv = nn.Conv2d(before, after, 3, padding=1)
            self.add_module(name, nn.Sequential(conv, nn.GroupNorm(8, after), nn.SiLU()))
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        parts = dict(self.named_children())
        a = parts["down1"](x)
        b = parts["down2"](functional.avg_pool2d(a, 2))
        c = parts["down3"](functional.avg_pool2d(b, 2))
        b = parts["up2"](torch.cat([functional.interpolate(c, scale_factor=2), b], 1))
        up = torch.cat([functional.interpolate(b, scale_factor=2), a], 1)
        return self.out(parts["up1"](up))  # type: ignore[no-any-return]


class ConvNeXt(nn.Module):
    """A block of ConvNeXt (Liu et al. 2022)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.depthwise, self.norm, self.mlp = nn.Conv2d(d, d, 7, padding=3, groups=d), nn.LayerNorm(d), wide(d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class Unrolled(nn.Module):
    """A tanh RNN over twelve steps."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.input, self.hidden, self.readout = nn.Linear(32, d), nn.Linear(d, d), nn.Linear(d, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.input(x[:, 0]))
        for step in range(1, x.shape[1]):
            h = torch.tanh(self.input(x[:, step]) + self.hidden(h))
        return self.readout(h)  # type: ignore[no-any-return]


def wide(d: int) -> nn.Sequential:
    """A GELU network with a hidden layer of four times the width."""
    return nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))


def stack(block: Make, times: int) -> Make:
    """Several blocks, each drawn anew."""
    return lambda: nn.Sequential(*[block() for _ in range(times)])


def mlp(activation: Callable[[], nn.Module], init: Callable[[Tensor], Any] | None = None, d: int = 256) -> Make:
    """Ten layers."""

    def make() -> nn.Module:
        model = nn.Sequential(*[part for _ in range(10) for part in (nn.Linear(d, d), activation())], nn.Linear(d, 10))
        for weight in (p for p in model.parameters() if init is not None):
            init(weight) if weight.dim() == 2 and init is not None else nn.init.zeros_(weight)
        return model

    return make


def fixup() -> nn.Module:
    """A residual branch whose first weight is scaled by 1/√L (Zhang et al. 2019), the last one small, not zero."""
    first, last = nn.Linear(128, 128), nn.Linear(128, 128)
    nn.init.normal_(first.weight, 0, math.sqrt(2 / 128 / 12))
    nn.init.normal_(last.weight, 0, 0.05)
    return Residual(nn.Sequential(first, nn.ReLU(), last))


def resnet() -> nn.Module:
    """ResNet with BatchNorm on small images."""
    sizes = ((32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))
    stem = (nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
    return nn.Sequential(*stem, *(BasicBlock(*size) for size in sizes), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def vgg() -> nn.Module:
    """Convolutions and max-pooling, PyTorch's default initialisation."""
    parts: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 128)):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10))


def encoder(norm_first: bool) -> Make:
    """torch's TransformerEncoder, with layers drawn anew: it makes copies of one."""

    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, norm_first=norm_first, dropout=0.1)
        model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        reset(model)
        return model

    return make


def of_transformers(name: str, **options: Any) -> Make:
    """A model of the package transformers, from its configuration."""

    def make() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name.removesuffix('Model').removesuffix('LMHead')}Config")(**options)
        return getattr(transformers, name)(config)  # type: ignore[no-any-return]

    return make


_SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}


def ids() -> Tensor:
    """Random token ids."""
    return torch.randint(500, (8, 48))


NETWORKS: dict[str, tuple[Make, Batch]] = {
    "plain ReLU MLP, He": (mlp(nn.ReLU, nn.init.kaiming_normal_), (64, 256)),
    "plain tanh MLP, Xavier": (mlp(nn.Tanh, nn.init.xavier_normal_), (64, 256)),
    "plain GELU MLP, PyTorch's default": (mlp(nn.GELU), (64, 256)),
    "residual MLP": (stack(lambda: Residual(wide(128)), 12), (64, 128)),
    "ReZero MLP, gains 0.1": (stack(lambda: Residual(wide(128), 0.1), 12), (64, 128)),
    "Fixup MLP": (stack(fixup, 12), (64, 128)),
    "DeepNorm MLP": (stack(lambda: PostNorm(128, 24**0.25), 12), (64, 128)),
    "SwiGLU with RMSNorm": (stack(lambda: SwiGLU(128), 6), (8, 32, 128)),
    "ResNet with BatchNorm": (resnet, (32, 3, 32, 32)),
    "ConvNet with max-pooling": (vgg, (16, 3, 32, 32)),
    "U-Net with GroupNorm": (UNet, (8, 3, 32, 32)),
    "ConvNeXt": (stack(lambda: ConvNeXt(64), 4), (8, 64, 16, 16)),
    "MLP-Mixer": (stack(lambda: Mixer(64, 128), 6), (8, 64, 128)),
    "gMLP": (stack(lambda: GatedMLP(64, 128), 4), (8, 64, 128)),
    "pre-LN transformer": (encoder(True), (8, 32, 128)),
    "post-LN transformer": (encoder(False), (8, 32, 128)),
    "tanh RNN, unrolled": (lambda: Unrolled(128), (32, 12, 32)),
    "GPT-2 (transformers)": (
        of_transformers(
            "GPT2LMHeadModel", vocab_size=500, n_positions=64, n_embd=128, n_layer=4, n_head=4, use_cache=False
        ),
        ids,
    ),
    "BERT (transformers)": (of_transformers("BertModel", vocab_size=500, **_SMALL), ids),
    "ViT (transformers)": (of_transformers("ViTModel", image_size=32, patch_size=4, **_SMALL), (8, 3, 32, 32)),
    "Llama (transformers)": (of_transformers("LlamaModel", vocab_size=500, use_cache=False, **_SMALL), ids),
}


SETS: dict[str, dict[str, tuple[Make, Batch]]] = {
    "network": NETWORKS,
    "network, held out": {**predict_held_out.NETWORKS},
    "network, second held-out set": {**predict_held_out.SECOND},
    "network, third held-out set": {**predict_third_set.THIRD},
    "network, fourth held-out set": {**predict_fourth_set.FOURTH},
}
EVERY = {name: network for networks in SETS.values() for name, network in networks.items()}
LABELS = {name: f"{heading}: {name}" for heading, networks in SETS.items() for name in networks}


@dataclass
class Score:
    """Errors of one network: medians and largest, in shares; the share of draws inside the band."""

    modules: int = 0
    undefined: int = 0
    gradients: int = 0  # modules whose gradient is defined
    forward: float | None = None
    forward_worst: float | None = None
    forward_at: str | None = None
    backward: float | None = None
    backward_worst: float | None = None
    backward_at: str | None = None
    band: float | None = None
    gradient_band: float | None = None
    seconds: float = 0.0
    error: str | None = None
    remedy: dict[str, Any] | None = None  # where signal or gradient leaves 1e-3 to 1e3


def draws(make: Make, batch: Batch, scales: dict[str, float] | None = None) -> Iterator[dict[str, tuple[float, float]]]:
    """RMS of every module's output and of the gradient at it, for draws 0, 1, …; standard normal at the output."""
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        model = make().train()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.mul_((scales or {}).get(name, 1.0))
        seen: dict[str, list[float]] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(_note(seen, name or "(model)"))
        out = first_tensor(model(batch() if callable(batch) else torch.randn(batch)))
        out.backward(torch.randn_like(out))
        yield {name: (values[0], values[1] if len(values) > 1 else math.nan) for name, values in seen.items()}


def _note(seen: dict[str, list[float]], name: str) -> Callable[[nn.Module, Any, Any], None]:
    """Measure an output at once, as the model may change it in place, and the gradient at it when it comes."""
    count = [0]

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        found = first_tensor(output)
        if found is not None and found.requires_grad:
            count[0] += 1
            values = seen[name if count[0] == 1 else f"{name}#{count[0]}"] = [rms(found.detach())]
            found.register_hook(lambda gradient: values.append(rms(gradient)))

    return hook


def first_tensor(output: Any) -> Any:
    """The first tensor of floating-point numbers in an output."""
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)


def rms(x: Tensor) -> float:
    """Root mean square."""
    return float(x.square().mean().sqrt())


def score(make: Make, batch: Batch, details: bool) -> Score:
    """Compare the prediction from one draw with the mean over others."""
    torch.manual_seed(10_000)
    model, given = make().train(), batch() if callable(batch) else batch
    start = time.process_time()
    try:
        found = predict(model, given, remedy=False)
    except SondeError as error:
        return Score(error=str(error))
    seconds = time.process_time() - start
    known = list(draws(make, batch))
    errors: dict[str, dict[str, float]] = {"signal": {}, "gradient": {}}
    inside: dict[str, list[bool]] = {"signal": [], "gradient": []}
    for module in found.modules:
        for place, direction in enumerate(errors):
            level = getattr(module, direction)
            values = [draw[module.name][place] for draw in known if module.name in draw]
            if level is None or not values or not statistics.fmean(values) > 0:
                continue
            errors[direction][module.name] = abs(level.expected / statistics.fmean(values) - 1)
            inside[direction] += [level.low * 0.999 <= value <= level.high * 1.001 for value in values]
    if details:
        print(found)
        print(errors)
    return _scored(found, errors, inside, seconds)


def proved(make: Make, batch: Batch) -> dict[str, Any] | None:
    """Where signal or gradient leaves the range: the scale that is named, and both directions without and with it."""
    torch.manual_seed(10_000)
    found = predict(make().train(), batch() if callable(batch) else batch)
    named = found.remedy or found.best_scale
    if not (found.leaves("signal") or found.leaves("gradient")) or named is None:
        return None
    scales = dict.fromkeys(named.parameters, named.factor)
    blocks = found.blocks or [module.name for module in found.modules if module.is_leaf]
    known: dict[str, Any] = {
        "scale": f"{named.pattern} × {named.factor:.3g}"
        + ("" if found.remedy else " (does not suffice, as predicted)"),
        "promised": named.worst,
    }
    for when, change in (("before", None), ("after", scales)):
        measured = list(draws(make, batch, change))
        for place, direction in enumerate(("signal", "gradient")):
            values = [
                statistics.fmean(draw[block][place] for draw in measured) for block in blocks if block in measured[0]
            ]
            reference = values[-1 if place else 0]
            known[f"{direction} {when}"] = max(max(value / reference, reference / value) for value in values)
    return known


def _scored(found: Prediction, errors: Any, inside: Any, seconds: float) -> Score:
    known: dict[str, Any] = {"modules": len(found.modules), "undefined": len(found.undefined), "seconds": seconds}
    for direction, name, band in (("signal", "forward", "band"), ("gradient", "backward", "gradient_band")):
        of = errors[direction]
        worst = max(of, key=of.__getitem__, default=None)
        known |= {name: statistics.median(of.values()) if of else None, f"{name}_at": worst}
        known |= {f"{name}_worst": None if worst is None else of[worst]}
        known[band] = statistics.fmean(inside[direction]) if of else None
    return Score(**known, gradients=len(errors["gradient"]))


def table(scores: dict[str, dict[str, Any]]) -> str:
    """The tables of docs/predict.md: how well it predicts, and what the remedies do."""
    heads: tuple[str, ...] = (
        "network",
        "signal, median error",
        "largest",
        "gradient, median error",
        "largest",
        "draws in the band",
    )
    lines = []
    starts = {next(iter(networks)): heading for heading, networks in SETS.items()}
    for name, one in scores.items():
        if name in starts:
            lines += ["", f"| {' | '.join((starts[name], *heads[1:]))} |", f"|{'---|' * len(heads)}"]
        sizes = ("forward", "forward_worst", "backward", "backward_worst")
        cells = [
            ("error" if one.get("error") else "undefined") if one[key] is None else f"{100 * one[key]:.1f} %"
            for key in sizes
        ]
        bands = ["–" if one[key] is None else f"{100 * one[key]:.0f} %" for key in ("band", "gradient_band")]
        lines.append(f"| {name} | {' | '.join(cells)} | {', '.join(bands)} |")
    lines += ["", *summary(scores)]
    columns = ("network", "scale", "promised", "signal before", "after", "gradient before", "after")
    lines += ["", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for name, one in scores.items():
        if remedy := one.get("remedy"):
            keys = ("promised", "signal before", "signal after", "gradient before", "gradient after")
            lines.append(f"| {name} | {remedy['scale']} | {' | '.join(f'×{remedy[key]:.3g}' for key in keys)} |")
    return "\n".join(lines[1:])


def summary(scores: dict[str, dict[str, Any]]) -> list[str]:
    """For each set: how many networks are within the bars, and the share of draws in the band over all of them."""
    lines = ["| set | within all bars | outside | draws in the band |", "|---|---|---|---|"]
    known_sets = {heading: {name: scores[name] for name in of if name in scores} for heading, of in SETS.items()}
    first = {
        heading: {name: one["first"] for name, one in of.items() if "first" in one}
        for heading, of in known_sets.items()
    }
    for heading, known in (
        known_sets | {f"{heading}, first prediction": of for heading, of in first.items() if of}
    ).items():
        outside = [
            name
            for name, one in known.items()
            if one.get("error")
            or (one["forward"] or 0) > 0.02
            or (one["backward"] or 0) > 0.05
            or max(one["forward_worst"] or 0, one["backward_worst"] or 0) > 0.1
        ]
        shares = [
            f"{100 * statistics.fmean(one[key] for one in known.values() if one[key] is not None):.0f} %"
            for key in ("band", "gradient_band")
        ]
        named = ", ".join(outside) or "none"
        lines.append(f"| {heading} | {len(known) - len(outside)} of {len(known)} | {named} | {', '.join(shares)} |")
    return lines


def write_page(scores: dict[str, dict[str, Any]]) -> None:
    """Put the table between its marks."""
    begin, end = "<!-- benchmarks/predict.json -->", "<!-- end -->"
    before, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{before}{begin}\n{table(scores)}\n{end}{rest.split(end, 1)[1]}")


def main() -> None:
    """Score networks, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="part of the name of a set or a network")
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--remedies", action="store_true", help="measure the remedies alone")
    chosen = parser.parse_args()
    stored = HERE / "predict.json"
    scores = json.loads(stored.read_text()) if stored.exists() else {}
    for name, (make, batch) in EVERY.items():
        if chosen.remedies:
            scores[name]["remedy"] = proved(make, batch)
        elif chosen.only is None or chosen.only.lower() in LABELS[name].lower():
            found = asdict(score(make, batch, chosen.details))
            first = scores[name].get("first") if name in scores else dict(found)  # kept for what is scored later
            found["remedy"] = proved(make, batch) if found["error"] is None else None
            scores[name] = found | ({"first": first} if first else {})
            print(name, json.dumps(scores[name]), flush=True)
    scores = {name: scores[name] for name in EVERY if name in scores}
    stored.write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n")
    write_page(scores)


if __name__ == "__main__":
    main()
