"""`sonde.predict`: moments of signal and gradient against theory, closed forms and measured networks."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, optimize
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

import sonde
from sonde.analysis import theory
from sonde.analysis.moments import (
    Expectation,
    Moments,
    Products,
    average,
    centred,
    contracted,
    critical_weight_std,
    nodes,
    participation,
    reshaped,
)
from sonde.cli import app
from sonde.core.errors import SondeError
from sonde.observe.predict import Prediction, predict, register
from sonde.observe.predict.elementwise import curve, value_and_slope
from sonde.observe.predict.operations import CUSTOM
from sonde.observe.predict.positions import MOST, Rows
from sonde.observe.predict.prediction import Level
from sonde.observe.predict.weights import empirical


def density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize("function", [torch.tanh, functional.gelu, functional.silu, torch.relu, functional.hardtanh])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.4), (-1.3, 2.5)])
def test_an_activation_is_integrated_to_1e_10(function: Callable[[Tensor], Tensor], mean: float, std: float) -> None:
    found = Expectation(value_and_slope(function, mean + std * nodes(mean, std)[0])[0], mean, std)
    kinks = [(kink - mean) / std for kink in (-1.0, 0.0, 1.0)]
    for power, value in ((1, found.mean), (2, found.square)):
        exact = integrate.quad(
            lambda z: density(z) * float(function(torch.tensor(mean + std * z, dtype=torch.double))) ** power,  # noqa: B023
            *(-9, 9),
            points=[kink for kink in kinks if abs(kink) < 9],
            epsabs=1e-13,
            limit=200,
        )[0]
        assert value == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.3, 0.9, 1.0])
def test_two_correlated_relu_units_have_the_arc_cosine_product(rho: float) -> None:
    found = Expectation(value_and_slope(torch.relu, nodes(0.0, 1.0)[0])[0], 0.0, 1.0).product(np.array([rho]))[0]
    angle = math.acos(rho)
    assert found == pytest.approx((math.sin(angle) + (math.pi - angle) * rho) / (2 * math.pi), abs=2e-5)


@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.5])
def test_two_correlated_entries_with_a_mean_have_the_product_of_a_double_integral(rho: float) -> None:
    mean, std = 1.0, 0.5
    z, w = np.polynomial.hermite_e.hermegauss(120)
    u, v = mean + std * z[:, None], mean + std * (rho * z[:, None] + math.sqrt(1 - rho**2) * z)
    exact = float((w[:, None] * w * np.tanh(u) * np.tanh(v)).sum() / w.sum() ** 2)
    moments = Moments(mean, np.array([std**2 + mean**2, rho * std**2 + mean**2]))
    found = curve(torch.tanh).forward([moments])
    assert found.products[1] == pytest.approx(exact, rel=1e-6)


class Centred(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner, self.share = nn.Sequential(nn.Linear(64, 6), nn.ReLU()), share

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        return h - self.share * h.mean(-1, keepdim=True)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_mean_that_is_subtracted_by_hand_is_that_of_the_same_entries(share: float) -> None:
    torch.manual_seed(0)
    found = predict(Centred(share), (256, 64), remedy=False)
    whole, before = [], []
    for seed in range(60):
        torch.manual_seed(seed)
        model = Centred(share)
        h = model.inner(torch.randn(256, 64)).detach().requires_grad_()
        out = h - share * h.mean(-1, keepdim=True)
        out.backward(torch.randn_like(out))
        whole.append(float(out.detach().square().mean()))
        before.append(float(h.grad.square().mean()))  # type: ignore[union-attr]
    assert mean_square(found["(model)"].signal) == pytest.approx(np.mean(whole), rel=0.04)
    assert mean_square(found["inner.1"].gradient) == pytest.approx(np.mean(before), rel=0.02)


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.hidden, self.readout = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x[:, 0]))
        for step in range(1, x.shape[1]):
            h = torch.tanh(self.inner(x[:, step]) + self.hidden(h))
        return self.readout(h)  # type: ignore[no-any-return]


def test_steps_of_a_recurrence_are_its_blocks_and_one_scale_keeps_them() -> None:
    torch.manual_seed(0)
    found = predict(Steps(), (16, 12, 16))
    assert found.blocks[:2] == ["hidden", "hidden#2"]
    assert found.remedy is not None
    assert found.remedy.pattern == "hidden.weight"


class Cached(nn.Module):
    """Two layers of uniform causal attention, with a cache that is empty, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(2)])
        self.scores = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(2)])
        for layer in self.scores:
            nn.init.normal_(layer.weight, 0, 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        for value, score in zip(self.values, self.scores, strict=True):
            known = torch.cat([torch.zeros(x.shape[0], 0, 64), value(x)], 1)
            x = functional.scaled_dot_product_attention(score(x), x, known, is_causal=True)
        return x


def test_a_cache_that_is_empty_does_not_hide_how_tokens_differ() -> None:
    level = predict(Cached(), (4, 16, 64), remedy=False)["(model)"].signal
    squares = []
    for seed in range(40):
        torch.manual_seed(seed)
        squares.append(float(Cached()(torch.randn(4, 16, 64)).detach().square().mean()))
    assert mean_square(level) == pytest.approx(np.mean(squares), rel=0.08)


class Biased(nn.Module):
    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(32, 32), nn.Linear(32, 32)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return torch.softmax(scores + self.bias, -1) @ x


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + functional.layer_norm(x, (32,))


class PooledStream(nn.Module):
    """Max-pooling of a stream that goes on beside it, or of places that windows made alike."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Conv1d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "windows":
            return functional.max_pool1d(self.inner(functional.max_pool1d(self.inner(x), 3, 1)), 2)
        h = functional.max_pool1d(x, 2)
        return x + functional.interpolate(h + self.inner(h), scale_factor=2)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Biased(-torch.arange(8.0)), "fixed bias"),
        (Biased(torch.zeros(4, 8, 8).masked_fill(torch.ones(4, 8, 8).cumsum(0) * torch.arange(8) > 14, -1e9)), "masks"),
        (Pooled(), "without weights"),
        (PooledStream("sum"), "without weights"),
        (PooledStream("windows"), "neighbours"),
    ],
)
def test_what_is_not_known_of_biased_scores_and_dependent_sums_is_undefined(model: nn.Module, why: str) -> None:
    assert why in str(predict(model, (4, 8, 32), remedy=False)["(model)"].undefined)


def test_weights_with_a_mean_keep_the_sign_of_what_they_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(), nn.Linear(64, 64, bias=False), nn.ReLU())
    nn.init.uniform_(model[1].weight, 0, 0.05)
    measured = float(model(torch.randn(4000, 64)).detach().square().mean().sqrt())
    level = predict(model, (64, 64), remedy=False)["2"].signal
    assert level is not None
    assert level.expected == pytest.approx(measured, rel=0.02)


def tanh(x: Products) -> tuple[Products, Products]:
    return value_and_slope(torch.tanh, x)


@pytest.mark.parametrize("bias_std", [0.05, 0.2236, 0.5])
def test_the_critical_line_of_tanh_is_that_of_schoenholz(bias_std: float) -> None:
    def expected(function: Callable[[float], float], q: float) -> float:
        return float(integrate.quad(lambda z: density(z) * function(math.sqrt(q) * z), -10, 10)[0])

    def slope(q: float) -> float:
        return expected(lambda x: (1 - math.tanh(x) ** 2) ** 2, q)

    def excess(q: float) -> float:
        return expected(lambda x: math.tanh(x) ** 2, q) / slope(q) + bias_std**2 - q

    q = optimize.brentq(excess, 1e-9, 50)
    assert critical_weight_std(lambda x: value_and_slope(torch.tanh, x), bias_std) == pytest.approx(
        1 / math.sqrt(slope(q)), abs=1e-3
    )


def test_the_critical_line_of_tanh_starts_at_1() -> None:
    assert critical_weight_std(tanh, 1e-4) == pytest.approx(1, abs=2e-3)


def test_moments_follow_means_centring_products_and_reshapes_of_actual_tensors() -> None:
    x, weight = torch.randn(4, 3, 5, generator=torch.manual_seed(0)).double() + 0.3, torch.randn(6, 5).double()
    products = empirical(x)[1]
    sizes = tuple(x.shape)
    np.testing.assert_allclose(empirical(x.mean(1, keepdim=True).expand(4, 3, 5))[1], average(products, sizes, [1]))
    np.testing.assert_allclose(empirical(x - x.mean((0, 2), keepdim=True))[1], centred(products, sizes, [0, 2]))
    np.testing.assert_allclose(empirical(x.reshape(4, 15))[1], reshaped(products, sizes, (4, 15)))
    np.testing.assert_allclose(empirical(x.reshape(4, 1, 3, 5))[1], reshaped(products, sizes, (4, 1, 3, 5)))
    signs = torch.tensor([1.0, -1.0]).double()
    draws = [
        empirical(torch.einsum("nti,oi->nto", x, weight * signs[torch.randint(2, weight.shape)]))[1]
        for _ in range(4000)
    ]
    known = np.zeros((2, 2))
    known[0, 0] = empirical(weight)[1].flat[0]
    columns = weight.square().mean(0).expand_as(weight)  # signs are random, sizes are not: the same in every draw
    exact = contracted(
        empirical(x * columns.mean(0).sqrt() / columns.mean().sqrt())[1], known, "nti,oi->nto", {"i": 5, "o": 6}
    )
    np.testing.assert_allclose(np.mean(draws, 0), exact, atol=0.05 * exact.max())


@pytest.mark.parametrize("variance", [0.1, 1.0, 3.0])
def test_the_share_of_a_softmax_is_exact(variance: float) -> None:
    scores = math.sqrt(variance) * torch.randn(20000, 12, generator=torch.manual_seed(1), dtype=torch.double)
    share, passed = participation(variance, np.array([1.0, 3.0, 12.0]))
    gradient = torch.randn(20000, 12, generator=torch.manual_seed(2), dtype=torch.double)
    for place, n in enumerate((1, 3, 12)):
        weights = torch.softmax(scores[:, :n], -1)
        at_scores = weights * (gradient[:, :n] - (weights * gradient[:, :n]).sum(-1, keepdim=True))
        assert share[place] == pytest.approx(float(weights.square().sum(-1).mean()), rel=0.02)
        assert passed[place] == pytest.approx(float(at_scores.square().sum(-1).mean()), rel=0.05, abs=1e-9)


def test_rows_of_a_causal_softmax_weigh_values_as_drawn_ones_do() -> None:
    rng = torch.manual_seed(0)
    tokens, deviation = 6, 0.7
    mask = torch.ones(tokens, tokens).tril()
    shares = participation(deviation**2, np.arange(1.0, tokens + 1))[0]
    mix = torch.randn(tokens, tokens, generator=rng, dtype=torch.double)
    kernel = (mix @ mix.T).numpy()
    scores = deviation * torch.randn(40000, tokens, tokens, generator=rng, dtype=torch.double)
    weights = torch.softmax(scores.masked_fill(mask == 0, -math.inf), -1)
    rows, at = Rows(mask.numpy(), shares), torch.tensor(kernel)
    forward = (weights @ at @ weights.transpose(1, 2)).mean(0).numpy()
    np.testing.assert_allclose(rows.forward(kernel, 1.0), forward, atol=0.05 * forward.max())
    back = (weights.transpose(1, 2) @ at @ weights).mean(0).numpy()
    np.testing.assert_allclose(rows.backward(kernel, 1.0), back, atol=0.05 * back.max())


def drawn(model: nn.Module, std: float) -> nn.Module:
    """Weights with exactly this standard deviation and mean 0."""
    for weight in (p for p in model.parameters() if p.dim() == 2):
        values = torch.randn(weight.shape)
        weight.data = std * (values - values.mean()) / values.std(correction=0)
    return model


class Residual(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(x))


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_moments_of_the_theory_have_their_closed_forms(alpha: float) -> None:
    plain, residual = (theory.moments(is_residual, alpha, 6, q0=1.0) for is_residual in (False, True))
    for (q, _), (after, mean) in pairwise(plain):
        assert (after, mean) == pytest.approx((alpha**2 * q, alpha * math.sqrt(q / math.pi)), rel=1e-10)
    for (q, m), (after, mean) in pairwise(residual):
        b = alpha * math.sqrt(q / math.pi)
        assert (after, mean) == pytest.approx(((1 + alpha**2) * q + 2 * m * b, m + b), rel=1e-10)
    linear = theory.moments(True, alpha, 6, q0=1.0, linear_output=True)
    (q, m), end = residual[-2], linear[-1]
    assert end == pytest.approx((q + 2 * alpha**2 * q, m), rel=1e-10)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("residual", [False, True])
def test_the_lines_of_the_residual_study_are_special_cases(residual: bool, alpha: float) -> None:
    d, depth = 64, 6
    block = Residual if residual else lambda d: nn.Sequential(nn.Linear(d, d, bias=False), nn.ReLU())
    model = drawn(nn.Sequential(*[block(d) for _ in range(depth)]), alpha * math.sqrt(2 / d))
    found = predict(model, (16, d), remedy=False)
    squares = theory.second_moments(residual, alpha, depth, q0=1.0)
    for place, square in enumerate(squares[1:]):
        assert mean_square(found[str(place)].signal) == pytest.approx(square, rel=1e-6)
    gradients = [mean_square(found[str(place)].gradient) for place in range(depth)]
    factor = theory.independent_factor(residual, alpha)
    for earlier, later in pairwise(gradients):
        assert earlier / later == pytest.approx(factor**2, rel=1e-6)


def mean_square(level: Level | None) -> float:
    """The mean square over draws behind a level: the mean of the RMS is lower, by a part that the band tells."""
    assert level is not None
    variance = (math.log(level.high / level.low) / 1.645) ** 2
    return level.expected**2 * math.exp(variance / 4)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    for module in model.modules():
        known = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if known is not None:
            known()
    return model


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.GELU()),
        *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 9, 16)),
    )


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.tokens = nn.LayerNorm(64), nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(value * (gate * torch.sigmoid(gate)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input, self.hidden = nn.Linear(16, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.input(x[:, 0]))
        for step in range(1, x.shape[1]):
            h = torch.tanh(self.input(x[:, step]) + self.hidden(h))
        return h


class Causal(nn.Module):
    """Causal attention with a class token in front, a norm written by hand, and a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.qkv, self.out = (
            nn.Parameter(0.1 * torch.randn(1, 1, 64)),
            nn.Linear(64, 192),
            nn.Linear(64, 64),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) if x.shape[1] % 2 else x
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        q, k, v = self.qkv(h).chunk(3, -1)
        return x + 3 * self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def padded() -> nn.Module:
    """Batch statistics of small padded maps, where taps at edges matter."""
    parts = [(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*(layer for part in parts for layer in part), nn.AdaptiveAvgPool2d(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "causal": (lambda: nn.Sequential(Causal(), Causal(), Causal()), (8, 23, 64)),
    "padded": (padded, (32, 32, 6, 6)),
    "encoder": (encoder, (8, 24, 64)),
    "convolutional": (convolutional, (32, 3, 16, 16)),
    "mixer": (lambda: nn.Sequential(Mixer(), Mixer()), (8, 24, 64)),
    "gated": (lambda: nn.Sequential(Gated(), Gated()), (8, 24, 64)),
    "recurrent": (Recurrent, (32, 5, 16)),
}


def root_mean_square(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def _first_output(seen: dict[str, Tensor], name: str) -> Callable[[nn.Module, object, object], None]:
    def hook(module: nn.Module, args: object, out: object) -> None:
        if isinstance(out, Tensor):
            seen.setdefault(name, out)

    return hook


def measured(make: Callable[[], nn.Module], shape: tuple[int, ...], inits: int = 10) -> dict[str, tuple[float, float]]:
    """Mean RMS of output and gradient by module; the gradient at the output is standard normal."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for seed in range(inits):
        torch.manual_seed(seed)
        model, seen = make(), {}
        for name, module in model.named_modules():
            module.register_forward_hook(_first_output(seen, name or "(model)"))
        out = model(torch.randn(shape))
        for tensor in seen.values():
            tensor.retain_grad()
        out.backward(torch.randn_like(out))
        for name, tensor in seen.items():
            sums.setdefault(name, []).append((root_mean_square(tensor.detach()), root_mean_square(tensor.grad)))
    return {name: (np.mean([a for a, _ in known]), np.mean([b for _, b in known])) for name, known in sums.items()}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_predicted_within_a_few_per_cent(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(99)
    found = predict(make(), shape, remedy=False)
    assert not found.undefined
    forward, backward = [], []
    for module, (signal, gradient) in measured(make, shape).items():
        level = found[module]
        assert level.signal is not None
        forward.append(abs(level.signal.expected / signal - 1))
        if level.gradient is not None:
            backward.append(abs(level.gradient.expected / gradient - 1))
    assert np.median(forward) < 0.03  # ten draws
    assert max(forward) < 0.1
    assert np.median(backward) < 0.05
    assert max(backward) < 0.15
    assert len(backward) > len(forward) / 2


def test_a_single_draw_lies_in_the_band_nine_times_in_ten() -> None:
    def make() -> nn.Module:
        return nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(96, 96), nn.ReLU())])

    found = predict(make(), (64, 96), remedy=False)
    inside = []
    for seed in range(30):
        torch.manual_seed(seed)
        x, model = torch.randn(64, 96), make()
        for place, layer in enumerate(model):
            x = layer(x)
            level = found[str(place)].signal
            assert level is not None
            inside.append(level.low <= float(x.detach().square().mean().sqrt()) <= level.high)
    assert 0.75 < np.mean(inside) <= 1


class Sliced(nn.Module):
    """One step out of four, and attention that averages 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.attend = nn.Linear(32, 64), nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attend(x, x, x, need_weights=False)[0]
        return self.step(h[:, 0, :32])


@pytest.mark.parametrize(("name", "direction"), [("step", "signal"), ("attend", "signal"), ("attend", "gradient")])
def test_the_band_of_a_slice_and_of_attention_is_as_wide_as_draws_differ(name: str, direction: str) -> None:
    level = getattr(predict(Sliced(), (4, 16, 64), remedy=False)[name], direction)
    logs = []
    for seed in range(60):
        torch.manual_seed(seed)
        seen: dict[str, Tensor] = {}
        model = Sliced()
        for part in ("step", "attend"):
            getattr(model, part).register_forward_hook(
                lambda m, a, o, part=part, seen=seen: seen.update({part: o[0] if isinstance(o, tuple) else o})
            )
        out = model(torch.randn(4, 16, 64))
        of = seen[name]
        known = of if direction == "signal" else torch.autograd.grad(out, of, torch.randn_like(out))[0]
        logs.append(math.log(float(known.detach().square().mean().sqrt())))
    assert math.log(level.high / level.low) / 2 / 1.645 == pytest.approx(np.std(logs), rel=0.3)


def test_a_norm_of_tokens_of_zeros_leaves_the_gradient_undefined_and_says_why() -> None:
    class WithClass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.norm = nn.Parameter(torch.zeros(1, 1, 32)), nn.LayerNorm(32)
            self.embed, self.head = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
            return self.head(self.norm(h))

    found = predict(WithClass(), (4, 7, 32), remedy=False)
    norm = found["norm"].signal
    assert norm is not None
    assert norm.expected == pytest.approx(math.sqrt(7 / 8), rel=0.01)
    assert found["embed"].gradient is None
    assert "zeros" in "\n".join(found.words())


def test_scores_of_tokens_with_waves_added_have_no_gradient_and_random_positions_do() -> None:
    place, rate = torch.arange(16.0)[:, None], 0.01 ** (torch.arange(32.0) / 32)
    waves = torch.cat([torch.sin(place * rate), torch.cos(place * rate)], 1)

    class Positions(nn.Module):
        def __init__(self, positions: Tensor) -> None:
            super().__init__()
            self.register_buffer("positions", positions)
            self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = x + self.positions
            return functional.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h))

    known = [predict(Positions(one), (4, 16, 64), remedy=False) for one in (waves, torch.randn(16, 64))]
    assert known[0]["query"].gradient is None
    assert "waves" in "\n".join(known[0].words())
    assert known[1]["query"].gradient is not None


def deep(width: int = 48) -> nn.Module:
    return nn.Sequential(*[layer for _ in range(20) for layer in (nn.Linear(width, width), nn.ReLU())])


def test_the_remedy_keeps_signal_and_gradient_of_the_real_network() -> None:
    torch.manual_seed(0)
    model = deep(128)
    found = predict(model, (32, 128))
    assert found.leaves("gradient") is not None
    assert found.remedy is not None
    assert found.remedy.factor == pytest.approx(math.sqrt(6), rel=0.05)  # from 1/√(3 fan) to √(2/fan)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= found.remedy.factor if name in found.remedy.parameters else 0
    x = torch.randn(32, 128, requires_grad=True)
    out = model(x)
    out.backward(torch.randn_like(out))
    assert x.grad is not None
    assert 0.1 < float(out.detach().square().mean().sqrt()) < 3
    assert 0.1 < float(x.grad.square().mean().sqrt()) < 3
    assert "Remedy" in str(found)


def test_predicting_changes_neither_the_model_nor_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    predict(model, (16, 8))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not any(module._forward_hooks for module in model.modules())


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x).values


def test_an_operation_without_moments_is_undefined_from_there_on_and_named() -> None:
    found = predict(nn.Sequential(nn.Linear(8, 8), Sorted(), nn.Linear(8, 4)), (16, 8))
    assert found["0"].signal is not None
    assert found["0"].gradient is None
    assert list(found.undefined) == ["1", "2", "(model)"]
    assert "sort" in found.undefined["2"]
    assert "sort" in str(found)


class Gate(nn.Module):
    """g ∘ a + (1 − g) ∘ x, where a and x have a mean: their products with one gradient are dependent."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(96, 96), nn.Linear(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.inner(x)) + (1 - gate) * torch.relu(x)


class Joined(nn.Module):
    """BatchNorm of a concatenation whose parts differ in size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(torch.cat([3 * x, self.first(x)], 1))))


class Standardised(nn.Conv2d):
    """A convolution whose weight has mean 0 in every row, as in networks without norms."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(torch.relu(x), weight, padding=1)


class Dilated(nn.Module):
    """A causal convolution: zeros are put before its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(32, 32, 2, dilation=8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (8, 0)))


PARTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "gate": (lambda: nn.Sequential(Gate(), Gate()), (64, 96), "1.gate"),
    "joined": (lambda: Joined(), (16, 8, 12, 12), "first"),
    "standardised": (lambda: nn.Sequential(Standardised(32, 32, 3), Standardised(32, 32, 3)), (8, 32, 12, 12), "1"),
    "dilated": (lambda: nn.Sequential(Dilated(), Dilated()), (16, 32, 20), "1.conv"),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(32, 24, 4, 2, 1), nn.PReLU()), (8, 32, 6, 6), "0"),
}


class Positive(nn.Module):
    """ReLU of a sum of outputs of ReLU, which is the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(96, 96), nn.Linear(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(torch.relu(self.first(x)) + torch.relu(self.second(x)))


class LongSkip(nn.Module):
    """The first tensor is added once more to a stream that holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(96, 96), nn.Linear(96, 96)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return (h + torch.relu(self.inner(h))) + h


PARTS |= {
    "long skip": (LongSkip, (64, 96), "first"),
    "padded means": (lambda: nn.Sequential(nn.Conv2d(8, 32, 1), nn.AvgPool2d(3, 1, 1)), (8, 8, 6, 6), "1"),
    "uneven means": (lambda: nn.Sequential(nn.Conv2d(8, 32, 1), nn.AdaptiveAvgPool2d(4)), (8, 8, 6, 6), "1"),
    "largest of all": (
        lambda: nn.Sequential(nn.Conv1d(32, 64, 1), nn.MaxPool1d(24), nn.Flatten(), nn.Linear(64, 32)),
        (16, 32, 24),
        "0",
    ),
    "positive": (lambda: nn.Sequential(Positive(), nn.Linear(96, 96)), (64, 96), "0.second"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_were_found_wrong_on_held_out_networks_are_right(name: str) -> None:
    make, shape, module = PARTS[name]
    found, (signal, gradient) = predict(make(), shape, remedy=False)[module], measured(make, shape, 12)[module]
    assert found.signal is not None
    assert found.gradient is not None
    assert found.signal.expected == pytest.approx(signal, rel=0.06)
    assert found.gradient.expected == pytest.approx(gradient, rel=0.06)


def test_a_gate_with_the_biases_of_its_state_has_no_gradient_and_the_reason_is_told() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 64)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[0], 32)
            for step in range(x.shape[1]):
                gate, value = self.inner(x[:, step]).chunk(2, -1)
                h = torch.sigmoid(gate) * h + torch.tanh(value) * torch.sigmoid(gate)
            return h

    found = predict(Cell(), (8, 6, 16), remedy=False)
    assert found["inner"].gradient is None
    assert any("same biases" in note for note in found.notes)


def test_a_graph_is_undefined_and_a_rotation_is_not() -> None:
    class Fixed(nn.Module):
        def __init__(self, matrix: Tensor) -> None:
            super().__init__()
            self.register_buffer("matrix", matrix)

        def forward(self, x: Tensor) -> Tensor:
            return self.matrix @ x

    rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.manual_seed(0)))[0]
    found = predict(nn.Sequential(nn.Linear(8, 8), Fixed(rotation)), (4, 12, 8))
    assert found["1"].signal is not None
    assert found["0"].signal is not None
    assert found["1"].signal.expected == pytest.approx(found["0"].signal.expected, rel=0.05)
    graph = torch.eye(12)
    graph[0] = 1
    assert "fixed matrix" in predict(nn.Sequential(nn.Linear(8, 8), Fixed(graph)), (4, 12, 8)).undefined["1"]


def test_code_that_needs_values_is_refused_in_one_line() -> None:
    class Needs(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise TypeError("needs values")

    with pytest.raises(SondeError, match="does not run without values"):
        predict(Needs(), (4, 4))


def test_a_registered_operation_is_predicted() -> None:
    register(Sorted, lambda module, x: x * 2)
    try:
        found = predict(nn.Sequential(nn.LayerNorm(8), Sorted()), (16, 8))
    finally:
        del CUSTOM[Sorted]
    assert found["1"].signal is not None
    assert found["1"].signal.expected == pytest.approx(2, rel=1e-3)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_a_model_that_branches_on_values_is_refused_with_a_reason() -> None:
    with pytest.raises(SondeError, match="values of its input"):
        predict(Branching(), (4, 4))
    with pytest.raises(SondeError, match="Module"):
        predict(lambda x: x, (4, 4))  # type: ignore[arg-type]


def test_copied_layers_of_an_encoder_are_noted() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = predict(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), (2, 4, 16))
    assert any("copies" in note for note in found.notes)


def test_token_ids_and_causal_attention() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.q, self.out = nn.Embedding(50, 32), nn.Linear(32, 96), nn.Linear(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            q, k, v = self.q(self.embedding(ids)).chunk(3, -1)
            return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    model, ids = Model(), torch.randint(50, (4, 12))
    found = predict(model, ids)
    assert found["embedding"].signal is not None
    assert found["embedding"].signal.expected == pytest.approx(1, rel=0.05)  # of the distribution, not of the draw
    assert not found.notes
    assert any("shorter" in note for note in predict(model, torch.randint(50, (1, MOST + 1))).notes)


def test_the_figure_draws_every_leaf() -> None:
    found: Prediction = predict(deep(), (16, 48))
    figure = found.figure()
    assert [len(ax.lines[0].get_xdata()) for ax in figure.axes] == [40, 40, 40]
    assert "<table" in found._repr_html_()
    assert found.table.height == 41


def test_the_command_predicts_and_states_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(*[part for _ in range(20) for part in (nn.Linear(32, 32), nn.Tanh())])\n"
    )
    run = CliRunner().invoke(app, ["predict", f"{file}:make", "--shape", "8,32", "--json"])
    assert run.exit_code == 0, run.output
    known = json.loads(run.stdout)
    assert known["remedy"] is None  # tanh shrinks signals, so that none suffices
    assert known["best_scale"]["factor"] > 1
    assert known["best_scale"]["worst"] > 2
    for words, message in (([], "--shape"), (["--shape", "8,a"], "whole numbers")):
        with pytest.raises(SondeError, match=message):
            CliRunner().invoke(app, ["predict", f"{file}:make", *words], catch_exceptions=False, standalone_mode=False)
    assert sonde.predict is predict


def test_the_page_shows_the_stored_scores() -> None:
    root = Path(__file__).parents[2]
    scores = json.loads((root / "benchmarks" / "predict.json").read_text())
    page = (root / "docs" / "predict.md").read_text()
    for name, score in scores.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        for key in ("forward", "forward_worst", "backward", "backward_worst"):
            assert ("undefined" if score[key] is None else f"{100 * score[key]:.1f} %") in line
    assert len(scores) >= 15


def test_the_page_quotes_what_its_program_is_told(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "predict.md").read_text()
    program, quoted = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "text"))
    made: dict[str, Callable[[], nn.Module]] = {}
    exec(program, made)
    torch.manual_seed(0)
    assert predict(made["make"](), (32, 64)).words() == quoted.strip().splitlines()


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(64, 8), (4, 99)),
        (nn.LayerNorm(64), (4, 99)),
        (nn.Conv2d(3, 8, 3), (4, 5, 8, 8)),
        (nn.BatchNorm1d(64), (4, 99)),
        (Residual(64), (4, 99)),
    ],
)
def test_a_batch_that_does_not_fit_the_model_is_refused(model: nn.Module, shape: tuple[int, ...]) -> None:
    with pytest.raises(SondeError):
        predict(model, shape)
