"""`sonde.json`: labels of figures drawn from files are those of the runs behind them, or there are none."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from typer.testing import CliRunner

import sonde as package
from conftest import Sonde
from sonde.cli import app
from sonde.config import change
from sonde.core.errors import SondeError
from sonde.show.figures import figures_of
from sonde.show.paper import from_files
from sonde.studies import STUDIES

SET = {"epochs": 1, "model.L": 2, "probes.size": 16, "probes.directions": 2, "batch_size": 512}
SEEDS = {"cifar10": (42, 7), "snapshots": (42,)}
CIFAR = "results/cifar10/results_cifar10.json"


def words() -> list[str]:
    return [word for key, value in SET.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quick runs of both studies; the cifar10 study lacks Credit Bridge under seed 7."""
    root = tmp_path_factory.mktemp("stored")
    for study, seeds in SEEDS.items():
        for config in STUDIES[study].configs("quick", seeds):
            if (study, config.rule.label, config.seed) != ("cifar10", "Credit Bridge", 7):
                package.train(change(config, SET), runs=root)
    return root


@pytest.fixture(scope="module")
def original(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The export, and what the command printed."""
    out = tmp_path_factory.mktemp("exported") / "E"
    done = CliRunner().invoke(app, ["export", "--runs", str(runs), "--out", str(out), *words()])
    assert done.exit_code == 0, done.output
    return out, done.stdout, done.stderr


@pytest.fixture
def exported(original: tuple[Path, str, str], tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(original[0], tmp_path / "E"))


def said(folder: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """Study and figure → every word drawn on it, and its caption."""
    found = {}
    for study, evidence in from_files(folder).items():
        for name, spec in figures_of(study).items():
            if spec.beside:
                continue
            figure, caption = spec.draw(evidence)
            drawn = " ".join(text.get_text() for text in figure.findobj(Text)).replace("\n", " ")
            found[study, name] = (drawn, caption)
    assert len(found) == 8
    return found


def test_figures_of_exported_quick_runs_name_digits_and_quick_scale_and_the_runs(exported: Path, runs: Path) -> None:
    ids = {run.id for run in package.load(runs).runs}
    for name, (drawn, caption) in said(exported).items():
        assert "digits" in drawn, name
        assert "digits" in caption
        assert "quick scale" in caption
        assert "1,437 training samples, 1 epoch, batch 512" in caption
        for wrong in ("cifar-10", "full scale", "not recorded"):
            assert wrong not in (drawn + caption).lower(), name
        listed = caption.strip().rsplit("runs: ", 1)[1]
        assert set(listed.split(", ")) <= ids or listed.endswith(f"their ids are in {exported}")


def test_without_sonde_json_no_figure_names_a_data_set_or_a_scale(exported: Path) -> None:
    (exported / "sonde.json").unlink()
    for name, (drawn, caption) in said(exported).items():
        assert "data set not recorded" in drawn, name
        assert "data set not recorded" in caption
        assert "scale not recorded" in caption
        for wrong in ("cifar-10", "digits", "teacher", "full scale", "quick scale"):
            assert wrong not in (drawn + caption).lower(), name


def test_the_export_says_what_it_holds_and_what_it_lacks(original: tuple[Path, str, str]) -> None:
    _, out, err = original
    assert "cifar10: 7 runs on digits (quick scale, seeds 7, 42)" in out
    assert "snapshots: 10 runs on digits (quick scale, seeds 7, 42)" in out
    assert "snapshots: 3 runs on teacher (quick scale, seed 42)" in out
    assert "results/cifar10_seed7/results_cifar10.json lacks credit_bridge of seed 7: no complete run" in err
    assert err.count("lacks") == 1
    assert "1: the layout has no place for it" in err


def test_the_record_holds_version_recipe_and_run_ids(exported: Path, runs: Path) -> None:
    tree = json.loads((exported / "sonde.json").read_text())
    file = tree["files"][CIFAR]
    assert file["sonde"] == package.__version__
    stored = {run.id: run for run in package.load(runs).runs}
    for entry, id in file["runs"].items():
        config = stored[id].config
        assert entry == f"{config['seed']}.{config['rule']['name']}"
        about = tree["runs"][id]
        assert (about["task"], about["task_label"], about["scale"]) == ("digits", "digits", "quick")
        assert (about["epochs"], about["batch"], about["lr"]) == (1, 512, config["optimiser"]["lr"])
    assert set(tree["runs"]) == {run for one in tree["files"].values() for run in one["runs"].values()}


def test_a_study_that_is_not_recorded_has_no_label_beside_one_that_is(
    exported: Path,
) -> None:
    file = exported / "sonde.json"
    tree = json.loads(file.read_text())
    tree["files"] = {path: known for path, known in tree["files"].items() if "cifar10" not in path}
    file.write_text(json.dumps(tree))
    for name, (drawn, caption) in said(exported).items():
        unknown = name[0] == "cifar10"
        assert ("data set not recorded" in drawn) == ("data set not recorded" in caption) == unknown, name
        assert ("digits" in drawn + caption) != unknown


def test_a_second_export_keeps_what_is_said_of_the_files_of_the_first(runs: Path, sonde: Sonde, tmp_path: Path) -> None:
    for study in ("cifar10", "snapshots"):
        sonde("export", "--runs", str(runs), "--out", "E", "--study", study, *words())
    assert all("quick scale" in caption for _, caption in said(tmp_path / "E").values())
    (tmp_path / "E/sonde.json").write_text("{")  # what cannot be read is replaced
    sonde("export", "--runs", str(runs), "--out", "E", *words())
    assert all("quick scale" in caption for _, caption in said(tmp_path / "E").values())


def _run_of(tree: Any, entry: str) -> Any:
    return tree["runs"][tree["files"][CIFAR]["runs"][entry]]


TAMPERED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda tree: tree.pop("runs"), r"sonde\.json: runs: missing"),
    (
        lambda tree: tree["files"].update({CIFAR: 3}),
        r"files\.results/cifar10/.*: expected an object, found 3",
    ),
    (lambda tree: tree["files"][CIFAR].pop("sha256"), r"sha256: missing"),
    (lambda tree: _run_of(tree, "42.bp").update(task_label=None), r"task_label: expected a text, found None"),
    (lambda tree: _run_of(tree, "42.bp").update(epochs="1"), r"epochs: expected a whole number, found '1'"),
    (lambda tree: _run_of(tree, "42.bp").pop("scale"), r"scale: missing"),
    (lambda tree: _run_of(tree, "42.bp").update(sclae="full"), r"sclae: expected one of label, model"),
    (
        lambda tree: _run_of(tree, "42.bp").update(seed=7),
        r"(42\.bp|bp_log): residual_mlp-bp-.* has seed 7, the file 42",
    ),
    (lambda tree: _run_of(tree, "42.bp").update(epochs=9), r"(42\.bp|bp_log): .* has epochs 9, the file 1"),
    (
        lambda tree: _run_of(tree, "42.bp").update(rule="dfa"),
        r"(42\.bp|bp_log): .* has rule dfa, the file bp",
    ),
    (lambda tree: tree["files"][CIFAR]["runs"].pop("42.bp"), r"42\.bp: missing, though the file has it"),
    (
        lambda tree: tree["files"][CIFAR]["runs"].update({"42.fa": tree["files"][CIFAR]["runs"]["42.bp"]}),
        r"42\.fa: the file has no such entry",
    ),
    (lambda tree: tree["files"][CIFAR]["runs"].update({"42.bp": "gone"}), r"gone is not under `runs`"),
    (lambda tree: tree["files"].pop(CIFAR), rf"says nothing of {CIFAR}: move it elsewhere"),
    (
        lambda tree: tree["files"].update({"results/x.json": tree["files"][CIFAR]}),
        r"files\.results/x\.json: there is no such file",
    ),
]


@pytest.mark.parametrize(("tamper", "message"), TAMPERED, ids=[message for _, message in TAMPERED])
def test_a_record_that_does_not_fit_its_files_is_an_error_that_names_the_fix(
    tamper: Callable[[Any], Any], message: str, exported: Path
) -> None:
    file = exported / "sonde.json"
    tree = json.loads(file.read_text())
    tamper(tree)
    file.write_text(json.dumps(tree))
    with pytest.raises(SondeError, match=rf"(?s){message}.*export again, or delete sonde\.json"):
        from_files(exported)


def test_files_that_were_changed_or_exchanged_are_not_labelled_as_those_that_were_exported(
    exported: Path,
) -> None:
    file = exported / CIFAR
    content = file.read_text()
    file.write_text(content.replace("0.", "0.0", 1))
    with pytest.raises(SondeError, match=r"results_cifar10\.json is not the file that was exported: export again"):
        from_files(exported)
    file.write_text(content)
    shutil.copytree(exported / "results/cifar10", exported / "results/cifar10_seed9")
    with pytest.raises(SondeError, match="says nothing of results/cifar10_seed9"):
        from_files(exported)
    (exported / "sonde.json").write_text("[")
    with pytest.raises(SondeError, match=r"sonde\.json is not JSON.*export again"):
        from_files(exported)


def test_gradients_of_an_export_are_those_of_each_samples_own_loss_again(exported: Path, runs: Path) -> None:
    """The files hold gradients of the batch mean: they are multiplied by the probe size that is recorded."""
    read = from_files(exported)["snapshots"].rows.filter(metric="grad_norm")
    stored = package.load(runs).rows.filter(metric="grad_norm")
    both = read.join(stored, on=["run", "epoch", "layer"], suffix="_stored")
    assert both.height == read.height > 0
    assert both["value"].to_list() == pytest.approx(both["value_stored"].to_list(), rel=1e-12)


def test_the_export_says_how_many_runs_are_in_no_file_and_why(runs: Path, sonde: Sonde) -> None:
    done = sonde("export", "--runs", str(runs), "--out", "E", "--study", "snapshots", *words())
    everything = len(package.load(runs).runs)
    lines = done.stderr.splitlines()
    (head,) = (line for line in lines if line.startswith("not exported: "))
    left, of = (int(word) for word in head.split() if word.isdigit())
    assert of == everything
    counted = [int(line.split(":")[0]) for line in lines if line.startswith("  ")]
    assert sum(counted) == left > 0
