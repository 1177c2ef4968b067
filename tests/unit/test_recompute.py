"""`sonde recompute`: what it finds, what it cannot say and why, and how it is asked."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import safetensors.torch
import torch

import sonde
import sonde.core.errors
import sonde.core.generators
from conftest import Sonde, tiny_config
from sonde.analysis.recompute import recompute
from sonde.analysis.recompute.stored import read_last_epoch
from sonde.config import Optimiser, Probing, RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop, DirectFeedback, StateBridge
from sonde.store.folder import create_run, parquet, put_manifest, read_manifest, read_tensors
from sonde.store.listing import find_run
from sonde.store.run import open_run
from sonde.tasks import Teacher
from sonde.training.program import unpack
from stores import at, forge, memory

CONFIG = tiny_config(
    model=ResidualMLP(d=8, L=2, w2_std=0.3),
    rule=DirectFeedback(),
    task=Teacher(inputs=8, samples=64, test_samples=32, d=8, classes=4),
    probes=Probing(size=8, directions=3),
    epochs=2,
    log="epoch",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sonde.train(CONFIG, runs=tmp_path / "runs")
    return tmp_path / "runs" / CONFIG.id


def edited(folder: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Path:
    """The run with other rows."""
    rows = pl.read_parquet(folder / "metrics.parquet")
    forge(folder, "metrics.parquet", parquet(change(rows)))
    return folder


def at_layer_1(metric: str) -> pl.Expr:
    return (pl.col("metric") == metric) & (pl.col("layer") == 1) & (pl.col("epoch") == 2)


@pytest.mark.parametrize(
    "metric",
    [
        "hidden_norm",
        "credit_cosine",
        "credit_cosine/null_std",
        "rho/null",
        "rho/null_std",
        "nudge[0.01]/bp",
        "grad_norm",
    ],
)
def test_a_value_that_is_off_by_a_hundred_millionth_differs(folder: Path, metric: str) -> None:
    off = pl.when(at_layer_1(metric)).then(pl.col("value") + 1e-8).otherwise("value")
    found = recompute(read_last_epoch(open_run(edited(folder, lambda rows: rows.with_columns(value=off)))))
    wrong = [line.wrong for line in found.lines if line.wrong is not None]
    assert [(one.metric, one.layer) for one in wrong] == [(metric, 1)]
    assert wrong[0].absolute == pytest.approx(1e-8, rel=1e-3)


def test_a_value_stored_as_undefined_or_of_other_samples_differs(folder: Path) -> None:
    undefined = [
        pl.when(at_layer_1("rho")).then(math.nan).otherwise("value").alias("value"),
        pl.when(at_layer_1("rho")).then(False).otherwise("defined").alias("defined"),
        pl.when(at_layer_1("credit_cosine")).then(7).otherwise("samples").alias("samples"),
    ]
    found = recompute(read_last_epoch(open_run(edited(folder, lambda rows: rows.with_columns(undefined)))))
    wrong = {line.metric: line.wrong.words for line in found.lines if line.wrong is not None}
    assert wrong.keys() == {"rho", "credit_cosine"}
    assert wrong["rho"].startswith("rho at layer 1: stored undefined, by its definition ")
    assert "(n = 7), by its definition" in wrong["credit_cosine"]


def test_other_weights_than_the_measured_ones_are_noticed(folder: Path) -> None:
    weights = safetensors.torch.load(read_tensors(folder, "weights"))
    weights["blocks.1.w2.weight"][0, 0] += 1e-5
    forge(folder, "weights.safetensors", safetensors.torch.save(weights))
    wrong = {line.metric for line in recompute(read_last_epoch(open_run(folder))).lines if line.wrong is not None}
    assert {"loss", "grad_norm", "credit_cosine", "rho", "drift[…]"} <= wrong


def test_other_feedback_than_that_which_trained_is_noticed(folder: Path) -> None:
    other = replace(CONFIG, seed=7)
    sonde.train(other, runs=folder.parent)
    forge(folder, "rule.safetensors", (folder.parent / other.id / "rule.safetensors").read_bytes())
    wrong = {line.metric for line in recompute(read_last_epoch(open_run(folder))).lines if line.wrong is not None}
    assert {"credit_norm", "credit_cosine", "rho"} <= wrong
    assert not any(metric.endswith(("/bp", "/null")) or metric == "grad_norm" for metric in wrong)


def test_what_is_measured_during_the_epoch_is_named_and_not_recomputed(tmp_path: Path) -> None:
    config = replace(CONFIG, rule=StateBridge(), log="step")
    sonde.train(config, runs=tmp_path)
    found = recompute(read_last_epoch(open_run(tmp_path / config.id)))
    assert found.not_recomputed == {
        "measured during the epoch; only its end is stored": [
            "batch_loss",
            "train_loss",
            "state_pred_error",
            "train_acc",
        ]
    }
    assert not found.wrong


def forget(folder: Path, *names: str) -> Path:
    """The run as a version that did not store these tensors left it."""
    manifest = read_manifest(folder)
    put_manifest(folder, replace(manifest, files={k: v for k, v in manifest.files.items() if k not in names}))
    return folder


def test_a_run_without_the_rules_state_says_what_cannot_be_recomputed_and_why(folder: Path) -> None:
    found = recompute(read_last_epoch(open_run(forget(folder, "initial", "rule"))))
    reasons = found.not_recomputed
    assert reasons[f"stored by {sonde.__version__} without the weights at initialisation"] == ["drift[…]"]
    credit = reasons[f"stored by {sonde.__version__} without the rule's state"]
    assert set(credit) == {
        "credit_norm",
        "credit_cosine",
        "rho",
        *(f"nudge[{eta}]" for eta in (0.001, 0.01, 0.1)),
    }
    null = reasons[f"stored by {sonde.__version__}, whose null was one random vector a sample"]
    assert set(null) == {f"{metric}/{end}" for metric in ("credit_cosine", "rho") for end in ("null", "null_std")}
    agreeing = {line.metric for line in found.lines if line.verdict == "agrees"}
    assert {"grad_norm", "grad_per_error", "credit_cosine/bp", "nudge[0.01]/null", "test_loss"} <= agreeing


def test_bp_owns_nothing_and_is_recomputed_without_a_state(tmp_path: Path) -> None:
    config = replace(CONFIG, rule=Backprop())
    sonde.train(config, runs=tmp_path)
    found = recompute(read_last_epoch(open_run(forget(tmp_path / config.id, "rule"))))
    assert {"credit_cosine", "rho"} <= {line.metric for line in found.lines if line.verdict == "agrees"}


def test_undefined_stays_undefined_in_a_run_that_diverged(tmp_path: Path) -> None:
    config = replace(CONFIG, optimiser=Optimiser(lr=1e38))
    assert sonde.train(config, runs=tmp_path).state == "diverged"
    found = recompute(read_last_epoch(open_run(tmp_path / config.id)))
    assert not found.wrong, [line.wrong.words for line in found.lines if line.wrong is not None]
    assert {line.undefined for line in found.lines if line.metric in ("rho", "loss", "grad_norm")} == {1, 3}


@pytest.mark.parametrize("url", [True, False], ids=["memory", "disk"])
@pytest.mark.parametrize("stops", [0, 3])
def test_an_ended_run_holds_its_initial_weights_and_its_rule_however_often_it_stopped(
    stops: int, url: bool, tmp_path: Path
) -> None:
    config = replace(CONFIG, rule=StateBridge())
    with memory():
        root = at("memory://bucket/runs") if url else tmp_path
        for _ in range(stops):
            sonde.train(config, runs=root, should_stop=lambda: True)
        sonde.train(config, runs=root)
        sonde.train(config, runs=tmp_path / "whole")
        stored, whole = root / config.id, tmp_path / "whole" / config.id
        assert read_manifest(stored).files == {
            name: f"{name}.{'parquet' if name == 'metrics' else 'safetensors'}"
            for name in ("metrics", "weights", "initial", "rule")
        }
        for name in ("weights", "initial", "rule"):
            assert read_tensors(stored, name) == read_tensors(whole, name)
        assert not recompute(read_last_epoch(open_run(stored))).wrong
    initial = safetensors.torch.load(read_tensors(whole, "initial"))
    again = config.model.build(config.signature, sonde.core.generators.generator(config.seed, "init"))
    assert all(torch.equal(value, initial[name]) for name, value in again.named_parameters())
    assert unpack(read_tensors(whole, "rule")).keys() == {"net", "optimiser", "steps"}


def test_the_command_prints_a_table_and_ends_with_1_where_something_differs(folder: Path, sonde: Sonde) -> None:
    done = sonde("recompute", CONFIG.id[:16])
    assert f"{CONFIG.id}, epoch 2" in done.stdout
    assert "largest relative difference, float64: " in done.stdout
    assert "not recomputed: train_loss, train_acc (measured during the epoch" in done.stdout
    edited(folder, lambda rows: rows.with_columns(pl.col("value") * 1.001))
    done = sonde("recompute", CONFIG.id, "--metric", "rho", check=False)
    assert done.returncode == 1
    assert "differs: rho at layer 0: stored " in done.stdout
    assert "hidden_norm" not in done.stdout
    done = sonde("recompute", CONFIG.id, "--metric", "rho/bp", "--metric", "loss", "--json", check=False)
    answer = json.loads(done.stdout)
    assert [line["metric"] for line in answer["metrics"]] == ["loss", "rho/bp"]
    assert answer["agrees"] is False
    assert answer["metrics"][0]["largest_relative"] == pytest.approx(0.001, rel=1e-2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing-like-it"], "no run in runs begins with 'nothing-like-it': there are: residual_mlp"),
        (["residual_mlp-dfb-teacher"], "did you mean 'residual_mlp-dfa-teacher"),
        (
            ["residual_mlp-dfa", "--metric", "roh"],
            "no metric 'roh' was measured at the last epoch: did you mean 'rho'",
        ),
        (["residual_mlp-dfa", "--runs", "absent"], "absent does not exist"),
    ],
)
def test_a_mistake_is_one_line_that_states_the_fix(folder: Path, sonde: Sonde, words: list[str], message: str) -> None:
    done = sonde("recompute", *words, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_is_found_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    for name in ("plain-1", "plain-12", "res-1"):
        create_run(tmp_path / name, {}, {})
    assert find_run(tmp_path, "plain-1") == "plain-1"
    assert find_run(tmp_path, "r") == "res-1"
    with pytest.raises(
        sonde.core.errors.SondeError, match=r"2 runs in .* begin with 'pl': plain-1 and plain-12; give more"
    ):
        find_run(tmp_path, "pl")


def test_an_unfinished_run_is_to_be_resumed_first(tmp_path: Path) -> None:
    config: RunConfig = CONFIG
    sonde.train(config, runs=tmp_path, should_stop=lambda: True)
    with pytest.raises(
        sonde.core.errors.SondeError, match="is interrupted and has epoch 0 of 2 epochs: resume it first"
    ):
        read_last_epoch(open_run(tmp_path / config.id))


def test_a_guest_is_recomputed_where_it_has_a_definition_and_named_where_it_has_none(tmp_path: Path) -> None:
    files = Path(__file__).parents[1] / "plugin_files"
    ruled = replace(CONFIG, rule=sonde.plugin("rule", f"{files / 'signs.py'}:Signs"))
    sonde.train(ruled, runs=tmp_path)
    found = recompute(read_last_epoch(open_run(tmp_path / ruled.id)))
    assert not found.wrong
    (reason,) = [why for why in found.not_recomputed if "plugin" in why]
    assert "rho/null" in found.not_recomputed[reason]
    assert "credit_cosine" not in found.not_recomputed[reason]  # the program has named it: its own code is asked
    built = replace(CONFIG, model=sonde.plugin("model", f"{files / 'funnel.py'}:funnel"))
    sonde.train(built, runs=tmp_path)
    with pytest.raises(sonde.core.errors.SondeError, match="network from outside"):
        read_last_epoch(open_run(tmp_path / built.id))
