"""Numbers in the sentences of tutorials and concepts are those of the theory and of stored runs."""

import math
from pathlib import Path

import polars as pl
import pytest
import torch

from sonde.analysis import theory
from sonde.store.load import load
from sonde.studies import STUDIES

DOCS = Path(__file__).parents[2] / "docs"
DEPTH = (DOCS / "tutorials" / "depth.md").read_text("utf-8")
GROWTH = (DOCS / "concepts" / "growth.md").read_text("utf-8")
ALPHA = 20**-0.5


def said(page: str, *words: str) -> None:
    for one in words:
        assert one in page, one


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, object], pl.DataFrame]:
    """Of the runs that the tutorial trains, by network and scale: 20 layers that end in a ReLU, seed 42."""
    stored = load(DOCS / "findings" / "runs", metrics=["hidden_norm", "preact_grad_norm", "train_loss"])
    configs = [config for config in STUDIES["residual"].configs("quick", (42,)) if config.model.L == 20]  # type: ignore[attr-defined]
    chosen = [config for config in configs if getattr(config.model, "output", None) in (None, "relu")]
    names = {id: name for name, kind in (("plain", "PlainMLP"), ("residual", "ResMLP")) for id in [kind]}
    return {
        (names[type(config.model).__name__], config.model.weight_scale): stored.rows.filter(run=config.id)  # type: ignore[attr-defined]
        for config in chosen
    }


def ratio(rows: pl.DataFrame, metric: str, epoch: int, first: int) -> float:
    """Of layer 20 to a lower one, or of a lower one to layer 20: as the signal, or the gradient, travels."""
    at = dict(rows.filter(metric=metric, epoch=epoch).select("layer", "value").iter_rows())
    return at[20] / at[first] if metric == "hidden_norm" else at[first] / at[20]


def test_the_tutorial_on_depth_says_what_twenty_layers_do(rows: dict[tuple[str, object], pl.DataFrame]) -> None:
    said(DEPTH, f"1/√20 ≈ {ALPHA:.4f}", f"0.2236²⁰ = {ALPHA**20:.1e}", f"0.2236¹⁹ = {ALPHA**19:.1e}")
    plain, residual = rows["plain", "1/sqrt(L)"], rows["residual", "1/sqrt(L)"]
    last = int(plain["epoch"].max())  # type: ignore[arg-type]
    up, before = ratio(plain, "hidden_norm", 0, 0), ratio(plain, "preact_grad_norm", 0, 1)
    after = ratio(plain, "preact_grad_norm", last, 1)
    said(
        DEPTH,
        f"‖h_20‖ is {up:.1e} of ‖h_0‖",
        f"Measured before training: {before:.1e}",
        f"afterwards it is {after:.1e}",
    )
    back, forth = (
        ratio(residual, "preact_grad_norm", 0, 1) ** (1 / 19),
        ratio(residual, "hidden_norm", 0, 0) ** (1 / 20),
    )
    expected = theory.backward_norms(True, ALPHA, 20)
    predicted = (expected[0] / expected[-1]) ** (1 / 19)
    said(DEPTH, f"{back:.2f} per layer before training (theory: {predicted:.2f})", f"{forth:.2f} on the way up")


def test_the_tutorial_on_depth_says_how_far_the_exploding_network_came(
    rows: dict[tuple[str, object], pl.DataFrame],
) -> None:
    losses = rows["residual", 1.0].filter(pl.col("metric") == "train_loss", pl.col("defined")).sort("step")["value"]
    assert losses[-1] / theory.INPUT_SECOND_MOMENT > 1e4
    assert "more than ten thousand times as large" in DEPTH
    assert theory.lowest_loss("plain_mlp", "identity") == pytest.approx(1 / 6)
    assert theory.lowest_loss("plain_mlp", "identity") == pytest.approx(theory.INPUT_SECOND_MOMENT / 2)


def test_the_page_on_growth_has_the_numbers_of_the_theory() -> None:
    q = theory.second_moments(True, 1.0, 20)
    assert math.log10(q[-1] / q[0]) == pytest.approx(9, abs=0.1)
    said(GROWTH, "$2^{20} \\approx 10^6$", "q grows by about $10^9$")
    scaled = theory.second_moments(True, ALPHA, 20)
    growth = scaled[-1] / scaled[0]
    said(GROWTH, f"q grows by {growth:.0f} in all", f"the length of h by {math.sqrt(growth):.0f}")
    back = theory.backward_norms(True, ALPHA, 20)
    independent = theory.independent_factor(True, ALPHA)
    said(
        GROWTH,
        f"it gives {(back[0] / back[-1]) ** (1 / 19):.2f} a layer",
        f"\\sqrt{{1+\\alpha^2}} = {independent:.2f}$",
    )
    assert f"{ALPHA**20:.20f}".startswith("0.0000000000000")
    assert pytest.approx(20.0**-10) == ALPHA**20
    said(GROWTH, "$20^{-10}$, a number with thirteen zeros after the point")


def test_the_page_on_growth_says_how_much_more_an_independent_gradient_gets_in_narrow_networks() -> None:
    """E‖g_0‖² relative to (1 + α²)^L E‖g_L‖², α = 1, L = 20, by drawing networks."""
    said(GROWTH, "is about 60 times as large at d = 64, and 9 times at d = 512")
    rng = torch.Generator().manual_seed(0)
    assert excess(64, 200, rng) == pytest.approx(60, rel=0.15)
    assert excess(512, 16, rng) == pytest.approx(9, rel=0.25)


def excess(d: int, networks: int, rng: torch.Generator, depth: int = 20) -> float:
    found = []
    for _ in range(networks):
        h = 2 * torch.rand(32, d, generator=rng) - 1
        weights, on = [], []
        for _ in range(depth):
            weights.append(torch.randn(d, d, generator=rng) * (2 / d) ** 0.5)
            z = h @ weights[-1].T
            on.append(z > 0)
            h = h + z.relu()
        g = torch.randn(32, d, generator=rng)
        start = g.square().sum()
        for w, mask in zip(reversed(weights), reversed(on), strict=True):
            g = g + (g * mask) @ w
        found.append((g.square().sum() / start).item() / 2**depth)
    return sum(found) / len(found)
