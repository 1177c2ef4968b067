"""What the figures draw is what the rows hold: read off the artists, not the pixels."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from evidence import (
    NETWORK_LABELS,
    RESIDUAL,
    residual_evidence,
    rules_evidence,
    undefined_where,
    values,
    with_rows,
    with_runs,
)
from sonde.core.errors import SondeError
from sonde.metrics import SHARE, TRAINED
from sonde.models import MODELS
from sonde.rules import RULES
from sonde.show.figures import FIGURES, Evidence, NoData
from sonde.show.figures.groups import PAIR_MODELS, cohort_of
from sonde.show.figures.marks import draw_bars
from sonde.show.figures.series import over, point, series_of
from sonde.show.figures.style import COLOR, LINE, MARKER, RULE_ORDER, SEED_LINE

PROFILES = {
    "gradient_magnitude": "preact_grad_norm",
    "activation_mean": "activation_mean",
    "activation_std": "activation_std",
}
LAYER = pl.col("layer")


def drawn(name: str, evidence: Evidence, variant: str | None = None) -> tuple[Figure, str]:
    return RESIDUAL[name].draw(evidence, variant)


@cache
def default(name: str, seeds: int, healthy: bool = False) -> tuple[Figure, str]:
    """A figure of unchanged evidence, drawn once and only looked at."""
    return drawn(name, residual_evidence(seeds=(42, 43, 44, 45, 46)[:seeds], healthy=healthy))


def words(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")


def title(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


def line(figure: Figure, label: str, panel: int = 0) -> np.ndarray:
    (found,) = [one for one in figure.axes[panel].lines if one.get_label() == label]
    return np.asarray(found.get_ydata(), dtype=float)


@pytest.fixture(scope="module")
def one() -> Evidence:
    return residual_evidence()


@pytest.fixture(scope="module")
def five() -> Evidence:
    return residual_evidence(seeds=(42, 43, 44, 45, 46))


@pytest.fixture(scope="module")
def three() -> Evidence:
    return residual_evidence(seeds=(42, 43, 44))


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_draws_the_rows_of_the_last_epoch(name: str, one: Evidence) -> None:
    figure, _ = drawn(name, one)
    for model, label in (("plain_mlp", "Plain MLP"), ("res_mlp", "ReLU ResMLP")):
        assert line(figure, label).tolist() == values(one.of(variant="scaled"), model, PROFILES[name])


def test_the_loss_curve_draws_every_step(one: Evidence) -> None:
    figure, _ = drawn("training_loss", one)
    assert line(figure, "Plain MLP").tolist() == values(one.of(variant="scaled"), "plain_mlp", "batch_loss")


def test_the_signal_is_dots_at_the_measured_values_for_a_log_axis_has_no_zero(one: Evidence) -> None:
    figure, _ = drawn("signal_flow", one)
    dots = line(figure, "Plain MLP")
    np.testing.assert_allclose(dots, values(one.of(variant="scaled"), "plain_mlp", "activation_std"))
    assert line(figure, "input, 1/√3") == pytest.approx(1 / math.sqrt(3))
    assert not figure.axes[0].patches


@pytest.mark.parametrize(
    ("name", "said", "unsaid"),
    [
        ("signal_flow", "Dot: arithmetic mean", "thin lines"),
        ("training_loss", "thin lines: the seeds", "whisker"),
        ("learning_comparison", "Line: arithmetic mean", "Dot:"),
    ],
)
def test_a_caption_speaks_of_the_marks_its_figure_has(name: str, said: str, unsaid: str) -> None:
    _, caption = drawn(name, residual_evidence(seeds=(1, 2)))
    assert said in caption
    assert unsaid not in caption


def test_gradient_dots_share_a_log_axis_and_name_their_ends(one: Evidence) -> None:
    figure, _ = drawn("gradient_flow", one)
    left, right = figure.axes[:2]
    assert left.get_yscale() == "log"
    assert left.get_ylim() == right.get_ylim()
    measured = values(one.of(variant="scaled"), "res_mlp", "preact_grad_norm")
    assert {text.get_text() for text in right.texts} == {f"{measured[0]:.2g}", f"{measured[-1]:.2g}"}


def test_arrows_are_as_thick_as_the_gradient(one: Evidence) -> None:
    figure, _ = drawn("gradient_highway", one)
    scales = []
    for ax, model in zip(figure.axes, PAIR_MODELS, strict=False):
        measured = np.array(values(one.of(variant="scaled"), model, "preact_grad_norm"))
        thick = {
            int(patch.get_gid().split()[1]): np.ptp(patch.get_xy()[:, 1])
            for patch in ax.patches
            if (patch.get_gid() or "").startswith("arrow")
        }
        layers = sorted(thick)
        widths = np.array([thick[layer] for layer in layers])
        scales += (widths / (measured / measured[-1])[np.array(layers) - 1]).tolist()
    assert len(scales) > 20
    np.testing.assert_allclose(scales, scales[0])  # one scale for both chains


def test_the_cumulative_scale_is_relative_to_the_last_layer(one: Evidence) -> None:
    figure, _ = drawn("chain_rule", one)
    measured = np.array(values(one.of(variant="scaled"), "plain_mlp", "preact_grad_norm"))
    np.testing.assert_allclose(line(figure, "Plain MLP", 1), measured / measured[-1])
    at_init, trained = figure.axes[:2]
    assert at_init.get_title("left").startswith("At initialisation")
    theory = {one.get_gid(): one.get_ydata() for one in at_init.lines if one.get_label() == "theory at init"}
    np.testing.assert_allclose(theory["theory plain_mlp"], (1 / math.sqrt(20)) ** np.arange(20), rtol=1e-9)
    assert "theory at init" not in {one.get_label() for one in trained.lines}
    assert "of the theory" in at_init.get_title("left")


def test_the_theory_is_drawn_beside_the_initialisation_alone_and_the_gap_is_named(one: Evidence) -> None:
    for name in ("signal_flow", "gradient_flow"):
        figure, _ = drawn(name, one)
        for ax in figure.axes[:4]:
            at_init = "at initialisation" in ax.get_title("left")
            assert ("theory at init" in {line.get_label() for line in ax.lines}) == at_init
            assert ("of the theory" in ax.get_title("left").replace("\n", " ")) == at_init


@pytest.mark.parametrize("name", ["training_loss", "signal_flow", "gradient_flow", "chain_rule"])
def test_everything_drawn_has_one_entry_in_a_legend(name: str) -> None:
    figure, _ = drawn(name, residual_evidence(seeds=(1, 2)))
    entries = [text.get_text() for legend in figure.findobj(Legend) for text in legend.get_texts()]
    labels = {str(line.get_label()) for ax in figure.axes for line in ax.lines}
    assert {label for label in labels if not label.startswith("_")} <= set(entries)
    assert ("one seed" in entries) == ("_seed" in labels)
    assert len(set(entries)) == len(entries)


def test_the_final_loss_is_drawn_against_predicting_zero(one: Evidence) -> None:
    figure, _ = drawn("learning_comparison", one)
    zero = figure.axes[1]
    losses = {model: np.array(values(one.of(variant="scaled"), model, "batch_loss")) for model in PAIR_MODELS}
    floors = {"plain_mlp": 1 / 6, "res_mlp": 0.0}
    for model, label in NETWORK_LABELS.items():
        (stem,) = [line for line in zero.lines if line.get_label() == label]
        times = (losses[model][-20:].mean() - floors[model]) / (1 / 3 - floors[model])
        np.testing.assert_allclose(stem.get_xdata(), [1, times])
    assert {"predicting zero", "half of it: learned"} <= {line.get_label() for line in zero.lines}


def test_heat_maps_hold_the_states_under_one_scale(one: Evidence) -> None:
    figure, _ = drawn("one_input", one)
    plain, residual = (image for ax in figure.axes for image in ax.images)
    assert plain.norm is residual.norm
    assert plain.get_array().shape == (32, 21)
    rows = one.of(variant="scaled").rows.filter(epoch=10, metric="state[3]", run="plain_mlp-scaled-42")
    np.testing.assert_allclose(plain.get_array()[3], rows.sort("layer")["value"])
    assert residual.norm.vmax >= np.abs(residual.get_array()).max()
    assert "after 200 steps" in title(figure)


def test_states_of_an_untrained_network_say_so(one: Evidence) -> None:
    start = one.rows.filter((pl.col("epoch") == 0) | ~pl.col("metric").str.starts_with("state"))
    assert "at initialisation" in title(drawn("one_input", with_rows(one, start))[0])


def test_undefined_values_are_gaps_and_are_counted(one: Evidence) -> None:
    broken = undefined_where(one, LAYER.is_in([3, 9]) & pl.col("run").str.starts_with("plain"))
    figure, caption = drawn("gradient_magnitude", broken)
    assert np.flatnonzero(np.isnan(line(figure, "Plain MLP"))).tolist() == [2, 8]
    assert "Plain MLP: 2 of 20 layers undefined" in words(figure)
    assert "2 of 20 layers undefined" in caption
    dots, _ = drawn("signal_flow", broken)
    assert np.isfinite(line(dots, "Plain MLP")).sum() == 20 - 2
    assert len(line(dots, "undefined")) == 2


def test_a_layer_without_rows_is_a_gap_too(one: Evidence) -> None:
    figure, _ = drawn("activation_mean", with_rows(one, one.rows.filter((LAYER != 7) | LAYER.is_null())))
    assert np.flatnonzero(np.isnan(line(figure, "ReLU ResMLP"))).tolist() == [6]


def test_zero_is_not_drawn_on_a_log_axis_and_that_is_said(one: Evidence) -> None:
    zeroed = one.rows.with_columns(
        value=pl.when(LAYER.is_in([1, 2]) & (pl.col("metric") == "preact_grad_norm")).then(0.0).otherwise("value")
    )
    figure, _ = drawn("gradient_magnitude", with_rows(one, zeroed))
    assert np.isnan(line(figure, "Plain MLP")[:2]).all()
    assert "2 of 20 layers are exactly 0 and cannot be shown on a log axis" in words(figure)


@pytest.mark.parametrize("name", ["training_loss", *PROFILES, "chain_rule", "learning_comparison"])
def test_a_band_needs_five_seeds_and_fewer_are_drawn_one_by_one(name: str) -> None:
    for seeds, bands, singly in ((1, 0, 0), (3, 0, 6), (5, 2, 0)):
        ax = default(name, seeds)[0].axes[0]
        assert len(ax.collections) == bands
        assert sum(one.get_label() == SEED_LINE for one in ax.lines) == singly


def test_the_line_of_a_seed_has_its_values(three: Evidence) -> None:
    figure, _ = drawn("activation_std", three)
    rows = three.of(variant="scaled").metric("activation_std").filter(model="res_mlp", epoch=10)
    singly = [one for one in figure.axes[0].lines if one.get_label() == SEED_LINE]
    colour = COLOR["res_mlp"]
    found = [list(one.get_ydata()) for one in singly if to_hex(one.get_color()) == colour.lower()]
    expected = [
        of.sort("layer")["value"].to_list() for _, of in rows.sort("seed").group_by("seed", maintain_order=True)
    ]
    assert found == expected


def test_a_band_ends_where_values_cannot_lie() -> None:
    rows = pl.DataFrame(
        {
            "metric": "credit_cosine",
            "rule": "dfa",
            "seed": range(6),
            "layer": 1,
            "value": [1.0, 1.0, 1.0, 1.0, 1.0, 0.4],
            "defined": True,
        }
    )
    line = series_of(over(rows, "rule", "layer"), "dfa", "DFA", "layer")
    assert line.band(log=False)[1][0] > 1
    assert replace(line, possible=TRAINED["credit_cosine"].bounds).band(log=False)[1][0] == 1


@pytest.mark.parametrize("mean", [1.02, -0.02])
def test_bars_of_an_accuracy_that_cannot_be_are_drawn_with_whiskers_that_end_at_it(mean: float) -> None:
    bar = point("bp", "BP", 0, mean, 0.001, 3, SHARE)
    (low,), (high,) = bar.band(log=False)
    assert low <= mean <= high
    draw_bars(Figure().subplots(), bar)


def test_the_band_is_the_sample_standard_deviation(five: Evidence) -> None:
    figure, _ = drawn("activation_std", five)
    rows = five.of(variant="scaled").metric("activation_std").filter(model="res_mlp", epoch=10, layer=5)
    low, high = (
        rows["value"].mean() - rows["value"].std(ddof=1),
        rows["value"].mean() + rows["value"].std(ddof=1),
    )
    (corners,) = figure.axes[0].collections[1].get_paths()
    at = corners.vertices[corners.vertices[:, 0] == 5][:, 1]
    assert (at.min(), at.max()) == pytest.approx((low, high))


def test_a_band_on_a_log_axis_stays_above_zero(five: Evidence) -> None:
    factor = pl.when(pl.col("run").str.ends_with("42")).then(1e4).otherwise(1.0)
    figure, _ = drawn("gradient_magnitude", with_rows(five, five.rows.with_columns(value=pl.col("value") * factor)))
    for band in figure.axes[0].collections:
        assert all((path.vertices[:, 1] > 0).all() for path in band.get_paths())
    assert "drawn down to the smallest seed" in words(figure)


@pytest.mark.parametrize("name", RESIDUAL)
def test_n_is_in_the_title(name: str) -> None:
    assert "n = 1 seed" in title(default(name, 1)[0])
    expected = "n = 1 seed (42)" if name == "one_input" else "n = 3 seeds"
    assert expected in title(default(name, 3)[0])


def test_a_seed_without_rows_shrinks_n_and_is_named(three: Evidence) -> None:
    fewer = three.rows.filter(~pl.col("run").is_in(["res_mlp-raw-44", "res_mlp-scaled-44"]))
    figure, caption = drawn("activation_std", with_rows(three, fewer))
    assert "n = 3 (Plain MLP) and 2 (ReLU ResMLP) seeds" in title(figure)
    assert "ReLU ResMLP: no defined values from seed 44" in words(figure)
    assert "no defined values from seed 44" in caption


STORIES = {"signal_flow": "collapse", "gradient_flow": "vanish", "gradient_highway": "vanish"}
STORIES |= {"learning_comparison": "failed to learn", "chain_rule": "", "one_input": ""}


@pytest.mark.parametrize("name", STORIES)
def test_a_healthy_network_is_not_called_sick(name: str) -> None:
    figure, caption = default(name, 1)
    assert STORIES[name] in words(figure)
    assert STORIES[name] in caption or name == "gradient_highway"
    figure, caption = default(name, 1, healthy=True)
    for word in ("collapse", "vanish", "failed", "explode"):
        assert word not in words(figure) + caption


def test_the_table_is_rendered_from_the_rows(one: Evidence) -> None:
    figure, _ = drawn("learning_comparison", one)
    final = np.mean(values(one.of(variant="scaled"), "plain_mlp", "batch_loss")[-20:])
    table = {text.get_text() for text in figure.axes[3].texts}
    assert {"0.167", "failed to learn", "learned"} <= table
    assert any(text.startswith(f"{final:.4f} ± ") for text in table)


def test_a_run_that_stopped_early_has_no_final_loss(three: Evidence) -> None:
    short = three.rows.filter(
        ~((pl.col("metric") == "batch_loss") & pl.col("run").str.starts_with("plain") & (pl.col("step") > 50))
    )
    figure, _ = drawn("learning_comparison", with_rows(three, short))
    assert "Plain MLP loss reduction undefined" in words(figure)


@pytest.mark.parametrize("field", ["depth", "width", "steps", "alpha", "batch", "lr", "samples"])
def test_runs_that_differ_in_their_recipe_are_refused(field: str, one: Evidence) -> None:
    odd = pl.when(pl.col("model") == "res_mlp").then(pl.col(field) * 2).otherwise(pl.col(field))
    with pytest.raises(SondeError, match=rf"differ in {field} \("):
        drawn("training_loss", with_runs(one, one.runs.with_columns(odd.cast(one.runs.schema[field]))))


def test_a_repeated_seed_is_not_another_sample(three: Evidence) -> None:
    with pytest.raises(SondeError, match="seed 42"):
        drawn("training_loss", with_runs(three, three.runs.with_columns(seed=pl.lit(42, dtype=pl.Int64))))


@pytest.mark.parametrize("name", [name for name, spec in RESIDUAL.items() if not spec.beside])
def test_missing_rows_are_named(name: str, one: Evidence) -> None:
    with pytest.raises(NoData, match=r"preact_grad_norm|activation_|batch_loss|hidden states"):
        drawn(name, with_rows(one, one.rows.clear()))
    with pytest.raises(NoData, match="res_mlp"):
        drawn(name, with_runs(one, one.runs.filter(model="plain_mlp")))


def test_captions_carry_seeds_recipe_and_runs(three: Evidence) -> None:
    _, caption = drawn("training_loss", three)
    assert "n = 3 seeds (42, 43, 44)" in caption
    assert "20 layers of width 40, weights × 1/√L (α = 0.224), 200 steps of batch 64, learning rate 0.001" in caption
    assert "1,024 training samples" in caption
    assert "runs: plain_mlp-scaled-42, plain_mlp-scaled-43, plain_mlp-scaled-44, res_mlp-scaled-42" in caption
    assert caption.count("\n") == 1


def test_a_caption_says_when_the_seed_is_unknown() -> None:
    figure, caption = drawn("training_loss", residual_evidence(seeds=(None,)))
    assert "n = 1 run" in title(figure)
    assert "n = 1 run (seed not recorded)" in caption


def test_models_and_rules_are_told_apart_by_colour_and_rules_by_marker_and_line() -> None:
    named = COLOR.keys()
    assert named == MARKER.keys() == LINE.keys() >= {*MODELS, "healthy", "faulty"}
    assert named <= {*MODELS, *RULES, "healthy", "faulty"}, "a style of something that is gone"
    of_rules = named & RULES.keys()
    for group in (MODELS.keys(), of_rules):
        assert len({to_hex(COLOR[name]) for name in group}) == len(group)
    assert len({(MARKER[rule], str(LINE[rule])) for rule in of_rules}) == len(of_rules) >= 17
    assert set(RULE_ORDER) <= of_rules
    assert len({MARKER[rule] for rule in RULE_ORDER}) == len(RULE_ORDER)


def test_a_rule_that_no_table_names_has_a_style_and_a_place_by_its_name() -> None:
    """A new rule of Sonde's own needs no edit in the figures."""
    evidence = rules_evidence(seeds=(42,), epochs=2, rules=("bp", "frozen", "fa", "dfa"), depth=2)
    new = {"fa": "zebra", "dfa": "aardvark"}
    named = pl.col("rule").replace(new)
    runs = evidence.runs.with_columns(rule=named, rule_label=named)
    cohort = cohort_of(with_runs(evidence, runs))
    assert list(cohort.labels) == ["bp", "frozen", "aardvark", "zebra"]
    for rule in new.values():
        assert COLOR[rule] not in COLOR.values()
    figure, _ = FIGURES["accuracy"].draw(with_runs(evidence, runs))
    colours = {one.get_label(): one.get_color() for one in figure.axes[1].lines}
    assert {rule: colours[rule] for rule in new.values()} == {rule: COLOR[rule] for rule in new.values()}


numbers = st.floats(1e-30, 1e30) | st.just(0.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers), min_size=4, max_size=4),
    st.sampled_from(list(PROFILES)),
)
def test_axis_limits_contain_the_data(table: list[tuple[float, ...]], name: str) -> None:
    evidence = residual_evidence(seeds=(1, 2), variants=("raw",), depth=4, width=2, steps=2)
    drawn_numbers = pl.DataFrame(
        [
            (f"{model}-raw-{seed}", layer, value * (-1 if name == "activation_mean" and layer % 2 else 1))
            for column, (model, seed) in enumerate((m, s) for m in ("plain_mlp", "res_mlp") for s in (1, 2))
            for layer, value in enumerate(table[column], 1)
        ],
        schema={"run": pl.String, "layer": pl.Int64, "new": pl.Float64},
        orient="row",
    )
    rows = evidence.rows.join(drawn_numbers, on=["run", "layer"], how="left", maintain_order="left")
    rows = rows.with_columns(value=pl.col("new").fill_null(pl.col("value"))).drop("new")
    figure, _ = drawn(name, with_rows(evidence, rows))
    ax = figure.axes[0]
    low, high = ax.get_ylim()
    for one in ax.lines:
        y = np.asarray(one.get_ydata(), dtype=float)
        assert ((y >= low) & (y <= high))[~np.isnan(y)].all()
    for band in ax.collections:
        for path in band.get_paths():
            assert ((path.vertices[:, 1] >= low) & (path.vertices[:, 1] <= high)).all()


def of_task(evidence: Evidence, task: str, label: str) -> Evidence:
    return with_runs(evidence, evidence.runs.with_columns(task=pl.lit(task), task_label=pl.lit(label)))


def test_what_is_known_of_the_identity_is_not_said_of_another_task(one: Evidence) -> None:
    digits = of_task(one, "digits", "digits")
    for name in ("signal_flow", "training_loss", "activation_std", "learning_comparison"):
        figure, caption = drawn(name, digits)
        said = words(figure) + caption
        for wrong in (
            "1/√3",
            "the input",
            "predicting zero",
            "squared error",
            "MSE",
            "depart from the theory",
        ):
            assert wrong not in said, name
    figure, _ = drawn("signal_flow", digits)
    labels = {line.get_label() for line in figure.axes[0].lines}
    assert not {"input, 1/√3", "theory at init"} & labels
    assert min(figure.axes[0].get_xticks()) == 1
    assert "input, 1/√3" in {line.get_label() for line in drawn("signal_flow", one)[0].axes[0].lines}


@pytest.mark.parametrize(
    ("task", "label", "loss"),
    [
        ("identity", "identity", "mean squared error"),
        ("digits", "digits", "cross entropy"),
        ("waves", "waves, regression", "mean squared error"),
    ],
)
def test_the_loss_is_named_by_the_task(one: Evidence, task: str, label: str, loss: str) -> None:
    figure, caption = drawn("training_loss", of_task(one, task, label))
    assert f"Training loss ({loss} of each batch)" in caption
    short = "MSE" if loss == "mean squared error" else loss
    assert figure.axes[0].get_ylabel() == f"batch loss ({short})"
