"""Metrics of language-model training against naive code in float64: heads, outliers, routers, Adam, curvature."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.core.errors import SondeError


class Routed(nn.Module):
    """Attention of three heads and a mixture of four experts, two for each token; keeps what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.router = nn.Linear(12, 36), nn.Linear(12, 12), nn.Linear(12, 4)
        self.experts = nn.ModuleList(nn.Linear(12, 12) for _ in range(4))
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, 3, 4).permute(2, 0, 3, 1, 4)
        h = self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        probabilities = self.router(h).softmax(-1)
        weights, chosen = probabilities.topk(2, -1)
        gates = torch.zeros_like(probabilities).scatter(-1, chosen, weights)
        self.kept = {"q": q, "k": k, "probabilities": probabilities, "chosen": chosen, "h": h}
        return h + sum(gates[..., place, None] * expert(h) for place, expert in enumerate(self.experts))


@pytest.fixture(scope="module")
def run() -> Any:
    """Rows of one step, the model as it was in it, and how far its parameters moved."""
    torch.manual_seed(0)
    model = Routed().double()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    watch = sonde.watch(model, optimiser, runs=None)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        model.out.bias[0] = 300.0  # an outlier feature
    before["out.bias"] = model.out.bias.detach().clone()
    model(torch.randn(6, 5, 12).double()).square().mean().backward()
    optimiser.step()
    kept = {name: value.detach() for name, value in model.kept.items()}
    moved = {name: (p.detach() - before[name]).numpy() for name, p in model.named_parameters()}
    rows = {(m, metric): v for m, metric, v in watch.rows.select("module", "metric", "value").iter_rows()}
    watch.close()
    return rows, kept, moved, model, optimiser


def test_entropy_and_largest_logit_of_each_head(run: Any) -> None:
    rows, kept, *_ = run
    q, k = kept["q"].numpy(), kept["k"].numpy()
    for head in range(3):
        entropies, logits = [], []
        for sample in range(6):
            for query in range(5):
                row = [float(q[sample, head, query] @ k[sample, head, key]) / 2 for key in range(query + 1)]
                weights = np.exp(np.array(row) - max(row))
                weights /= weights.sum()
                entropies.append(-float((weights * np.log(weights)).sum()))
                logits += row
        assert rows["(model)", f"attention_entropy[{head}]"] == pytest.approx(np.mean(entropies), rel=1e-6)
        assert rows["(model)", f"attention_max_logit[{head}]"] == pytest.approx(max(logits), rel=1e-6)


def test_massive_share_and_kurtosis(run: Any) -> None:
    rows, kept, *_ = run
    h = kept["h"].numpy().flatten()
    share = float(np.mean(np.abs(h) > 100 * np.median(np.abs(h))))
    assert share > 0.05
    assert rows["out", "massive_share"] == pytest.approx(share, rel=1e-6)
    kurtosis = np.mean((h - h.mean()) ** 4) / np.var(h) ** 2
    assert rows["out", "out_kurtosis"] == pytest.approx(kurtosis, rel=1e-6)


def test_load_and_entropy_of_a_router(run: Any) -> None:
    rows, kept, *_ = run
    counts = [0] * 4
    for expert in kept["chosen"].flatten().tolist():
        counts[expert] += 1
    for expert, count in enumerate(counts):
        assert rows["router", f"router_load[{expert}]"] == pytest.approx(count / (sum(counts) / 4), rel=1e-6)
    each = [-sum(p * math.log(p) for p in token) for token in kept["probabilities"].flatten(0, 1).tolist()]
    assert rows["router", "router_entropy"] == pytest.approx(np.mean(each), rel=1e-6)


class Limited(nn.Module):
    """A router in float64 whose experts take a few choices each, and gates before or after these are dropped."""

    def __init__(self, *, divides: bool, deep: bool) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.mixture = nn.ModuleDict({"router": nn.Linear(6, 3), "expert": nn.Linear(6, 6)})
        self.divides, self.deep, self.kept = divides, deep, torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        weights, chosen = self.mixture["router"](h).softmax(-1).topk(2, -1)
        if self.divides:
            weights = weights / weights.sum(-1, keepdim=True)
        turn = functional.one_hot(chosen.flatten(), 3).cumsum(0).gather(1, chosen.flatten()[:, None])
        self.kept = (turn <= 9).view(chosen.shape)
        mixed = (weights * self.kept).sum(-1, keepdim=True) * self.mixture["expert"](h)
        return h + mixed if self.deep else mixed


@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("deep", [False, True])
def test_dropped_share_counts_choices_beyond_the_capacity_and_not_tokens_that_the_loss_ignores(
    divides: bool, deep: bool
) -> None:
    torch.manual_seed(0)
    model = Limited(divides=divides, deep=deep).double()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    watch = sonde.watch(model, optimiser, runs=None)
    out = model(torch.randn(4, 5, 6).double())
    ignored = torch.zeros(4, 5, dtype=torch.bool)
    ignored[1, 3:] = ignored[3, 2:] = True  # padding
    (out[~ignored] - 1).square().mean().backward()
    optimiser.step()
    kept = model.kept[~ignored]
    assert 0 < kept.double().mean() < 1
    row = watch.rows.filter(metric="dropped_share").row(0, named=True)
    watch.close()
    assert (row["module"], row["samples"]) == ("mixture.router", kept.numel())
    assert row["value"] == pytest.approx(1 - float(kept.double().mean()), rel=1e-12)


def test_without_a_capacity_nothing_is_dropped(run: Any) -> None:
    assert run[0]["router", "dropped_share"] == 0.0


def test_size_of_a_step_and_moments_of_adam(run: Any) -> None:
    rows, _, moved, model, optimiser = run
    for name, parameter in model.named_parameters():
        assert rows[name, "update_rms"] == pytest.approx(float(np.sqrt(np.mean(moved[name] ** 2))), rel=1e-6)
        state = optimiser.state[parameter]
        m, v = state["exp_avg"].numpy().flatten(), state["exp_avg_sq"].numpy().flatten()
        ratios = np.abs(m[v > 0]) / np.sqrt(v[v > 0])
        if ratios.size:
            assert rows[name, "adam_ratio"] == pytest.approx(float(np.median(ratios)), rel=1e-6)
        else:
            assert (name, "adam_ratio") not in rows


def quadratic(samples: int, *, noise: float) -> tuple[nn.Linear, Tensor, Tensor]:
    """Loss ½‖w − z‖² with z ~ N(0, noise²) around 0: G = w, tr Σ = d·noise²."""
    torch.manual_seed(1)
    model = nn.Linear(20, 1, bias=False)
    return model, noise * torch.randn(samples, 20), torch.zeros(samples)


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_noise_scale_of_quadratics_with_known_noise(noise: float) -> None:
    model, z, y = quadratic(8192, noise=noise)

    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(model.weight.detach().flatten())

        def forward(self, z: Tensor) -> Tensor:
            return (self.w - z).square().sum(-1) / 2

    known = Weights()
    watch = sonde.watch(known, loss=lambda out, y: out.mean(), runs=None)
    found = watch.measure((z, y))
    truth = 20 * noise**2 / float(known.w.detach().square().sum())
    assert found["noise_scale"] == pytest.approx(truth, rel=0.1)
    assert found["sharpness"] == pytest.approx(1.0, rel=1e-6)
    row = watch.rows.filter(metric="noise_scale").row(0, named=True)
    assert (row["value"], row["samples"]) == (found["noise_scale"], 8192)
    watch.close()


def test_sharpness_is_the_largest_eigenvalue_of_the_hessian() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    x, y = torch.randn(40, 4), torch.randn(40, 2)
    watch = sonde.watch(model, loss=nn.MSELoss(), runs=None)
    before = [p.detach().clone() for p in model.parameters()]
    found = watch.measure((x, y))["sharpness"]
    watch.close()
    assert all(p.grad is None and torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert found == pytest.approx(float(torch.linalg.eigvalsh(hessian_of(model, x, y))[-1]), rel=1e-5)


def hessian_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The Hessian of the mean squared error in float64, by its definition."""
    named = {name: p.detach().double() for name, p in model.named_parameters()}
    shapes = {name: p.shape for name, p in named.items()}

    def of_vector(flat: Tensor) -> Tensor:
        parts = flat.split([s.numel() for s in shapes.values()])
        given = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return functional.mse_loss(torch.func.functional_call(model, given, x.double()), y.double())

    found: Any = torch.autograd.functional.hessian(of_vector, torch.cat([p.flatten() for p in named.values()]))
    return torch.as_tensor(found)


def trained_by(make: Any) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    x, y = torch.randn(40, 4), torch.randn(40, 2)
    optimiser = make(model)
    for _ in range(5):
        optimiser.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return model, optimiser, x, y


@pytest.mark.parametrize("amsgrad", [False, True])
def test_preconditioned_sharpness_is_that_of_the_hessian_divided_by_adams_own_root(amsgrad: bool) -> None:
    def some(model: Any) -> torch.optim.Optimizer:  # the first bias is in no optimiser
        held = [p for name, p in model.named_parameters() if name != "0.bias"]
        return torch.optim.Adam(held, 0.1, betas=(0.8, 0.95), eps=1e-4, amsgrad=amsgrad)

    model, optimiser, x, y = trained_by(some)
    watch = sonde.watch(model, optimiser, loss=nn.MSELoss(), runs=None)
    found = watch.measure((x, y))["preconditioned_sharpness"]
    watch.close()
    inverse = []
    for name, parameter in model.named_parameters():
        state = optimiser.state.get(parameter)
        if name == "0.bias" or state is None:
            inverse += [0.0] * parameter.numel()
            continue
        v = state["max_exp_avg_sq" if amsgrad else "exp_avg_sq"].double().flatten().tolist()
        inverse += [1 / ((1 - 0.8**5) * (math.sqrt(one / (1 - 0.95**5)) + 1e-4)) for one in v]
    root = torch.tensor(inverse, dtype=torch.float64).sqrt()
    truth = torch.linalg.eigvalsh(root[:, None] * hessian_of(model, x, y) * root)[-1]
    assert found == pytest.approx(float(truth), rel=1e-5)


def test_without_adam_there_is_no_preconditioned_sharpness() -> None:
    model, optimiser, x, y = trained_by(lambda model: torch.optim.SGD(model.parameters(), 0.1))
    watch = sonde.watch(model, optimiser, loss=nn.MSELoss(), runs=None)
    assert set(watch.measure((x, y))) == {"noise_scale", "sharpness"}
    watch.close()


def test_a_closed_watch_measures_nothing() -> None:
    watch = sonde.watch(nn.Linear(2, 1), loss=nn.MSELoss(), runs=None)
    watch.close()
    with pytest.raises(SondeError, match="closed"):
        watch.measure((torch.zeros(4, 2), torch.zeros(4, 1)))
