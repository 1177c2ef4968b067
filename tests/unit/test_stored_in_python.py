"""What `sonde.load` gives a program or a notebook: a frame, short words, HTML in which nothing is obeyed, figures."""

import builtins
import io
import sys
from pathlib import Path

import polars as pl
import pytest
from PIL import Image
from test_watch_store import watched

import sonde
from conftest import tiny_config
from sonde.analysis.diagnosis.finding import Finding, Findings
from sonde.core.errors import SondeError
from sonde.show.figures.render import Rendered
from sonde.show.stored_runs import StoredRuns
from sonde.training.session import EpochProgress
from sonde.training.train import ProgressLine
from stores import EPOCHS, config, healthy, run, store, write

HOSTILE = "<script>alert(1)</script>"
RULES = {"bp": 0.9, "dfa": 0.6, "frozen": 0.5}


def of_rules(**changes: object) -> StoredRuns:
    runs = (
        run(config(rule, seed, **changes), healthy(seed, accuracy))
        for rule, accuracy in RULES.items()
        for seed in (1, 2, 3)
    )
    return StoredRuns.of(store(*runs), "runs")


def test_the_frame_has_every_row_in_order_beside_what_its_run_was() -> None:
    stored = of_rules()
    frame = stored.frame()
    assert frame.select(stored.rows.columns).equals(stored.rows)
    assert frame.columns[:6] == ["run", "model", "rule", "task", "seed", "state"]
    for id, rule, seed, task in frame.select("run", "rule", "seed", "task").unique().iter_rows():
        known = stored[id].config
        assert (rule, seed, task) == (known["rule"]["name"], known["seed"], known["task"]["name"])


def test_a_notebook_shows_runs_of_several_tasks() -> None:
    trees = [config(seed=1), config(seed=1, task__name="parity")]
    runs = [run(tree, {("test_acc", EPOCHS, None): 0.5}, task_label=tree["task"]["name"]) for tree in trees]
    shown = StoredRuns.of(store(*runs), "runs")._repr_html_()
    assert shown.count(">task</th>") == 1
    for tree in trees:
        assert f">{tree['task']['name']}</td>" in shown


def test_the_frame_has_the_keys_in_which_runs_differ_and_no_others() -> None:
    changes = [
        {"model__d": 32, "optimiser__lr": 1, "model__out_ln": True},
        {"model__d": 64, "optimiser__lr": 0.5, "model__out_ln": False, "rule__credit_scale": None},
    ]
    runs = [run(config(seed=1, **change), {("test_acc", EPOCHS, None): 0.5}) for change in changes]
    frame = StoredRuns.of(store(*runs), "runs").frame().sort("model.d")
    assert frame["model.d"].to_list() == [32, 64]
    assert frame["model.d"].dtype == pl.Int64
    assert frame["optimiser.lr"].to_list() == [1.0, 0.5]
    assert frame["model.out_ln"].to_list() == [True, False]
    assert frame["rule.credit_scale"].to_list() == ["none", None]
    assert not {"batch_size", "epochs", "model.L"} & set(frame.columns)


def test_lists_and_mixed_values_are_text_as_only_takes_it() -> None:
    runs = [
        run(config(seed=1, model__out_ln=value, probes__names=names), {("test_acc", EPOCHS, None): 0.5})
        for value, names in ((True, ["loss"]), ("half", ["loss", "rho"]), (2**70, []))
    ]
    frame = StoredRuns.of(store(*runs), "runs").frame()
    assert set(frame["model.out_ln"]) == {"true", "half", str(2**70)}
    assert set(frame["probes.names"]) == {'["loss"]', '["loss", "rho"]', "[]"}


def test_watched_runs_are_in_the_frame_with_the_name_of_their_model(tmp_path: Path) -> None:
    id = watched(tmp_path)
    sonde.train(tiny_config(epochs=1), runs=tmp_path)
    stored = sonde.load(tmp_path)
    frame = stored.frame().filter(run=id)
    assert frame.height == stored.rows.filter(run=id).height > 0
    assert frame["model"].unique().to_list() == ["Sequential"]
    assert frame["rule"].null_count() == frame.height
    assert "module" in frame.columns
    assert repr(stored).startswith("<1 run (1 complete), 1 watched run in ")
    assert id in stored._repr_html_()


def test_a_store_of_nothing_but_watched_runs_has_a_frame(tmp_path: Path) -> None:
    watched(tmp_path)
    assert sonde.load(tmp_path).frame()["seed"].dtype == pl.Null


def test_pandas_has_the_same_values() -> None:
    pytest.importorskip("pandas", reason="pip install 'sonde[pandas]'")
    pytest.importorskip("pyarrow", reason="pip install 'sonde[pandas]'")
    stored = of_rules()
    table = stored.to_pandas()
    assert pl.from_pandas(table, nan_to_null=False)["value"].equals(stored.rows["value"])
    assert list(table.columns) == stored.frame().columns


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pandas(name: str, *rest: object) -> object:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(SondeError, match=r"needs pandas: pip install 'sonde\[pandas\]'"):
        of_rules().to_pandas()


def test_forms_for_a_prompt_are_short() -> None:
    stored = of_rules()
    assert repr(stored) == f"<9 runs (9 complete) in runs, {stored.rows.height:,} rows>"
    assert repr(stored.compare()).startswith("<test_acc by rule, epoch 10: bp 0.9")
    assert len(repr(stored.runs[0])) < 200
    assert len(repr(stored.audit())) < 400
    assert "BP: " in repr(stored.audit())


def test_an_audit_and_a_comparison_are_shown_with_every_number_of_the_commands() -> None:
    stored = of_rules()
    comparison, audited = stored.compare(), stored.audit()
    shown = comparison._repr_html_()
    for group in comparison.groups:
        assert f">{group.level.label}</td>" in shown
    assert "dfa − bp" in shown
    assert "Student&#x27;s t" in shown
    for rule in audited.recipes[0].rules:
        assert f">{rule.label}</td>" in audited._repr_html_()
    assert "D3: is the credit better than chance" in audited._repr_html_()


def test_hostile_names_stay_text_in_everything_a_notebook_shows() -> None:
    values = healthy() | {("test_acc", EPOCHS, None): f"undefined: {HOSTILE}"}
    runs = [
        run(config(rule, 1, scale=HOSTILE), values, label=HOSTILE, rule_label=HOSTILE, task_label=HOSTILE)
        for rule in ("bp", "dfa")
    ]
    stored = StoredRuns.of(store(*runs), HOSTILE)
    finding = Finding(name="nan_origin", level="certain", modules=(HOSTILE,), evidence=(HOSTILE,), explained_by=HOSTILE)
    shown = [stored, stored.compare(), stored.audit(), Findings([finding]), Rendered(HOSTILE, {"png": b""})]
    for one in shown:
        page = one._repr_html_()
        assert "<script" not in page
        assert "&lt;script&gt;" in page


def test_an_undefined_value_is_said_to_be_undefined() -> None:
    runs = [run(config(), {("test_acc", EPOCHS, None): "the loss is infinite"})]
    assert ">undefined</td>" in StoredRuns.of(store(*runs), "runs")._repr_html_()


def test_a_figure_by_name_is_an_image_with_its_caption() -> None:
    drawn = of_rules().figure("accuracy")
    assert Image.open(io.BytesIO(drawn.images["png"])).width > 500
    assert "n = 3" in drawn.caption or "3 seeds" in drawn.caption
    assert "data:image/png;base64," in drawn._repr_html_()


def test_a_figure_of_several_recipes_is_refused_and_only_keeps_one(tmp_path: Path) -> None:
    both = [run(config(seed=1, model__d=d), healthy()) for d in (32, 64)]
    stored = StoredRuns.of(store(*both), "runs")
    with pytest.raises(SondeError, match=r"differ in width \(32 and 64\)"):
        stored.figure("accuracy")
    alone = stored.only("model.d=32")
    with pytest.warns(DeprecationWarning, match="use accuracy"):
        former = alone.figure("audit_accuracy")
    assert alone.figure("accuracy").images == former.images
    with pytest.raises(SondeError, match="unknown figure 'acuracy': did you mean 'accuracy'"):
        stored.figure("acuracy")
    with pytest.raises(SondeError, match="figure 'three_networks' cannot be drawn: "):
        stored.figure("three_networks")


def test_load_reads_what_was_written(tmp_path: Path) -> None:
    stored = of_rules()
    read = sonde.load(write(stored.store, tmp_path / "runs"))
    assert read.frame().sort("run").equals(stored.frame().sort("run"))
    assert read.source == str(tmp_path / "runs")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_training_shows_one_line_on_a_terminal_and_takes_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    config = tiny_config()
    sonde.train(config, runs=tmp_path)
    lines = terminal.getvalue().split("\r")
    assert "\n" not in terminal.getvalue()
    assert lines[1].startswith(config.id)
    assert f"3/{config.epochs} epochs, loss " in "".join(lines)
    assert lines[-1] == "\x1b[K"


def test_training_prints_nothing_into_a_pipe_or_where_progress_is_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sonde.train(tiny_config(), runs=tmp_path / "a")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    sonde.train(tiny_config(), runs=tmp_path / "b", progress=False)
    assert terminal.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_a_line_is_never_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "40")
    with ProgressLine("a" * 100, 2) as line:
        line(EpochProgress(run="b" * 100, epoch=1, epochs=2, loss=0.5, state="unfinished"))
    assert max(len(part.removesuffix("\x1b[K")) for part in terminal.getvalue().split("\r")) == 39
