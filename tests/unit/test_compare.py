"""Comparisons: matched, paired by seed, with n, or refused by name."""

import itertools
import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import scipy.stats
import typer
from typer.testing import CliRunner, Result

import sonde
from conftest import tiny_config
from sonde.analysis.comparison import as_option, compare
from sonde.analysis.runs import choices, keep
from sonde.cli.compare import compare_command as command
from sonde.cli.compare import comparison_as_json as as_json
from sonde.config import Optimiser, keys, whole_tree
from sonde.core.errors import SondeError
from sonde.core.run_ids import differing, flatten
from sonde.store.run import Runs
from stores import EPOCHS, Key, Value, config, healthy, run, store, write

Invoke = Callable[..., Result]
SEEDS = (42, 123, 456)
ACCURACY = {
    "bp": dict(zip(SEEDS, (0.90, 0.92, 0.97), strict=True)),
    "dfa": dict(zip(SEEDS, (0.60, 0.65, 0.64), strict=True)),
    "frozen": dict(zip(SEEDS, (0.50, 0.52, 0.51), strict=True)),
}


def values(accuracy: float | str, epochs: int = EPOCHS) -> dict[Key, Value]:
    """A score that is known at the last epoch, and something at every layer."""
    found: dict[Key, Value] = {("test_acc", epoch, None): 0.1 for epoch in range(epochs)}
    found["test_acc", epochs, None] = accuracy
    found |= {("grad_norm", epochs, layer): float(layer) for layer in range(3)}
    return found


def rules(**changes: object) -> Runs:
    return store(
        *(
            run(config(rule, seed, **changes), values(accuracy))
            for rule, by_seed in ACCURACY.items()
            for seed, accuracy in by_seed.items()
        )
    )


def joined(*stores: Runs) -> Runs:
    return Runs(pl.concat([known.rows for known in stores]), [run for known in stores for run in known.runs])


def test_the_difference_is_paired_by_seed_and_its_interval_equals_scipys() -> None:
    found = compare(rules())
    assert [group.level.label for group in found.groups] == ["bp", "dfa", "frozen"]
    dfa = found.differences[0]
    gaps = [ACCURACY["dfa"][seed] - ACCURACY["bp"][seed] for seed in SEEDS]
    reference = scipy.stats.ttest_rel(*([ACCURACY[rule][s] for s in SEEDS] for rule in ("dfa", "bp")))
    low, high = reference.confidence_interval(0.95)
    assert (dfa.level, dfa.baseline, dfa.summary.n) == ("dfa", "bp", 3)
    assert dfa.summary.mean == pytest.approx(sum(gaps) / 3)
    assert (dfa.interval.low, dfa.interval.high) == (pytest.approx(low), pytest.approx(high))
    assert dfa.by_seed == {seed: pytest.approx(gap) for seed, gap in zip(SEEDS, gaps, strict=True)}


def test_pairing_does_not_depend_on_the_order_of_runs() -> None:
    stored = rules()
    shuffled = Runs(stored.rows, stored.runs[::-1])
    assert compare(stored).differences == compare(shuffled).differences


def test_a_comparison_value_typed_into_a_script_is_impossible_for_values_carry_run_ids() -> None:
    stored = rules()
    for group in compare(stored).groups:
        for seed, reading in group.readings.items():
            known = stored[group.runs[seed]]
            assert (known.config["rule"]["name"], known.config["seed"]) == (group.level.name, seed)
            row = stored.rows.filter(run=known.id, metric="test_acc", epoch=EPOCHS)
            assert row["value"].item() == reading.value


def test_a_100_epoch_run_is_not_compared_with_a_30_epoch_run() -> None:
    stored = store(
        *(run(config("bp", seed, epochs=100), values(0.9, 100)) for seed in SEEDS),
        *(run(config("dfa", seed, epochs=30), values(0.6, 30)) for seed in SEEDS),
    )
    with pytest.raises(SondeError, match="epochs is 100 in 3 runs and 30 in 3 runs") as refused:
        compare(stored)
    assert "--only" not in str(refused.value)  # it would keep one rule
    found = compare(stored, unmatched=True)
    assert not found.matched
    assert found.differing == {"epochs": {"100": 3, "30": 3}}
    assert "UNMATCHED" in found.title()


def test_every_differing_field_is_named_with_its_values() -> None:
    other = store(*(run(config("dfa", s, model__out_ln=False, optimiser__lr=0.1), values(0.6)) for s in SEEDS))
    with pytest.raises(SondeError) as refused:
        compare(joined(keep(rules(), {"rule": "bp"}), other))
    assert "model.out_ln is true in 3 runs and false in 3 runs" in str(refused.value)
    assert "optimiser.lr is 0.001 in 3 runs and 0.1 in 3 runs" in str(refused.value)
    assert "rule is" not in str(refused.value)


def test_runs_on_other_images_are_not_matched() -> None:
    ours = run(config("bp"), values(0.9), data={"form": "parquet", "fingerprint": "a"})
    theirs = run(config("dfa"), values(0.9), data={"form": "batches", "fingerprint": "b"})
    with pytest.raises(SondeError, match=r"data\.form is parquet in 1 run and batches in 1 run"):
        compare(store(ours, theirs))


def test_two_families_are_refused_until_one_is_kept() -> None:
    both = joined(rules(), rules(model__L=8))
    with pytest.raises(SondeError, match=r"model\.L is 4 in 9 runs and 8 in 9 runs"):
        compare(both)
    found = compare(keep(both, choices(["model.L=8"])))
    assert found.matched
    assert all(len(group.values) == 3 for group in found.groups)


def test_a_mixed_store_is_refused_with_an_only_that_works() -> None:
    mixed = joined(
        rules(),
        rules(model__L=8, optimiser__lr=0.1),
        keep(rules(model__d=32, task__name="moons", optimiser__name="1"), {"rule": "bp"}),
        keep(rules(batch_size=64, epochs=3, scale="full", probes__size=7), {"seed": 42}),
    )
    with pytest.raises(SondeError) as refused:
        compare(mixed)
    said = str(refused.value)
    assert said.count(" is ") <= 3
    assert "more keys" in said
    words = shlex.split(said.partition("agree with ")[2].partition(", or compare")[0])
    assert 1 <= words.count("--only") <= 3
    found = compare(keep(mixed, choices([word for word in words if word != "--only"])))
    assert found.matched
    assert {len(group.values) for group in found.groups} == {3}


def test_where_no_only_helps_none_is_advised() -> None:
    other = keep(rules(model__L=8), {"rule": "dfa"})
    with pytest.raises(SondeError, match="No two of them differ in rule alone") as refused:
        compare(joined(keep(rules(), {"rule": "bp"}), other))
    assert "--only" not in str(refused.value)


def test_the_metric_is_checked_before_the_runs_are_matched() -> None:
    with pytest.raises(SondeError, match="--metric tset_acc"):
        compare(joined(rules(), rules(model__L=8)), metric="tset_acc")


def test_text_that_reads_as_a_number_is_advised_as_text() -> None:
    assert as_option("optimiser.name", "1") == "--only 'optimiser.name=\"1\"'"
    assert as_option("rule", "bp") == "--only rule=bp"


def test_unmatched_runs_of_one_level_and_seed_do_not_count_as_two_seeds() -> None:
    with pytest.raises(SondeError, match=r"bp has several runs of seed 42, which differ in model\.L"):
        compare(joined(rules(), rules(model__L=8)), unmatched=True)


def test_matched_runs_are_not_marked_even_when_unmatched_was_allowed() -> None:
    assert compare(rules(), unmatched=True).matched


def test_a_network_without_terminal_layernorm_is_not_taken_for_another() -> None:
    stored = store(
        *(
            run(config("bp", seed, model__out_ln=out_ln), values(0.9 if out_ln else 0.8))
            for out_ln, seed in itertools.product((True, False), SEEDS)
        )
    )
    found = compare(stored, factor="model.out_ln")
    assert [group.level.label for group in found.groups] == ["false", "true"]
    assert found.differences[0].summary.mean == pytest.approx(0.1)
    with pytest.raises(SondeError, match=r"--factor rule: every run has bp.*differ in model\.out_ln"):
        compare(stored)


def test_levels_of_one_name_are_told_apart_by_the_options_that_differ() -> None:
    penalised = store(*(run(config("dfa", s, rule__penalty=0.01), values(0.7)) for s in SEEDS))
    found = compare(joined(rules(), penalised))
    assert [group.level.label for group in found.groups] == [
        "bp", "dfa (penalty = 0.0)", "dfa (penalty = 0.01)", "frozen",
    ]  # fmt: skip
    with pytest.raises(SondeError, match="there are several, choose 'dfa"):
        compare(joined(rules(), penalised), baseline="dfa")
    assert compare(joined(rules(), penalised), baseline="dfa (penalty = 0.01)").groups[0].summary.mean == 0.7


def test_a_number_is_a_factor_in_the_order_of_its_values() -> None:
    stored = store(*(run(config("bp", s, model__L=L), values(L / 100)) for L in (12, 4, 8) for s in SEEDS))
    found = compare(stored, factor="model.L")
    assert [group.level.label for group in found.groups] == ["4", "8", "12"]
    assert [gap.summary.mean for gap in found.differences] == [pytest.approx(0.04), pytest.approx(0.08)]


def test_seed_42_values_are_never_labelled_as_three_seeds() -> None:
    stored = joined(keep(rules(), {"rule": "bp"}), store(run(config("dfa", 42), values(0.6))))
    found = compare(stored)
    dfa = found.differences[0]
    assert (found.groups[1].summary.n, dfa.summary.n) == (1, 1)
    assert dfa.interval.reason == "an interval needs two seeds or more: one value has no spread"
    assert math.isnan(dfa.interval.low)
    assert dfa.without == {123: "the baseline alone has it", 456: "the baseline alone has it"}
    assert "dfa − bp: seed 123 is not paired: the baseline alone has it" in found.notes()


def test_without_a_seed_in_common_the_difference_is_undefined() -> None:
    found = compare(store(run(config("bp", 1), values(0.9)), run(config("dfa", 2), values(0.6))))
    difference = found.differences[0].summary
    assert math.isnan(difference.mean)
    assert difference.reason == "no seed has a value on both sides"


def test_an_undefined_value_stays_undefined_and_says_why() -> None:
    stored = store(
        *(run(config("bp", s), values(0.9)) for s in SEEDS),
        run(config("dfa", 42), values("the loss is infinite")),
        *(run(config("dfa", s), values(0.5)) for s in SEEDS[1:]),
    )
    found = compare(stored)
    assert found.differences[0].summary.n == 2
    assert found.differences[0].without == {42: "a value is undefined"}
    assert "dfa, seed 42: undefined: the loss is infinite" in found.notes()


def test_layers_are_not_pooled_as_if_they_were_seeds() -> None:
    with pytest.raises(SondeError, match="grad_norm is measured at every layer: choose one with --layer, 0 … 2"):
        compare(rules(), metric="grad_norm")
    found = compare(rules(), metric="grad_norm", layer=2)
    assert [(group.summary.mean, group.summary.n) for group in found.groups] == [(2.0, 3)] * 3
    with pytest.raises(SondeError, match="layer 7: grad_norm has the layers 0, 1, 2"):
        compare(rules(), metric="grad_norm", layer=7)
    with pytest.raises(SondeError, match="leave out --layer"):
        compare(rules(), layer=1)


def test_an_epoch_is_one_that_every_run_reached() -> None:
    assert compare(rules(), epoch=3).groups[0].summary.mean == pytest.approx(0.1)
    with pytest.raises(SondeError, match="choose one from 0 to 10"):
        compare(rules(), epoch=11)
    found = compare(rules(), metric="grad_norm", layer=0, epoch=3)
    assert found.groups[0].summary.reason == "grad_norm was not measured at epoch 3"


def test_epochs_may_be_the_factor_and_are_printed() -> None:
    stored = store(*(run(config("bp", s, epochs=e), values(e / 100, e)) for e in (5, 10) for s in SEEDS))
    assert compare(stored, factor="epochs").title() == "test_acc by epochs, epochs 5, 10"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"factor": "modle"}, "did you mean 'model'"),
        ({"factor": "seed"}, "the seed pairs runs"),
        ({"metric": "tset_acc"}, "did you mean 'test_acc'"),
        ({"baseline": "adam"}, "no level of rule has that name"),
    ],
)
def test_a_mistake_is_answered_with_the_names_there_are(wanted: dict[str, str], says: str) -> None:
    with pytest.raises(SondeError, match=says):
        compare(rules(), **wanted)  # type: ignore[arg-type]


def test_unfinished_and_diverged_runs_are_left_out_and_named() -> None:
    lost = run(config("fa"), values(0.5), state="diverged")
    found = compare(joined(rules(), store(lost)))
    assert found.left_out == {lost[0].id: "it is diverged; loss or weights are not finite after epoch 10"}
    assert "fa" not in [group.level.name for group in found.groups]
    with pytest.raises(SondeError, match="no complete run"):
        compare(store(lost))


def test_only_names_keys_and_values_there_are() -> None:
    with pytest.raises(SondeError, match="no run has that value; there are bp, dfa, frozen"):
        keep(rules(), {"rule": "fa"})
    with pytest.raises(SondeError, match=r"did you mean 'model\.L'"):
        keep(rules(), {"model.l": 3})
    with pytest.raises(SondeError, match="write key=value"):
        choices(["rule"])


def test_flat_configurations_name_sections_and_differences_count_runs() -> None:
    flat = flatten({"model": {"name": "res", "L": 3}, "probes": {"every": {"kind": "k"}}, "seed": 1})
    assert flat == {"model": "res", "model.L": 3, "probes.every.kind": "k", "seed": 1}
    assert flatten(whole_tree(tiny_config())) == keys(tiny_config())
    assert differing([{"a": 1, "b": 2}, {"a": 1}, {"a": 1}]) == {"b": {"2": 1, "absent": 2}}


@pytest.fixture
def invoke(tmp_path: Path) -> Invoke:
    app = typer.Typer()
    app.command()(command)
    folder = write(rules(), tmp_path / "runs")
    return lambda *words: CliRunner().invoke(app, ["--runs", str(folder), *words])


def test_the_command_prints_n_seeds_interval_and_with_ids_the_runs(invoke: Invoke) -> None:
    printed = invoke("--factor", "rule", "--metric", "test_acc", "--details").output
    assert "dfa − bp" in printed
    assert "42, 123, 456" in printed
    assert "95 % interval" in printed
    ids = [known.id for known in rules().runs]
    assert not any(id in printed for id in ids)
    assert all(id in invoke("--ids").output for id in ids)


def test_the_command_as_json_carries_every_number_n_seeds_and_ids(invoke: Invoke) -> None:
    found = json.loads(invoke("--json", "--baseline", "frozen").output)
    assert found["matched"] is True
    assert found["config"]["model.L"] == 4
    assert [level["level"] for level in found["levels"]] == ["frozen", "bp", "dfa"]
    assert found["levels"][1]["seeds"] == [42, 123, 456]
    assert len(found["levels"][1]["runs"]) == found["levels"][1]["n"] == 3
    bp = found["differences"][0]
    assert bp["mean"] == pytest.approx(0.42)
    assert bp["interval"]["low"] < 0.42 < bp["interval"]["high"]


def test_the_command_refuses_with_an_error_and_only_narrows(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    folder = write(joined(rules(), rules(model__L=8)), tmp_path / "runs")
    refused = CliRunner().invoke(app, ["--runs", str(folder)])
    assert isinstance(refused.exception, SondeError)
    assert "model.L is" in str(refused.exception)
    assert CliRunner().invoke(app, ["--runs", str(folder), "--only", "model.L=8"]).exit_code == 0


def test_the_command_marks_an_unmatched_comparison(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    mixed = [run(config(rule, 1, model__L=L), values(0.5)) for rule, L in (("bp", 4), ("dfa", 8))]
    folder = write(store(*mixed), tmp_path / "runs")
    printed = CliRunner().invoke(app, ["--runs", str(folder), "--unmatched"]).output
    assert "UNMATCHED" in printed
    assert "UNMATCHED: the runs also differ in model.L." in printed
    printed = CliRunner().invoke(app, ["--runs", str(folder), "--unmatched", "--details"]).output
    assert "unmatched: the runs also differ in model.L (4, 8)" in printed


def test_healthy_rows_compare_too() -> None:
    stored = store(*(run(config(rule, s), healthy(s)) for rule in ("bp", "fa") for s in SEEDS))
    assert compare(stored, metric="credit_cosine/null", layer=1).differences[0].summary.mean == 0


def test_runs_that_were_not_made_with_the_same_code_are_named() -> None:
    def made(dirty: bool) -> list[dict]:
        git = {"commit": "a1b2c3d4e5f6", "dirty": dirty}
        return [{"environment": {"packages": {"sonde": "0.1.0", "torch": "2.9"}, "git": git}}]

    def found(dirty: str) -> Runs:
        return store(*(run(config(rule, 1), values(0.5), sessions=made(rule == dirty)) for rule in ("bp", "dfa")))

    same, mixed = compare(found("none")), compare(found("dfa"))
    assert not any("same code" in note for note in same.notes())
    (said,) = [note for note in mixed.notes() if "same code" in note]
    assert "sonde 0.1.0 (commit a1b2c3d4e5 with uncommitted changes), torch 2.9 (1 run)" in said
    assert [len(runs) for runs in as_json(mixed)["made_with"].values()] == [1, 1]


def test_an_option_that_some_runs_leave_at_its_default_is_compared_by_that_default(tmp_path: Path) -> None:
    """The stored configuration leaves a younger option out at its default, as runs did that are older than it."""
    for momentum in (0.0, 0.9):
        optimiser = Optimiser(name="sgd", momentum=momentum)
        for seed in (1, 2):
            sonde.train(tiny_config(optimiser=optimiser, epochs=1, seed=seed), runs=tmp_path)
    stored = sonde.load(tmp_path)
    assert sum("momentum" in run.config["optimiser"] for run in stored.runs) == 2
    assert {config["optimiser"]["momentum"] for config in stored.configs.values()} == {0.0, 0.9}
    found = compare(stored, factor="optimiser.momentum", metric="test_loss")
    assert [group.level.label for group in found.groups] == ["0.0", "0.9"]
    assert found.matched
    assert len(keep(stored, {"optimiser.momentum": 0.0})) == 2
