"""The epoch-by-epoch files of the snapshots study and the results of the cifar10 study, both ways."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from matplotlib.patches import Rectangle

import sonde
from sonde.analysis.evidence import Evidence
from sonde.config import RunConfig, change
from sonde.core.errors import SondeError
from sonde.show.figures import figures_of
from sonde.show.paper import READERS, WRITERS, from_files
from sonde.studies import STUDIES
from sonde.studies.study import gather

TINY = {"epochs": 2, "model.d": 8, "probes.size": 16, "probes.directions": 2, "batch_size": 256}


def tiny(config: RunConfig) -> RunConfig:
    more = {"task.samples": 256, "task.test_samples": 64} if config.task.label == "teacher" else {}
    return change(config, {**TINY, **more, "model.L": 2})


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Evidence]:
    """Both studies at a size for tests, really trained; seed 7 of the first network and two rules only."""
    root = tmp_path_factory.mktemp("runs")
    found = {}
    for study in ("snapshots", "cifar10"):
        configs = [tiny(config) for config in STUDIES[study].configs("quick", [42])]
        configs += [change(config, {"seed": 7}) for config in configs[:1]]
        for config in configs:
            sonde.train(config, runs=root)
        found[study] = gather(sonde.load(root), configs, "runs").evidence
    return found


@pytest.fixture
def folder(evidence: dict[str, Evidence], tmp_path: Path) -> Path:
    for study, known in evidence.items():
        for name, sheet in WRITERS[study](known).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(json.dumps(sheet.content(), allow_nan=False))
    return tmp_path


def test_every_file_has_its_exact_place_and_keys(folder: Path) -> None:
    names = {str(file.relative_to(folder / "results")) for file in folder.rglob("*.json")}
    assert names == {
        "snapshot_evolution_v2/snapshot_evolution_s42.json",
        "snapshot_evolution_v2/snapshot_evolution_s7.json",
        "snapshot_no_outln_v1/snapshot_noLN_s42.json",
        "snapshot_no_outln_v1/snapshot_fa_canonical_noln_s42.json",
        "snapshot_vit_v1/snapshot_vit_s42.json",
        "snapshot_vit_v1/snapshot_fa_canonical_s42.json",
        "snapshot_synth_v1/snapshot_synth_a1.0_L2_s42.json",
        "snapshot_synth_v1/snapshot_fa_canonical_s42.json",
        "cifar10/results_cifar10.json",
        "cifar10_seed7/results_cifar10.json",
    }

    def read(name: str) -> Any:
        return json.loads((folder / "results" / name).read_text())

    resmlp = read("snapshot_evolution_v2/snapshot_evolution_s42.json")
    assert resmlp.keys() == {"bp_log", "dfa_log"}
    assert [entry["epoch"] for entry in resmlp["dfa_log"]] == [0, 1, 2]
    keys = {"epoch", "hidden_norms", "bp_grad_norms_per_sample_med", "acc_eval"}
    assert resmlp["bp_log"][0].keys() == keys
    assert resmlp["dfa_log"][0].keys() == keys | {"gamma_dfa"}
    assert len(resmlp["dfa_log"][1]["gamma_dfa"]) == len(resmlp["dfa_log"][1]["hidden_norms"]) == 3
    vit = read("snapshot_vit_v1/snapshot_vit_s42.json")["bp_log"][0]
    assert vit.keys() == {"epoch", "hidden_norms_cls", "bp_grad_per_sample_l2_med", "acc_eval"}
    assert read("snapshot_evolution_v2/snapshot_evolution_s7.json").keys() == {"bp_log"}
    cifar = read("cifar10/results_cifar10.json")["42"]
    assert cifar.keys() == {"bp", "dfa", "state_bridge", "credit_bridge"}
    assert cifar["state_bridge"]["log"].keys() == {"train_acc", "test_acc", "state_pred_error"}
    assert [len(values) for values in cifar["state_bridge"]["log"].values()] == [2, 2, 2]
    assert cifar["dfa"]["diagnostics"].keys() == {"bp_cosine", "perturbation_rho", "nudging"}
    assert cifar["dfa"]["diagnostics"]["nudging"].keys() == {"0.001", "0.01", "0.1"}
    assert len(cifar["dfa"]["diagnostics"]["nudging"]["0.01"]) == 3
    assert "blocks.0.w1.weight" in cifar["dfa"]["drift"]


def test_gradients_in_the_files_are_those_of_the_batch_mean_loss(evidence: dict[str, Evidence], folder: Path) -> None:
    runs = evidence["snapshots"].runs.filter(model="residual_mlp", rule="bp", out_ln=True, seed=42)
    stored = evidence["snapshots"].rows.filter(run=runs["run"][0], metric="grad_norm", epoch=2).sort("layer")
    log = json.loads((folder / "results/snapshot_evolution_v2/snapshot_evolution_s42.json").read_text())["bp_log"]
    assert log[2]["bp_grad_norms_per_sample_med"] == [value / 16 for value in stored["value"]]


@pytest.mark.parametrize("study", ["snapshots", "cifar10"])
def test_what_is_written_is_read_back(study: str, evidence: dict[str, Evidence], folder: Path) -> None:
    again = from_files(folder)[study]
    known = evidence[study]

    def values(of: Evidence) -> dict[tuple[Any, ...], float]:
        rows = of.rows.join(of.runs, on="run").filter(pl.col("defined"))
        if study == "snapshots":  # the layout has no place for FA on the network with a terminal LayerNorm
            rows = rows.filter(
                ~((pl.col("rule") == "fa") & pl.col("out_ln").fill_null(False) & (pl.col("model") == "residual_mlp"))
            )
        keys = ["model", "rule", "out_ln", "seed", "metric", "epoch", "layer", "value", "probe_size"]
        found = {}
        for *key, value, size in rows.select(keys).iter_rows():
            found[tuple(key)] = value / size if key[4] == "grad_norm" else value
        return found

    ours, theirs = values(known), values(again)
    assert theirs
    if study == "cifar10":
        theirs = {(model, rule, True, *rest): v for (model, rule, _, *rest), v in theirs.items()}
    for key, value in theirs.items():
        assert value == pytest.approx(ours[key], rel=1e-12), key


def change_file(folder: Path, name: str, old: str, new: str) -> None:
    file = folder / "results" / name
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "snapshot_vit_v1/snapshot_vit_s42.json",
            "hidden_norms_cls",
            "hidden_norms",
            r"bp_log\[0\]\.hidden_norms_cls: missing",
        ),
        (
            "snapshot_evolution_v2/snapshot_evolution_s42.json",
            '"epoch": 1',
            '"epoch": -1',
            r"bp_log\[1\]\.epoch: expected a whole number",
        ),
        (
            "snapshot_evolution_v2/snapshot_evolution_s42.json",
            '"acc_eval": ',
            '"acc_eval": NaN, "x": ',
            r"bp_log\[0\]\.acc_eval: expected a finite number, found NaN",
        ),
        (
            "cifar10/results_cifar10.json",
            '"test_acc": [',
            '"test_acc": [0.5, ',
            r"42\.bp\.log\.train_acc: expected 3 values, found 2",
        ),
        (
            "snapshot_evolution_v2/snapshot_evolution_s42.json",
            '"epoch": 1',
            '"epoch": 0',
            r"bp_log\[1\]\.epoch: epoch 0 is there twice: keep one entry of it",
        ),
        (
            "snapshot_evolution_v2/snapshot_evolution_s42.json",
            '"hidden_norms": [',
            '"hidden_norms": [-1e-3, ',
            r"bp_log\[0\]\.hidden_norms\[0\]: expected 0 or more, found -0\.001",
        ),
        (
            "snapshot_vit_v1/snapshot_vit_s42.json",
            '"bp_grad_per_sample_l2_med": [',
            '"bp_grad_per_sample_l2_med": [-',
            r"bp_log\[0\]\.bp_grad_per_sample_l2_med\[0\]: expected 0 or more, found -",
        ),
        (
            "snapshot_evolution_v2/snapshot_evolution_s42.json",
            '"acc_eval": 0.',
            '"acc_eval": 1.',
            r"bp_log\[0\]\.acc_eval: expected a number from 0 to 1, found 1\.",
        ),
        (
            "snapshot_evolution_v2/snapshot_evolution_s42.json",
            '"gamma_dfa": [',
            '"gamma_dfa": "all", "x": [',
            r"dfa_log\[0\]\.gamma_dfa: expected a list, found the text 'all'",
        ),
        (
            "cifar10/results_cifar10.json",
            '"test_acc": [0.',
            '"test_acc": [-0.',
            r"42\.bp\.log\.test_acc\[0\]: expected a number from 0 to 1, found -0\.",
        ),
        (
            "cifar10/results_cifar10.json",
            '"bp_cosine": [1.0',
            '"bp_cosine": [7.0',
            r"42\.bp\.diagnostics\.bp_cosine\[0\]: expected a number from -1",
        ),
        ("cifar10/results_cifar10.json", '"dfa"', '"dfaa"', r"42\.dfaa: expected one of bp, dfa"),
        ("cifar10/results_cifar10.json", '"42"', '"first"', r"first: expected a seed"),
    ],
)
def test_a_malformed_file_names_file_and_key(folder: Path, name: str, old: str, new: str, message: str) -> None:
    change_file(folder, name, old, new)
    with pytest.raises(SondeError, match=rf"{name.split('/')[1]}: {message}"):
        from_files(folder)


def test_a_missing_file_or_log_only_makes_n_smaller(folder: Path) -> None:
    (folder / "results/snapshot_no_outln_v1/snapshot_noLN_s42.json").unlink()
    runs = from_files(folder)["snapshots"].runs
    assert set(runs.filter(out_ln=False)["rule"]) == {"fa"}
    assert runs.filter(model="residual_mlp", out_ln=True, rule="bp").height == 2
    assert runs.filter(model="residual_mlp", out_ln=True, rule="dfa").height == 1


@pytest.mark.parametrize("gamma", [0.25, float("nan"), None, KeyError])
def test_gamma_that_is_one_number_or_missing_stops_nothing(folder: Path, gamma: Any) -> None:
    file = folder / "results/snapshot_evolution_v2/snapshot_evolution_s42.json"
    document = json.loads(file.read_text())
    before = from_files(folder)["snapshots"].rows
    for entry in document["dfa_log"]:
        del entry["gamma_dfa"]
        if gamma is not KeyError:
            entry["gamma_dfa"] = gamma
    file.write_text(json.dumps(document))
    gone = pl.col("run").str.contains("evolution_s42") & (pl.col("metric") == "credit_cosine")
    assert before.filter(gone).height == 9
    assert from_files(folder)["snapshots"].rows.equals(before.filter(~gone))


def test_null_is_undefined_in_diagnostics(folder: Path) -> None:
    change_file(folder, "cifar10/results_cifar10.json", '"perturbation_rho": [', '"perturbation_rho": [null, ')
    with pytest.raises(SondeError, match="expected 3 values, found 4"):
        from_files(folder)
    file = folder / "results/cifar10/results_cifar10.json"
    document = json.loads(file.read_text())
    document["42"]["bp"]["diagnostics"]["perturbation_rho"][:] = [None, 0.5, 1.0]
    file.write_text(json.dumps(document))
    known = READERS["cifar10"](folder)
    assert known is not None
    rho = known.rows.filter(pl.col("run").str.ends_with("42.bp"), metric="rho").sort("layer")
    assert rho["defined"].to_list() == [False, True, True]
    assert rho["reason"][0] == "null in the file"


FIGURES_OF = [
    ("snapshots", "stream_by_terminal_ln"),
    ("snapshots", "stream_of_vit"),
    ("snapshots", "three_networks"),
    ("cifar10", "accuracy"),
    ("cifar10", "weight_drift"),
    ("cifar10", "state_vs_credit"),
    ("cifar10", "summary"),
]


def drawn(study: str, name: str, evidence: Evidence) -> list[list[list[float]]]:
    """The data of every line and bar, panel by panel."""
    figure, _ = figures_of(study)[name].draw(evidence)
    panels = []
    for ax in figure.axes:
        measured = [line for line in ax.lines if not str(line.get_label()).startswith("guessing")]  # of known classes
        lines = [line.get_xydata().tolist() for line in measured if len(line.get_xydata())]
        bars = [[patch.get_width(), patch.get_height()] for patch in ax.patches if isinstance(patch, Rectangle)]
        panels.append([*lines, bars])
    return panels


@pytest.mark.parametrize(("study", "name"), FIGURES_OF)
def test_figures_from_exported_files_draw_the_same_data_as_from_runs(
    study: str, name: str, evidence: dict[str, Evidence], folder: Path
) -> None:
    from_runs, again = evidence[study], from_files(folder)[study]
    ours, theirs = drawn(study, name, from_runs), drawn(study, name, again)
    assert ours
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_allclose(np.array(a, float), np.array(b, float), rtol=1e-12, equal_nan=True)


def test_a_run_that_was_not_tested_after_every_epoch_is_not_exported(evidence: dict[str, Evidence]) -> None:
    """Epochs 0 and 2 are as many as epochs 1 and 2, and not the same."""
    known = evidence["cifar10"]
    untested = (pl.col("metric") == "test_acc") & (pl.col("epoch") == 1)
    less = Evidence(known.rows.filter(~untested), known.runs, known.source)
    for sheet in WRITERS["cifar10"](less).values():
        with pytest.raises(SondeError, match=r"not tested after every epoch.*probes\.test_every=1"):
            sheet.content()
