"""Figures 11 to 13: what is drawn is what the rows hold, and every word is computed from them."""

import math
from functools import cache

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from evidence import snapshot_evidence, undefined_where, with_rows, with_runs, without_runs
from sonde.core.errors import SondeError
from sonde.core.formatting import number
from sonde.show.figures import FIGURES, Evidence, NoData, figures_of
from sonde.show.figures.marks import SEED_LINE
from sonde.show.figures.style import COLOR, LINE, MARKER

NAMES = RESMLP, VIT, CROSS = "stream_by_terminal_ln", "stream_of_vit", "three_networks"
RUN, EPOCH = pl.col("run"), pl.col("epoch")


def drawn(name: str, evidence: Evidence) -> tuple[Figure, str]:
    return figures_of("snapshots")[name].draw(evidence)


@cache
def default(name: str, seeds: int) -> tuple[Figure, str]:
    """A figure of unchanged evidence, drawn once and only looked at."""
    return drawn(name, evidence_of(seeds))


def evidence_of(seeds: int) -> Evidence:
    return snapshot_evidence(seeds=(42, 123, 456, 7, 8)[:seeds], epochs=10)


def words(figure: Figure) -> str:
    shown = " ".join(text.get_text() for text in figure.findobj(Text))
    return shown.replace("\n", " ").replace("\u00a0", " ")


def title(figure: Figure) -> str:
    return figure.get_suptitle().replace("\n", " ")


def heading(figure: Figure, panel: int) -> str:
    return figure.axes[panel].get_title(loc="left").replace("\n", " ").replace("\u00a0", " ")


def line(figure: Figure, panel: int, rule: str) -> np.ndarray:
    drawn_lines = [one for one in figure.axes[panel].lines if one.get_label() != SEED_LINE]
    (found,) = [one for one in drawn_lines if one.get_color() == COLOR[rule]]
    return np.asarray(found.get_ydata(), dtype=float)


def values(evidence: Evidence, run: str, metric: str, layer: int | None) -> list[float]:
    rows = evidence.rows.filter(pl.col("layer").eq_missing(layer), run=run, metric=metric)
    return rows.sort("epoch")["value"].to_list()


@pytest.mark.parametrize("rule", ["bp", "dfa"])
def test_the_panels_draw_the_stream_and_the_gradient_at_h2(rule: str) -> None:
    evidence, (figure, _) = evidence_of(1), default(RESMLP, 1)
    panels = [
        ("ln", "hidden_norm", 4),
        ("ln", "grad_norm", 2),
        ("no_ln", "hidden_norm", 4),
        ("no_ln", "grad_norm", 2),
    ]
    for place, (network, metric, layer) in enumerate(panels):
        assert line(figure, place, rule).tolist() == values(evidence, f"{network}-{rule}-42", metric, layer)
        assert figure.axes[place].get_yscale() == "log"
    figure, _ = default(VIT, 1)
    assert line(figure, 0, rule).tolist() == values(evidence, f"vit-{rule}-42", "hidden_norm", 4)
    assert line(figure, 1, rule).tolist() == values(evidence, f"vit-{rule}-42", "grad_norm", 2)


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa"])
def test_the_grid_draws_three_networks_by_stream_gradient_and_accuracy(rule: str) -> None:
    evidence, (figure, _) = evidence_of(1), default(CROSS, 1)
    for row, network in enumerate(("vit", "no_ln", "student")):
        run = f"{network}-{rule}-42"
        assert line(figure, 3 * row, rule).tolist() == values(evidence, run, "hidden_norm", 4)
        assert line(figure, 3 * row + 1, rule).tolist() == values(evidence, run, "grad_norm", 4)
        assert line(figure, 3 * row + 2, rule).tolist() == values(evidence, run, "test_acc", None)


def test_the_grid_has_a_paper_s_style() -> None:
    figure, _ = default(CROSS, 3)
    assert {text.get_fontfamily()[0] for text in figure.findobj(Text)} == {"STIXGeneral"}
    assert figure.axes[0].yaxis.label.get_size() == 9
    assert [ax.get_legend() is not None for ax in figure.axes] == [True, False, True] + [False] * 6
    assert [ax.get_ylabel().replace("\n", " ") for ax in figure.axes[::3]] == [
        "ViT-Mini CIFAR-10",
        "Pre-LN ResMLP, no terminal LN CIFAR-10",
        "StudentNet teacher",
    ]
    assert all(ax.xaxis.get_gridlines()[0].get_linestyle() == ":" for ax in figure.axes)


def test_ranges_are_shared_where_rows_are_to_be_compared() -> None:
    figure, _ = default(CROSS, 3)
    assert len({ax.get_ylim() for ax in figure.axes[1::3]}) == 1
    figure, _ = default(RESMLP, 3)
    assert figure.axes[0].get_ylim() == figure.axes[2].get_ylim() != figure.axes[1].get_ylim()


@pytest.mark.parametrize("name", NAMES)
def test_a_band_is_the_sample_standard_deviation_of_two_seeds_or_more(name: str) -> None:
    assert not default(name, 1)[0].axes[0].collections
    figure, _ = default(name, 5)
    network = "ln" if name == RESMLP else "vit"
    rows = evidence_of(5).rows.filter(RUN.str.starts_with(f"{network}-bp"), metric="hidden_norm", layer=4, epoch=5)
    mean, std = rows["value"].mean(), rows["value"].std(ddof=1)
    (corners,) = figure.axes[0].collections[0].get_paths()
    at = corners.vertices[corners.vertices[:, 0] == 5][:, 1]
    assert (at.min(), at.max()) == pytest.approx((mean - std, mean + std))


@pytest.mark.parametrize("name", NAMES)
def test_n_is_in_the_title_and_the_recipe_in_the_caption(name: str) -> None:
    assert "n = 1 seed" in title(default(name, 1)[0])
    figure, caption = default(name, 3)
    assert "n = 3 seeds" in title(figure)
    assert "n = 3 seeds (42, 123, 456)" in caption
    assert "4 blocks, width 256, CIFAR-10, 50,000 training samples, 10 epochs, batch 128" in caption
    assert "median over 128 probe samples" in caption
    assert caption.count("\n") == 1


def test_a_caption_names_its_runs_or_how_many_they_are_and_where() -> None:
    assert default(VIT, 1)[1].endswith("runs: vit-bp-42, vit-dfa-42\n")
    assert default(CROSS, 3)[1].endswith("runs: 27, too many to name here; their ids are in the store\n")


@pytest.mark.parametrize(
    ("name", "panel", "run", "layer"),
    [(RESMLP, 1, "ln-dfa-42", 2), (VIT, 1, "vit-dfa-42", 2), (CROSS, 1, "vit-dfa-42", 4)],
)
def test_axis_and_caption_say_the_same_loss_whose_gradient_is_drawn(
    name: str, panel: int, run: str, layer: int
) -> None:
    stored = evidence_of(1)
    figure, caption = drawn(name, with_runs(stored, stored.runs.with_columns(probe_size=pl.lit(128))))
    per_sample = np.array(values(stored, run, "grad_norm", layer))
    assert line(figure, panel, "dfa") == pytest.approx(per_sample / 128, rel=1e-12)
    assert "batch-mean loss" in figure.axes[panel].get_ylabel() + figure.axes[panel].get_title()
    assert "that of the batch-mean loss, 1/N of that of each sample's own loss, with N = 128" in caption


def test_networks_whose_data_set_is_not_recorded_are_drawn_without_one() -> None:
    nothing = [pl.lit(None, dtype=pl.String).alias(name) for name in ("task", "task_label", "scale")]
    evidence = evidence_of(1)
    for name in NAMES:  # StudentNet is trained for fewer epochs than the others
        figure, caption = drawn(name, with_runs(evidence, evidence.runs.with_columns(nothing)))
        assert "data set not recorded" in words(figure)
        assert "data set not recorded" in caption
        assert "(scale not recorded)" in caption


def test_growth_is_computed_per_run_and_then_over_seeds() -> None:
    figure, caption = default(RESMLP, 3)
    said = []
    for rule, label in (("bp", "BP"), ("dfa", "DFA")):
        rows = evidence_of(3).rows.filter(RUN.str.starts_with(f"ln-{rule}"), metric="hidden_norm", layer=4)
        ratios = rows.filter(epoch=10)["value"] / rows.filter(epoch=0)["value"]
        said.append(f"{label} grows ×{number(ratios.mean())}")
    assert f"init to epoch 10: {', '.join(said)}" in heading(figure, 0)
    assert f"Pre-LN ResMLP, ‖h_L‖, init to epoch 10: {', '.join(said)}" in caption
    assert "DFA falls to ×1." in heading(figure, 1)


def test_a_rule_that_behaves_as_bp_is_described_as_bp_is() -> None:
    figure, _ = drawn(RESMLP, snapshot_evidence(seeds=(42,), epochs=10, healthy=True))
    for panel in range(4):
        bp, dfa = heading(figure, panel).rsplit(": ", 1)[1].split(", ")
        assert float(dfa.split("×")[1]) == pytest.approx(float(bp.split("×")[1]), rel=0.5)


def test_undefined_values_are_gaps_and_are_counted() -> None:
    broken = undefined_where(evidence_of(1), EPOCH.is_in([3, 7]) & (RUN == "ln-dfa-42"))
    figure, caption = drawn(RESMLP, broken)
    assert np.flatnonzero(np.isnan(line(figure, 0, "dfa"))).tolist() == [3, 7]
    for text in (words(figure), caption):
        assert text.count("DFA (Pre-LN ResMLP): 2 of 11 epochs undefined, left as gaps.") == 1


def test_an_exploded_run_is_described_up_to_its_last_defined_epoch() -> None:
    broken = undefined_where(evidence_of(1), (EPOCH > 6) & (RUN == "vit-dfa-42"))
    figure, _ = drawn(VIT, broken)
    assert "init to epoch 10: BP grows" in words(figure)
    assert "init to epoch 6: DFA grows" in words(figure)


def test_a_gradient_of_zero_is_not_drawn_on_a_log_axis_and_that_is_said() -> None:
    zero = (RUN == "vit-dfa-42") & (EPOCH > 8) & (pl.col("metric") == "grad_norm")
    rows = evidence_of(1).rows.with_columns(value=pl.when(zero).then(0.0).otherwise("value"))
    figure, _ = drawn(VIT, with_rows(evidence_of(1), rows))
    assert np.isnan(line(figure, 1, "dfa")[9:]).all()
    assert "DFA: 2 of 11 epochs are exactly 0 and cannot be shown on a log axis (‖g_2‖)" in words(figure)
    assert "DFA falls to ×0" in words(figure)


def test_a_missing_seed_shrinks_n_of_its_line_only() -> None:
    figure, caption = drawn(VIT, without_runs(evidence_of(3), "vit-dfa-456"))
    assert "n = 3 (BP) and 2 (DFA) seeds" in title(figure)
    assert {"BP (n = 3)", "DFA (n = 2)"} <= {text.get_text() for text in figure.findobj(Text)}
    assert all("DFA: no run of seed 456." in text for text in (words(figure), caption))


def test_arrays_of_different_length_are_averaged_over_the_seeds_present() -> None:
    three = evidence_of(3)
    short = with_rows(three, three.rows.filter(~((RUN == "vit-dfa-42") & (EPOCH > 6))))
    figure, _ = drawn(VIT, short)
    present = [values(three, f"vit-dfa-{seed}", "hidden_norm", 4)[8] for seed in (123, 456)]
    assert line(figure, 0, "dfa")[8] == pytest.approx(np.mean(present))
    assert "DFA: n = 3 up to epoch 6, 2 after." in words(figure)
    assert "(n = 2)" in heading(figure, 0)


def test_what_is_not_there_is_absent_and_said() -> None:
    evidence = evidence_of(1)
    figure, caption = drawn(RESMLP, without_runs(evidence, "no_ln-bp-42", "no_ln-dfa-42"))
    assert len(figure.axes) == 3
    assert "No run of residual_mlp without terminal LN under bp or dfa in the store." in caption
    figure, _ = drawn(CROSS, without_runs(evidence, "vit-fa-42"))
    assert len(figure.axes[0].lines) == 2
    assert "ViT-Mini: no fa run." in words(figure)
    no_accuracy = with_rows(evidence, evidence.rows.filter(pl.col("metric") != "test_acc"))
    figure, caption = drawn(CROSS, no_accuracy)
    assert words(figure).count("no test_acc rows") == 6
    assert "StudentNet, test accuracy: no values" in caption


@pytest.mark.parametrize("name", NAMES)
def test_a_quantity_that_no_run_has_leaves_its_panels_empty(name: str) -> None:
    evidence = evidence_of(1)
    figure, caption = drawn(name, with_rows(evidence, evidence.rows.filter(pl.col("metric") != "grad_norm")))
    assert "no grad_norm rows" in words(figure)
    assert "no grad_norm rows in the store (‖g_" in caption


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_of_nothing_names_what_is_missing(name: str) -> None:
    evidence = evidence_of(1)
    with pytest.raises(NoData, match="no hidden_norm or grad_norm"):
        drawn(name, with_rows(evidence, evidence.rows.clear()))
    with pytest.raises(NoData, match="no run of"):
        drawn(name, with_runs(evidence, evidence.runs.clear()))
    with pytest.raises(NoData, match="is undefined: made so"):
        drawn(name, undefined_where(evidence, pl.lit(True)))


def test_a_network_of_one_block_has_no_second_state() -> None:
    with pytest.raises(NoData, match="no h_2"):
        drawn(VIT, snapshot_evidence(seeds=(42,), epochs=2, depth=1))


@pytest.mark.parametrize("field", ["epochs", "batch", "lr", "samples", "depth", "width", "steps"])
@pytest.mark.parametrize(("name", "odd"), [(RESMLP, "no_ln-dfa-42"), (RESMLP, "no_ln"), (VIT, "vit-dfa-42")])
def test_runs_that_differ_in_their_recipe_are_refused(name: str, odd: str, field: str) -> None:
    evidence = evidence_of(1)
    other = pl.when(RUN.str.starts_with(odd)).then(pl.col(field) * 2).otherwise(pl.col(field))
    runs = evidence.runs.with_columns(other.cast(evidence.runs.schema[field]))
    with pytest.raises(SondeError, match=rf"differ in {field} \("):
        drawn(name, with_runs(evidence, runs))


@pytest.mark.parametrize("change", [{"scale": "quick"}, {"task": "digits"}, {"label": "another"}])
def test_scales_tasks_and_labels_do_not_mix(change: dict[str, str]) -> None:
    evidence = evidence_of(1)
    (field, value), odd = next(iter(change.items())), RUN == "vit-dfa-42"
    runs = evidence.runs.with_columns(pl.when(odd).then(pl.lit(value)).otherwise(field).alias(field))
    for name in (VIT, CROSS):
        with pytest.raises(SondeError, match=rf"differ in {field} \("):
            drawn(name, with_runs(evidence, runs))


def test_networks_on_one_task_share_its_recipe_in_the_grid() -> None:
    evidence = evidence_of(1)

    def longer(network: str) -> Evidence:
        epochs = pl.when(RUN.str.starts_with(network)).then(50).otherwise("epochs")
        return with_runs(evidence, evidence.runs.with_columns(epochs=epochs.cast(pl.Int64)))

    drawn(CROSS, longer("student"))  # alone on its task
    with pytest.raises(SondeError, match=r"differ in epochs \("):
        drawn(CROSS, longer("vit"))


def test_a_repeated_seed_is_not_another_sample() -> None:
    three = evidence_of(3)
    with pytest.raises(SondeError, match="3 runs of ViT-Mini, BP have seed 42"):
        drawn(VIT, with_runs(three, three.runs.with_columns(seed=pl.lit(42, dtype=pl.Int64))))


def test_a_plugin_rule_is_drawn_in_a_colour_that_follows_from_its_name() -> None:
    evidence = evidence_of(1).of(model="vit_mini", rule="dfa")
    runs = evidence.runs.with_columns(rule=pl.lit("novel"), rule_label=pl.lit("Novel"))
    figure, _ = FIGURES["summary"].draw(with_runs(evidence, runs))
    (bar,) = figure.axes[0].patches
    assert to_hex(bar.get_facecolor()).upper() == COLOR["novel"].upper()
    assert COLOR["novel"] not in {COLOR[rule] for rule in ("bp", "fa", "dfa")}


def test_styles_of_plugins_follow_from_their_names() -> None:
    names = [f"plugin{number}" for number in range(60)]
    for style in (COLOR, MARKER, LINE):
        assert [style[name] for name in names] == [style[name] for name in names]
        assert {style[name] for name in names} == set(style.spare), "a style that no name gets"
        assert "plugin1" not in style, "a lookup must not add an entry"
    assert not set(COLOR.spare) & set(COLOR.values()), "a plugin would look like a rule of Sonde's own"


norms = st.floats(1e-30, 1e30) | st.just(0.0) | st.just(math.nan)


@settings(max_examples=8, deadline=None)
@given(st.lists(norms, min_size=12, max_size=12), st.sampled_from([RESMLP, VIT]))
def test_axis_limits_contain_the_data(drawn_values: list[float], name: str) -> None:
    evidence = snapshot_evidence(seeds=(1, 2), epochs=2, networks=("ln", "vit"), rules=("bp", "dfa"))
    new = pl.DataFrame({"epoch": [0, 1, 2] * 4, "seed": [1] * 6 + [2] * 6, "new": drawn_values})
    rows = evidence.rows.join(evidence.runs.select("run", "seed"), on="run").join(
        new.unique(["epoch", "seed"], keep="first", maintain_order=True),
        on=["epoch", "seed"],
        how="left",
        maintain_order="left",
    )
    rows = rows.with_columns(value="new", defined=pl.col("new").is_not_nan()).drop("new", "seed")
    try:
        figure, _ = drawn(name, with_rows(evidence, rows))
    except NoData:
        return
    for ax in figure.axes[:-1]:
        low, high = ax.get_ylim()
        for one in ax.lines:
            y = np.asarray(one.get_ydata(), dtype=float)
            assert ((y >= low) & (y <= high))[~np.isnan(y)].all()
        for band in ax.collections:
            for path in band.get_paths():
                assert ((path.vertices[:, 1] >= low) & (path.vertices[:, 1] <= high)).all()
