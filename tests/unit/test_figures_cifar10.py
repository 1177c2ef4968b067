"""Figures 14 to 18, of the cifar10 study and of the audit: drawn data, gaps, controls, computed words."""

import math
from functools import cache

import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from evidence import RULES, cut_short, rules_evidence, undefined_where, with_rows, with_runs, without_runs
from sonde.analysis.runs import CLASSES
from sonde.core.errors import SondeError
from sonde.core.formatting import accuracy, number, signed
from sonde.show.figures import Evidence, NoData, figures_of
from sonde.show.figures.panels import Final
from sonde.show.figures.style import COLOR, FAINT, SEED_LINE
from sonde.tasks import TASKS

KINDS = ("accuracy", "diagnostics", "weight_drift", "state_vs_credit", "summary")
METRICS = ("credit_cosine", "rho", "nudge[0.01]")
RUN, EPOCH, METRIC = pl.col("run"), pl.col("epoch"), pl.col("metric")


def drawn(kind: str, evidence: Evidence, study: str = "cifar") -> tuple[Figure, str]:
    return figures_of({"cifar": "cifar10"}.get(study, study))[kind].draw(evidence)


def evidence_of(seeds: int, study: str = "cifar") -> Evidence:
    size = {"rules": tuple(RULES), "depth": 4, "width": 256} if study == "audit" else {}
    return rules_evidence(seeds=(42, 123, 456)[:seeds], epochs=10, **size)


@cache
def default(kind: str, seeds: int, study: str = "cifar") -> tuple[Figure, str]:
    """A figure of unchanged evidence, drawn once and only looked at."""
    return drawn(kind, evidence_of(seeds, study), study)


def words(figure: Figure) -> str:
    shown = " ".join(text.get_text() for text in figure.findobj(Text))
    return shown.replace("\n", " ").replace("\u00a0", " ")


def title(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


def lines(ax: Axes, color: str, *, dashed: bool = False) -> list[np.ndarray]:
    """Lines with data in a colour: the rule's own, or its thin ceiling."""
    found = [one for one in ax.lines if one.get_label() != SEED_LINE]
    found = [one for one in found if one.get_color() == color and (one.get_linewidth() < 1) == dashed]
    return [np.asarray(one.get_ydata(), dtype=float) for one in found if len(one.get_ydata()) > 2]


def values(evidence: Evidence, rule: str, metric: str, epoch: int | None = None) -> list[float]:
    rows = evidence.metric(metric).filter(pl.col("rule") == rule)
    rows = rows if epoch is None else rows.filter(epoch=epoch)
    return rows.sort("seed", "epoch", "layer")["value"].to_list()


@pytest.mark.parametrize("metric", ["train_acc", "test_acc"])
def test_accuracy_draws_every_epoch_of_training(metric: str) -> None:
    figure, _ = default("accuracy", 1)
    ax = figure.axes[["train_acc", "test_acc"].index(metric)]
    for rule in ("bp", "state_bridge"):
        expected = values(evidence_of(1), rule, metric)
        assert lines(ax, COLOR[rule])[0].tolist() == (expected if metric == "train_acc" else expected[1:])
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert not ax.collections
    few = default("accuracy", 3)[0].axes[0]
    assert not few.collections
    assert sum(one.get_label() == SEED_LINE for one in few.lines) == 4 * 3


@pytest.mark.parametrize("metric", METRICS)
def test_diagnostics_draw_the_last_epoch_with_null_and_ceiling(metric: str) -> None:
    figure, caption = default("diagnostics", 1)
    ax, evidence = figure.axes[METRICS.index(metric)], evidence_of(1)
    for rule in ("dfa", "credit_bridge"):
        (own,) = lines(ax, COLOR[rule])
        assert own.tolist() == values(evidence, rule, metric, 10)
        (ceiling,) = lines(ax, COLOR[rule], dashed=True)
        assert ceiling.tolist() == values(evidence, rule, f"{metric}/bp", 10)
    null = {tuple(one) for one in lines(ax, FAINT, dashed=True)}
    assert null == {
        tuple(values(evidence, rule, f"{metric}/null", 10)) for rule in ("bp", "dfa", "state_bridge", "credit_bridge")
    }
    assert any(list(one.get_ydata()) == [0, 0] for one in ax.lines)
    assert "epoch 10" in title(figure)
    assert "credit by chance (null)" in caption
    assert "one random vector per sample" in caption


def test_the_axis_of_the_nudge_holds_every_null_in_its_linear_part() -> None:
    figure, _ = default("diagnostics", 1)
    axis = figure.axes[2].yaxis
    nulls = evidence_of(1).metric("nudge[0.01]/null").filter(EPOCH == 10)["value"]
    assert axis.get_scale() == "symlog"
    assert axis.get_transform().linthresh >= nulls.abs().max()
    assert "axis linear within ±" in words(figure)


def test_cosines_are_told_by_layer_and_never_as_a_mean() -> None:
    _, caption = default("diagnostics", 3)
    assert "DFA 0.42 at layer 0, −0." in caption
    assert "BP 1 at layer 0, 1 at layers 1–11, 1 at layer 12" in caption


def test_diagnostics_use_one_epoch_for_all_runs() -> None:
    evidence = cut_short(evidence_of(3), "dfa-123", 5)
    figure, caption = drawn("diagnostics", evidence)
    assert "epoch 5" in title(figure)
    expected = np.reshape(values(evidence, "bp", "rho", 5), (3, 13)).mean(axis=0)
    assert lines(figure.axes[1], COLOR["bp"])[0] == pytest.approx(expected)
    assert "Epoch 5 is the last that every run has; some have values up to epoch 10." in caption


def test_diagnostics_without_controls_or_a_metric_say_so() -> None:
    bare = rules_evidence(seeds=(42,), epochs=4, controls=False)
    figure, caption = drawn("diagnostics", with_rows(bare, bare.rows.filter(METRIC != "rho")))
    assert "no rho rows" in words(figure)
    assert "No ceiling recorded. No null recorded." in caption
    assert "ceiling" not in figure.axes[-1].get_legend().get_texts()[-1].get_text()


def test_a_rule_without_credit_is_absent_and_said() -> None:
    figure, caption = default("diagnostics", 3, "audit")
    assert "frozen: no credit_cosine, rho, nudge[0.01] rows" in caption.replace("Frozen", "frozen")
    assert "n = 3 seeds" in title(figure)


def test_undefined_layers_are_gaps_and_are_counted() -> None:
    broken = undefined_where(evidence_of(1), (METRIC == "rho") & (pl.col("layer") == 3) & (RUN == "dfa-42"))
    figure, _ = drawn("diagnostics", broken)
    assert np.flatnonzero(np.isnan(lines(figure.axes[1], COLOR["dfa"])[0])).tolist() == [3]
    assert "DFA: 1 of 13 layers undefined, left as gaps (ρ)." in words(figure)


@pytest.mark.parametrize("rule", ["bp", "dfa"])
def test_drift_draws_every_block(rule: str) -> None:
    figure, caption = default("weight_drift", 1)
    expected = [values(evidence_of(1), rule, f"drift[blocks.{block}.w1.weight]")[0] for block in range(12)]
    assert lines(figure.axes[0], COLOR[rule])[0].tolist() == expected
    assert figure.axes[0].get_yscale() == "log"
    assert "epoch 10" in caption


def test_blocks_that_did_not_move_are_drawn_at_zero_where_the_axis_allows_it() -> None:
    _, caption = default("weight_drift", 1, "audit")
    assert "4 of 4 blocks are exactly 0 and cannot be shown on a log axis" in caption
    figure, _ = drawn("weight_drift", rules_evidence(seeds=(42,), epochs=2, rules=("bp", "frozen")))
    assert figure.axes[0].get_yscale() == "linear"
    assert lines(figure.axes[0], COLOR["frozen"])[0].tolist() == [0] * 12


def test_prediction_errors_are_drawn_per_seed() -> None:
    figure, _ = default("state_vs_credit", 3)
    ax = figure.axes[0]
    assert [one.get_label() for one in ax.lines] == ["seed 42", "seed 123", "seed 456"]
    drawn_values = {tuple(one.get_ydata()) for one in ax.lines}
    errors = np.reshape(values(evidence_of(3), "state_bridge", "state_pred_error"), (3, 10))
    assert drawn_values == {tuple(row) for row in errors.tolist()}
    assert ax.get_yscale() == "log"


@pytest.mark.parametrize(
    ("norm", "axis", "shown"),
    [
        (
            "layer",
            "relative error in LN($h_L$) (State Bridge, training batches)",
            "h_L after a LayerNorm (LN)",
        ),
        ("none", "relative error in $h_L$ (State Bridge, training batches)", "h_L not normalised"),
        (None, "prediction error of the last state (State Bridge, as the files have it)", "is not recorded"),
    ],
)
def test_the_prediction_error_says_whose_it_is_of_what_and_on_which_samples(
    norm: str | None, axis: str, shown: str
) -> None:
    bridges = pl.when(pl.col("rule") == "state_bridge").then(pl.lit(norm, dtype=pl.String))
    runs = evidence_of(1).runs.with_columns(input_norm=bridges)
    figure, caption = drawn("state_vs_credit", with_runs(evidence_of(1), runs))
    assert figure.axes[0].get_ylabel().replace("\n", " ") == axis
    assert shown in caption
    assert ("the epoch's training batches, each before G learns from it" in caption) == (norm is not None)


def test_state_bridges_that_read_their_states_differently_are_not_one_rule() -> None:
    odd = pl.when(RUN == "state_bridge-42").then(pl.lit("none")).when(RUN == "state_bridge-123")
    runs = evidence_of(3).runs.with_columns(input_norm=odd.then(pl.lit("layer")))
    with pytest.raises(SondeError, match=r"differ in input_norm \("):
        drawn("state_vs_credit", with_runs(evidence_of(3), runs))


@pytest.mark.parametrize(("accuracy", "rank"), [(0.19, 3), (0.295, 2), (0.5, 1)])
def test_the_rank_of_state_bridge_is_computed(accuracy: float, rank: int) -> None:
    scores = (("bp", 0.6), ("dfa", 0.31), ("state_bridge", accuracy), ("credit_bridge", 0.28))
    evidence = rules_evidence(seeds=(42, 123), epochs=4, depth=2, accuracy=scores)
    figure, caption = drawn("state_vs_credit", evidence)
    error = np.reshape(values(evidence, "state_bridge", "state_pred_error"), (2, 4)).mean(axis=0)
    said = f"State Bridge predicts with error {error[-1]:.2f} at epoch 4 ({error[0]:.2f} at epoch 1)"
    for text in (words(figure), caption):
        assert said in text
        assert f"ranks {rank} of 3 in test accuracy (" in text


def test_state_bridge_alone_has_no_rank() -> None:
    figure, _ = drawn("state_vs_credit", rules_evidence(seeds=(42,), epochs=3, rules=("bp", "state_bridge")))
    assert "and reaches" in words(figure)
    assert "ranks" not in words(figure)
    assert "No dfa run in the store." in words(figure)


def bars(ax: Axes) -> list[float]:
    return [bar.get_width() for bar in ax.patches]


@pytest.mark.parametrize(
    ("kind", "panel", "rules"),
    [("summary", 0, list(RULES)), ("state_vs_credit", 1, ["dfa", "state_bridge", "credit_bridge"])],
)
def test_bars_are_mean_accuracies_at_the_last_epoch_with_their_values(kind: str, panel: int, rules: list[str]) -> None:
    figure, _ = default(kind, 3, "audit")
    finals = [values(evidence_of(3, "audit"), rule, "test_acc", 10) for rule in rules]
    assert bars(figure.axes[panel]) == pytest.approx([np.mean(seeds) for seeds in finals])
    for seeds in finals:
        assert f"{100 * np.mean(seeds):.1f} ± {100 * np.std(seeds, ddof=1):.1f} %" in words(figure)
    low, high = figure.axes[panel].get_xlim()
    assert low <= 0 < max(map(max, finals)) <= high


def test_one_seed_has_no_spread() -> None:
    figure, _ = default("summary", 1)
    assert "±" not in words(figure)
    assert not figure.axes[0].containers[0].errorbar


def test_the_summary_stands_beside_frozen_blocks() -> None:
    _, caption = default("summary", 3, "audit")
    frozen, dfa = (np.mean(values(evidence_of(3, "audit"), rule, "test_acc", 10)) for rule in ("frozen", "dfa"))
    assert "mean of the differences by seed, n = 3: BP +" in caption
    assert f"DFA {signed(100 * (dfa - frozen))}" in caption
    assert "frozen" not in default("summary", 3)[1]


def test_the_summary_pairs_points_by_seed_as_the_audit_does() -> None:
    """A frozen run that is missing takes its partner out of the difference."""
    whole = evidence_of(3, "audit")
    lost = whole.runs.filter(rule="frozen", seed=456)["run"][0]
    _, caption = drawn("summary", without_runs(whole, lost), "audit")
    dfa, frozen = (values(whole, rule, "test_acc", 10)[:2] for rule in ("dfa", "frozen"))
    assert "n = 2: BP" in caption
    assert f"DFA {signed(100 * (sum(dfa) - sum(frozen)) / 2)}" in caption


def test_an_accuracy_is_rounded_once_for_caption_and_table() -> None:
    """.2375 was .237 in the table and 23.8 % in the caption."""
    assert Final("bp", "BP", 0.2375, math.nan, 1, []).words == accuracy(0.2375) == "23.8 %"
    assert accuracy(0.23749999999999999) == accuracy((0.2 + 0.275) / 2) == "23.8 %"
    assert number(0.2375, 3) == "0.238"
    assert accuracy(0.5921, 0.0042) == "59.2 ± 0.4 %"
    assert accuracy(0.59214, 0.00042) == "59.21 ± 0.04 %"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("study", ["cifar", "audit"])
def test_n_is_in_the_title_and_the_recipe_in_the_caption(kind: str, study: str) -> None:
    assert "n = 1 seed" in title(default(kind, 1, study)[0])
    figure, caption = default(kind, 3, study)
    assert "n = 3 seeds" in title(figure)
    assert ("10 epochs" in title(figure)) or ("epoch 10" in title(figure))
    size = "L = 4, d = 256" if study == "audit" else "L = 12, d = 512"
    assert f"Pre-LN ResMLP, {size}, CIFAR-10" in title(figure)
    assert "n = 3 seeds (42, 123, 456)" in caption
    assert "50,000 training samples, 10 epochs, batch 128, learning rate 0.001, full scale" in caption


def test_n_is_in_the_legend_where_it_differs() -> None:
    fewer = without_runs(evidence_of(3), "dfa-456")
    for kind in ("accuracy", "diagnostics", "weight_drift"):
        figure, caption = drawn(kind, fewer)
        assert "n = 2–3 seeds" in title(figure)
        assert "DFA (n = 2)" in words(figure)
        assert "n = 2–3 seeds (42, 123, 456; DFA: 42, 123)" in caption
    figure, _ = drawn("summary", fewer)
    assert "DFA (n = 2)" in words(figure)


def test_a_run_that_stops_early_is_left_out_of_the_end() -> None:
    figure, _ = drawn("summary", cut_short(evidence_of(3), "dfa-42", 6))
    _, *others = values(evidence_of(3), "dfa", "test_acc", 10)
    assert bars(figure.axes[0])[1] == pytest.approx(np.mean(others))
    assert "DFA: no defined values at epoch 10 from seed 42." in words(figure)


NEEDED = {
    "accuracy": "train_acc or test_acc",
    "diagnostics": "credit_cosine",
    "weight_drift": "drift of blocks",
    "state_vs_credit": "state_pred_error rows and no test_acc",
    "summary": "test_acc",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_of_nothing_names_what_is_missing(kind: str) -> None:
    evidence = evidence_of(1)
    with pytest.raises(NoData, match=NEEDED[kind]):
        drawn(kind, with_rows(evidence, evidence.rows.clear()))
    with pytest.raises(NoData):
        drawn(kind, undefined_where(evidence, pl.lit(True)))
    with pytest.raises(NoData, match="no run"):
        drawn(kind, with_runs(evidence, evidence.runs.clear()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["epochs", "width", "scale", "task"])
def test_runs_that_differ_in_their_recipe_are_refused(kind: str, field: str) -> None:
    runs = evidence_of(1).runs
    other = pl.lit("other") if runs.schema[field] == pl.String else pl.col(field) * 2
    odd = pl.when(RUN == "dfa-42").then(other).otherwise(pl.col(field)).alias(field)
    with pytest.raises(SondeError, match=rf"differ in {field} \("):
        drawn(kind, with_runs(evidence_of(1), runs.with_columns(odd)))


def test_files_that_record_little_are_drawn_all_the_same() -> None:
    evidence = rules_evidence(seeds=(42,), epochs=4, controls=False)
    unknown = [
        pl.lit(None, dtype=evidence.runs.schema[name]).alias(name)
        for name in ("width", "batch", "lr", "samples", "steps")
    ]
    depth = pl.when(pl.col("rule") != "bp").then("depth").alias("depth")
    files = Evidence(evidence.rows.filter(EPOCH > 0), evidence.runs.with_columns(*unknown, depth), "files")
    for kind in KINDS:
        figure, caption = drawn(kind, files)
        assert "Pre-LN ResMLP, L = 12, CIFAR-10" in title(figure)
        assert "(width, training samples, batch, learning rate not recorded)" in caption


@pytest.mark.parametrize("kind", ["accuracy", "summary", "state_vs_credit"])
def test_axes_of_accuracy_end_at_100_per_cent_and_chance_is_a_line(kind: str) -> None:
    figure, _ = default(kind, 3)
    lines = [(ax, one) for ax in figure.axes for one in ax.lines if one.get_label() == "guessing, 10.0 %"]
    assert lines
    for ax, chance in lines:
        upright = kind != "accuracy"
        assert (ax.get_xlim() if upright else ax.get_ylim())[1] == 1
        assert set(chance.get_xdata() if upright else chance.get_ydata()) == {0.1}


def test_without_known_classes_there_is_no_line_for_chance() -> None:
    known = evidence_of(1)
    unknown = Evidence(known.rows, known.runs.with_columns(classes=pl.lit(None, pl.Int64)), known.source)
    figure, _ = drawn("accuracy", unknown)
    assert not any("guessing" in str(one.get_label()) for ax in figure.axes for one in ax.lines)


def test_the_classes_of_tasks_are_those_of_the_tasks() -> None:
    assert {name: TASKS[name].outputs for name in CLASSES} == CLASSES
