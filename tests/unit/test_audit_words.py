"""The verdict in words, the table and the command: computed from the data they stand on."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sentences import long_sentences
from sonde.analysis.audit import Audit, audit
from sonde.analysis.audit_text import audit_columns, audit_footnotes, audit_rows, sentence, verdict
from sonde.cli.compare import audit_command as command
from sonde.store.run import Runs
from stores import Key, Value, changed, config, healthy, run, store, without, write

SEEDS = (42, 123, 456)


def exploded(seed: int, growth: float = 1.9e3, since: int = 8, accuracy: float = 0.307) -> dict[Key, Value]:
    """DFA: the stream explodes below a LayerNorm, training does not resolve the gradient, the blocks harm."""
    why = "differences are below the resolution of the arithmetic"

    def change(metric: str, epoch: int, layer: int | None) -> Value:
        if epoch >= since and metric == "growth":
            return growth
        if epoch >= since and metric == "grad_per_error":
            return 4e-6
        if epoch >= since and metric == "grad_resolution":
            return 0.2
        if epoch >= since and metric == "hidden_norm":
            return 12e5
        return why if epoch >= since and metric in ("rho", "rho/bp") else None

    return changed(healthy(seed, accuracy=accuracy), change)


def frozen(seed: int) -> dict[Key, Value]:
    return without(healthy(seed, accuracy=0.35 + 1e-3 * math.cos(seed)), "credit_cosine", "rho", "nudge")


def stored(dfa: Callable[[int], dict[Key, Value]] = exploded, seeds: tuple[int, ...] = SEEDS) -> Runs:
    made = {"bp": lambda seed: healthy(seed, cosine=1.0), "dfa": dfa, "frozen": frozen}
    return store(*(run(config(rule, seed), make(seed)) for rule, make in made.items() for seed in seeds))


def words(found: Audit, rule: str = "dfa") -> str:
    return next(sentence(known) for known in found.recipes[0].rules if known.rule == rule)


def test_a_degenerate_rule_is_told_in_sentences_with_its_numbers() -> None:
    found = words(audit(stored()))
    assert found.startswith("DFA on digits: ‖h‖ grows up to 1900× over a block, and ‖h_L‖ is 1.0e5× its value at init.")
    assert "D1 fires from epoch 8: more than 50× over blocks 0–3 and ‖h_L‖ more than 300× init." in found
    assert "hides the growth from the loss; ‖g_L‖·‖h_L‖/‖e‖ is 0.2× its value at init." in found
    assert "D2 fires from epoch 8: the BP gradient is not resolved at layers 0–4." in found
    assert "Its least cosine with the float64 gradient is 0.2." in found
    assert "undefined (not evidence: ρ of BP's own gradient is undefined at layer 1 (differences are below" in found
    assert "blocks hurt: −4.23 [−4.3, −4.16] points of test accuracy over frozen blocks, n = 3; 6.5 % more" in found


def test_a_healthy_rule_gets_equally_plain_sentences() -> None:
    found = words(audit(stored(healthy)))
    assert found.startswith("DFA on digits: ‖h‖ grows up to 1.5× over a block, and ‖h_L‖ is 1.8× its value at init.")
    assert "resolved: its least cosine with the float64 gradient is 1 and its least ρ in float64 is 0.99." in found
    assert "The credit is above chance at layers 1–4. Mean over layers 1–3: cosine 0.5 (" in found
    assert "by chance), ρ 0.5 (" in found
    assert "blocks help: +55.1 [+55, +55.1] points of test accuracy over frozen blocks, n = 3; 84.6 % of" in found


@pytest.mark.parametrize("dfa", [exploded, healthy])
def test_no_sentence_of_the_audit_is_long(dfa: Callable[[int], dict[Key, Value]]) -> None:
    found = audit(stored(dfa))
    for rule in found.recipes[0].rules:
        assert not long_sentences(sentence(rule))
    for text in (*audit_footnotes(found.recipes[0]), *found.thresholds.words.values()):
        assert not long_sentences(text)


def test_words_true_only_for_the_run_they_were_written_on_are_impossible() -> None:
    """The sentence follows every number it names."""
    early = words(audit(stored(lambda s: exploded(s, 310.0, 4))))
    assert "grows up to 310× over a block" in early
    assert "from epoch 4: more than 50× over blocks 0–3 and ‖h_L‖ more than 300× init." in early
    assert "blocks help: +6.07 [" in words(audit(stored(lambda s: exploded(s, accuracy=0.41))))
    noisy = {42: 0.36, 123: 0.33, 456: 0.37}
    assert "blocks help is undecided: +0.4" in words(audit(stored(lambda s: exploded(s, accuracy=noisy[s]))))


def test_epochs_that_differ_between_seeds_are_given_as_a_range() -> None:
    found = words(audit(stored(lambda seed: exploded(seed, since={42: 5, 123: 7, 456: 6}[seed]))))
    assert "from epochs 5–7: more than 50× over blocks 0–3 and ‖h_L‖ more than 300× init." in found


def weak(at: dict[int, tuple[int, ...]]) -> Callable[[int], dict[Key, Value]]:
    """Credit at chance at some layers of each seed."""
    return lambda seed: changed(
        healthy(seed), lambda m, e, l: 0.001 if m in ("credit_cosine", "rho") and l in at[seed] else None
    )


def test_chance_is_named_by_layer() -> None:
    found = words(audit(stored(weak(dict.fromkeys(SEEDS, (1, 3))))))
    assert "The credit is above chance at layers 2, 4. It is at chance at layers 1, 3. Mean over" in found
    assert "D3 fires from init on: the credit is not above chance at every layer." in found


def test_layers_at_chance_in_some_seeds_only_are_counted() -> None:
    found = words(audit(stored(weak({42: (1,), 123: (1, 2), 456: (1,)}))))
    assert "above chance at layers 3–4 and layer 2 (2 of 3 seeds)." in found
    assert "at chance at layer 1 and layer 2 (1 of 3 seeds)" in found


def test_bp_and_frozen_are_told_what_they_are() -> None:
    found = audit(stored())
    assert "Its credit is the gradient itself." in words(found, "bp")
    assert words(found, "frozen").endswith("No credit is assigned to layers 1–4. It is the baseline.")


def test_verdicts_list_what_fired_and_what_stays_open() -> None:
    found = {known.rule: verdict(known) for known in audit(stored()).recipes[0].rules}
    assert found == {"bp": "healthy", "dfa": "D1, D2, D4 hurts; D3 not evidence", "frozen": "baseline"}


def test_the_table_has_a_column_for_every_number_and_says_undefined() -> None:
    recipe = audit(stored()).recipes[0]
    table = [dict(zip(audit_columns(recipe), line, strict=True)) for line in audit_rows(recipe)]
    bp, dfa, baseline = table
    assert (bp["rule"], bp["n"], dfa["largest growth over a block"]) == ("BP", "3", "1900 ± 0")
    assert re.fullmatch(r"8\d\.\d\d ± 0\.0\d %", bp["test acc."])
    assert dfa["cosine, layers 1–3 (null, BP)"].endswith("†")
    assert (
        dfa["ρ, layers 1–3 (null, BP)"] == "undefined (undefined, undefined)"
        or "undefined" in dfa["ρ, layers 1–3 (null, BP)"]
    )
    assert dfa["points over frozen"] == "−4.23 [−4.3, −4.16]"
    assert baseline["cosine, layers 1–3 (null, BP)"] == "undefined"
    notes = audit_footnotes(recipe)
    assert any("DFA: ρ undefined: layer 1: differences are below" in note for note in notes)
    assert any("frozen: cosine, ρ, nudge[0.01] undefined: no credit is assigned" in note for note in notes)


def test_one_seed_has_no_spread_and_three_do() -> None:
    one = dict(zip(audit_columns(r := audit(stored(seeds=(42,))).recipes[0]), audit_rows(r)[0], strict=True))
    assert one["n"] == "1"
    assert "±" not in "".join(one.values())


@pytest.fixture
def invoke(tmp_path: Path) -> Callable[..., Result]:
    app = typer.Typer()
    app.command()(command)
    lost = run(config("fa"), healthy(), state="diverged")
    runs = stored()
    folder = write(Runs(runs.rows, [*runs.runs, lost[0]]), tmp_path / "runs")
    return lambda *options: CliRunner().invoke(app, ["--runs", str(folder), *options])


def test_the_command_prints_table_sentences_thresholds_n_seeds_and_ids(invoke: Callable[..., Result]) -> None:
    done = invoke("--details")
    assert done.exit_code == 0, done.output
    for text in (
        "• DFA on digits: ‖h‖ grows up to 1900×",
        "n = 3 (seeds 42, 123, 456)",
        "D1: does the scale hold?",
        "50×",
    ):
        assert text in done.stdout
    assert all(known.id in done.stdout for known in stored().runs)
    assert "• FA on digits: Diverged at epoch 10 in 1 of 1 seed (42)" in done.stdout


def test_the_command_as_json_carries_every_number_n_seeds_ids_and_thresholds(
    invoke: Callable[..., Result],
) -> None:
    found = json.loads(invoke("--json", "--growth", "5000", "--stream", "1e9").stdout)
    assert [known["rule"] for known in found] == ["bp", "dfa", "fa", "frozen"]
    dfa = found[1]
    assert (dfa["n"], dfa["seeds"], len(dfa["runs"])) == (3, [42, 123, 456], 3)
    assert dfa["thresholds"] == {
        "growth": 5000.0,
        "stream": 1e9,
        "resolution": 0.9,
        "deviations": 3.0,
        "ceiling": 0.9,
        "confidence": 0.95,
    }
    assert dfa["questions"]["D1"]["clear"] == [42, 123, 456]
    assert dfa["questions"]["D2"]["fired"] == [42, 123, 456]
    assert dfa["questions"]["D3"]["undefined"]["42"].startswith("not evidence")
    assert dfa["by_run"][0]["questions"]["D2"]["since"] == 8
    assert dfa["rho"]["value"] == {"mean": None, "std": None, "n": 0, "reason": dfa["rho"]["value"]["reason"]}
    assert dfa["credit_cosine"]["layers"] == [1, 2, 3]
    layer = dfa["by_run"][0]["credit"][0]
    assert {"layer", "ceiling", "cosine", "rho", "side", "standing", "reason"} == layer.keys()
    assert {"metric", "value", "null", "null_std", "draws", "excess", "side", "reason"} == layer["rho"].keys()
    assert (dfa["questions"]["D4"]["outcome"], dfa["questions"]["D4"]["points"]["n"]) == ("hurts", 3)
    assert found[2]["diverged"] == [{"run": found[2]["diverged"][0]["run"], "seed": 42, "epoch": 10}]
    assert dfa["config"]["epochs"] == 10


def test_the_command_narrows_with_only(invoke: Callable[..., Result]) -> None:
    found = json.loads(invoke("--json", "--only", "rule=bp").stdout)
    assert [known["rule"] for known in found] == ["bp"]


def test_audit_and_compare_need_no_torch() -> None:
    modules = "sonde.analysis.audit, sonde.analysis.audit_text, sonde.analysis.comparison, sonde.store.readings"
    code = f"import sys, {modules}, sonde.cli.compare; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
