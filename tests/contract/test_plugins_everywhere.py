"""A rule, a model, a task and a probe from files outside the package: each needs its file and nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch

import sonde as package
from sonde.config import parse, to_tree, whole_tree
from sonde.models import MODELS
from sonde.rules import RULES
from sonde.show.figures import figures_of
from sonde.store.folder import create_run
from sonde.studies import STUDIES
from sonde.studies.study import gather
from sonde.tasks import TASKS
from sonde.training.program import Program
from stores import COMMANDS, captions, unpack, write_run

Sonde = Callable[..., CompletedProcess[str]]

FILES = Path(__file__).parents[1] / "plugin_files"
SIGNS, FUNNEL = f"{FILES / 'signs.py'}:Signs", f"{FILES / 'funnel.py'}:funnel"
MOONS, SPARSITY = f"{FILES / 'moons.py'}:moons", f"{FILES / 'sparsity.py'}:sparsity"
MAPS = ("conv_net", "res_net")  # which take images
SIZES: dict[str, dict[str, object]] = {
    "conv_net": {"channels": [4, 4], "d": 8},
    "res_net": {"d": 4},
    "cifar10": {},
    "vit_mini": {"d": 8, "L": 2, "patch": 1, "heads": 2},
    "teacher": {"inputs": 8, "d": 8, "samples": 64, "test_samples": 32},
    "identity": {"d": 2, "samples": 64},
}
COMBINATIONS = [
    *((FUNNEL, rule, "digits" if rule == "ff" else MOONS) for rule in RULES),  # ff needs more inputs than labels
    *((model, SIGNS, "digits" if model in MAPS else MOONS) for model in MODELS),
    *((FUNNEL, SIGNS, task) for task in TASKS if task != "cifar10"),
]


@pytest.mark.parametrize(("model", "rule", "task"), COMBINATIONS)
def test_a_plugin_is_treated_like_a_built_in(model: str, rule: str, task: str) -> None:
    parts = {"model": model, "rule": rule, "task": task}
    sizes = {part: {"name": name, **SIZES.get(name, {})} for part, name in parts.items()}
    if model in MODELS and model not in SIZES:
        sizes["model"] |= {"d": 8, "L": 2}
    config = parse({**sizes, "epochs": 1, "probes": {"names": ["loss", SPARSITY], "size": 16}})
    cpu = torch.device("cpu")
    program = Program(config, config.task.load(1, None, cpu, torch.float32), cpu)
    readings = [*program.train_epoch(1).readings, *program.evaluate(), *program.probe(1)]
    assert {"train_loss", "test_loss", "sparsity", "widest_state"} <= {reading.metric for reading in readings}
    assert all(reading.defined for reading in readings if reading.metric in ("train_loss", "sparsity"))


@pytest.mark.usefixtures("coarse")
def test_plugins_go_through_every_command_and_need_their_files_no_more(sonde: Sonde, tmp_path: Path) -> None:
    here = tmp_path / "mine"
    shutil.copytree(FILES, here, ignore=shutil.ignore_patterns("__pycache__"))
    words = [
        *("train", "--model", "mine/funnel.py:funnel", "--task", "mine/moons.py:moons", "--epochs", "2"),
        *("--set", "rule=bp,mine/signs.py:Signs", "--set", "rule.strength=2", "--seeds", "1,2"),
        *("--set", "probes.names+=mine/sparsity.py:sparsity"),
    ]
    done = json.loads(sonde(*words, "--json").stdout)
    assert [run["state"] for run in done] == ["complete"] * 4
    assert sonde(*words).stderr.count("already complete") == 4
    (run,) = (run for run in done if run["rule"] == "Signs" and run["seed"] == 1)
    folder = tmp_path / "runs" / run["id"]
    about = json.loads((folder / "run.json").read_text())
    assert about["config"]["rule"]["source"].startswith("signs.py:Signs@")
    assert about["config"]["rule"]["strength"] == 2
    assert set(about["guests"]) == {"signs.py", "funnel.py", "moons.py", "sparsity.py"}
    for file in about["guests"]:
        assert (folder / file).read_bytes() == (FILES / file).read_bytes()
    shutil.rmtree(here)
    assert "Signs" in sonde("show").stdout
    assert "Signs" in sonde("audit").stdout
    assert "Signs − bp" in sonde("compare", "--factor", "rule", "--details").stdout
    page = tmp_path / "report.html"
    sonde("report")
    for text in ('"sparsity"', '"widest_state"', '"sign_strength"', "--colour-Signs", "--colour-funnel"):
        assert text in page.read_text(), text


@pytest.mark.parametrize("study", COMMANDS)
def test_every_figure_takes_a_plugin_rule_in(study: str, sonde: Sonde, tmp_path: Path) -> None:
    unpack(study, tmp_path / "runs")
    words = [*COMMANDS[study], "--set", f"rule+={SIGNS}"]
    sonde("run", study, *words, "--no-figures", "--quiet")
    drawn = captions(study, words, tmp_path / "runs")
    for name, spec in figures_of(study).items():
        if not spec.beside:  # of runs that are trained beside the study, which --only and --set leave out
            assert "Signs" in drawn[name], name


def test_a_report_shows_plugins_beside_the_study_they_were_trained_for(sonde: Sonde, tmp_path: Path) -> None:
    configs = STUDIES["cifar10"].configs("quick", [42])
    for config in configs:
        write_run(tmp_path / "runs", config)
    of_study = whole_tree(configs[0])
    id = write_run(tmp_path / "runs", parse(of_study | {"rule": SIGNS}))
    stored = package.load(tmp_path / "runs")
    assert id in gather(stored, configs, "runs", plugins=True).evidence.runs["run"].to_list()
    assert id in gather(stored, configs, "runs").left_out
    sonde("report", "--no-figures")
    other = write_run(tmp_path / "runs", parse(of_study | {"rule": {"name": SIGNS, "strength": 3}}))
    gathered = gather(package.load(tmp_path / "runs"), configs, "runs", plugins=True)
    for run in (id, other):
        assert gathered.left_out[run].startswith("there are 2 rules called Signs: choose one")


def test_a_run_without_an_epoch_is_replaced_when_its_file_changes(tmp_path: Path) -> None:
    mine = tmp_path / "signs.py"
    shutil.copy(FILES / "signs.py", mine)
    tree = {"model": FUNNEL, "task": MOONS, "rule": f"{mine}:Signs", "epochs": 1}
    first = parse(tree)
    facts = {"label": "funnel", "variant": None, "rule_label": "Signs", "task_label": "moons", "depth": 2, "width": 8}
    facts |= {"alpha": None, "steps": 1, "samples": 1, "probe_size": 1, "data": None, "gradients": "per sample"}
    (tmp_path / "runs").mkdir()
    create_run(tmp_path / "runs" / first.id, to_tree(first), facts)
    mine.write_text(mine.read_text().replace("self.strength * g.sign()", "g"))
    again = parse(tree)
    package.train(again, runs=tmp_path / "runs")
    assert [at.name for at in (tmp_path / "runs").glob("[!.]*")] == [again.id]


def test_a_file_that_changes_between_start_and_resume_is_refused(tmp_path: Path) -> None:
    mine = tmp_path / "signs.py"
    shutil.copy(FILES / "signs.py", mine)
    tree = {"model": FUNNEL, "task": MOONS, "rule": f"{mine}:Signs", "epochs": 2}
    first = parse(tree)
    package.train(first, runs=tmp_path / "runs", should_stop=lambda: True)
    mine.write_text(mine.read_text().replace("self.strength * g.sign()", "g"))
    again = parse(tree)
    assert again.id != first.id
    with pytest.raises(
        package.SondeError, match=r"signs\.py has changed since run .* is at epoch 0 of 2: put back"
    ) as refused:
        package.train(again, runs=tmp_path / "runs")
    assert f"{tmp_path / 'runs' / first.id / 'signs.py'}" in str(refused.value)
    assert [at.name for at in (tmp_path / "runs").glob("[!.]*")] == [first.id], "something was half written"
    mine.write_bytes((tmp_path / "runs" / first.id / "signs.py").read_bytes())
    assert package.train(parse(tree), runs=tmp_path / "runs").state == "complete"
    mine.write_text(mine.read_text() + "\n")
    assert package.train(parse(tree), runs=tmp_path / "runs").state == "complete", "ended runs stand in nobody's way"


def test_bad_plugins_are_one_line_on_the_command_line_and_leave_nothing(sonde: Sonde, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 2)), y=np.arange(3))
    (tmp_path / "broken.py").write_text("import nothing_of_the_kind\n")
    for words in (
        ("--task", "data.npz"),
        ("--rule", "broken.py:Mine"),
        ("--model", f"{FILES / 'funnel.py'}:funel"),
        ("--set", "probes.names+=broken.py:probe"),
        ("--set", "optimiser=broken.py:Mine"),
    ):
        done = sonde("train", *words, check=False)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "runs").exists()


def test_arrays_in_a_file_are_a_task_on_the_command_line(sonde: Sonde, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(3, size=90)
    np.savez(tmp_path / "blobs.npz", x=rng.normal(size=(90, 4)) + 4 * label[:, None], y=label)
    words = ("--set", "model.d=16", "--set", "task.test=0.3", "--epochs", "6", "--set", "batch_size=8")
    words = (*words, "--set", "optimiser.lr=0.01")
    run = json.loads(sonde("train", "--task", "blobs.npz", *words, "--json").stdout)
    assert run["id"].startswith("residual_mlp-bp-blobs-s42-")
    assert run["metrics"]["test_acc"] > 0.5
    stored = package.load(tmp_path / "runs")
    assert stored.runs[0].about["samples"] == 63
