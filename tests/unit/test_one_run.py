"""A trained run and a watched one are the same class; readers recognise runs by recipe keys, of old stores too."""

import json
from pathlib import Path

import pytest
import torch

import sonde
from conftest import tiny_config
from sonde.config import RunConfig, to_tree, whole_tree
from sonde.core.errors import SondeError
from sonde.engine import run_locally
from sonde.show.report import report_contents
from sonde.store import index
from sonde.store.folder import recipe_key
from sonde.store.index import INDEX_FOLDER, LINES, read_index
from sonde.store.listing import stamps
from sonde.store.load import load, verify
from sonde.store.run import Run, open_run
from sonde.studies import STUDIES
from sonde.studies.study import WantedRuns, gather, settings, study_recipes, swept
from sonde.training.train import train
from stores import COMMANDS, STORES, forge, unpack, write_run

CONFIG = tiny_config(epochs=2)


def watch(root: Path) -> None:
    net = torch.nn.Linear(3, 2)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    with sonde.watch(net, optimiser, runs=root, name="mine"):
        for _ in range(2):
            optimiser.zero_grad()
            net(torch.randn(4, 3)).square().mean().backward()
            optimiser.step()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("both") / "runs"
    train(CONFIG, runs=root)
    watch(root)
    return root


def test_a_trained_and_a_watched_run_are_of_one_class(store: Path) -> None:
    known = load(store, metrics=())
    (trained,), (watched,) = known.runs, known.watched
    assert type(trained) is type(watched) is Run
    assert known.every == [trained, watched]
    assert (trained.is_watched, watched.is_watched) == (False, True)
    assert (trained.config, watched.config) == (to_tree(CONFIG), None)
    assert trained.label.endswith(trained.about["rule_label"])
    assert watched.label == "mine"
    for run in known.every:
        assert run.path == store / run.id
        assert run.status.state == run.manifest.state == "complete"
        assert set(run.rows["run"]) == {run.id}
        assert run.about["label"]
    assert trained.facts == {}
    assert [module["name"] for module in watched.facts["modules"]]
    assert (trained.seed, trained.epochs, trained.rule) == (CONFIG.seed, 2, "bp")


def test_readings_of_a_run_are_its_rows(store: Path) -> None:
    (run,) = load(store, metrics=()).runs
    rows = run.rows.filter(metric="hidden_norm", epoch=2)
    assert rows.height == run.depth + 1
    assert run.across("hidden_norm", 2, range(run.depth + 1)) == rows.sort("layer")["value"].to_list()
    assert run.at("test_loss", 2).value == run.rows.filter(metric="test_loss", epoch=2)["value"].item()
    assert run.at("test_loss", 7).reason == "test_loss was not measured at epoch 7"


def test_the_status_has_its_old_name_with_a_warning(store: Path) -> None:
    (run,) = load(store, metrics=()).runs
    with pytest.warns(DeprecationWarning, match=r"Run\.status"):
        assert run.standing is run.status


def test_a_run_stores_its_recipe_key_which_is_that_of_its_configuration(store: Path, tmp_path: Path) -> None:
    known = json.loads((store / CONFIG.id / "run.json").read_text())
    tree = to_tree(CONFIG)
    assert known["recipe"] == recipe_key(tree) == recipe_key(tree | {"seed": 7})
    assert known["recipe"] != recipe_key(tree | {"epochs": 3})
    assert load(store, metrics=()).runs[0].recipe == known["recipe"]
    train(CONFIG, runs=tmp_path)
    folder = tmp_path / CONFIG.id
    forge(folder, "run.json", json.dumps(known | {"recipe": recipe_key(tree | {"epochs": 3})}).encode())
    with pytest.raises(SondeError, match="its recipe key is not that of its configuration"):
        load(tmp_path)


def test_rows_of_a_watched_run_have_their_module_even_if_none_is_asked_for(tmp_path: Path) -> None:
    watch(tmp_path)
    assert "module" in load(tmp_path, metrics=("test_acc",)).rows.columns


@pytest.mark.parametrize("study", ["residual", None])
def test_training_records_the_study_that_asks_for_it(study: str | None, tmp_path: Path, tiny: RunConfig) -> None:
    (outcome,) = run_locally([tiny], runs=tmp_path, jobs=1, study=study)
    assert outcome.state == "complete"
    (run,) = load(tmp_path).runs
    assert run.study == (None if study is None else {"name": study, "scale": tiny.scale})


def test_a_run_tells_which_study_trained_it(tmp_path: Path) -> None:
    config = STUDIES["audit"].configs("quick", [0])[0]
    known = {"name": "audit", "scale": "quick"}
    id = write_run(tmp_path, config)
    assert load(tmp_path).runs[0].study is None
    folder = tmp_path / id
    forge(folder, "run.json", json.dumps(open_run(folder).description | {"study": known}).encode())
    assert load(tmp_path).runs[0].study == known


@pytest.mark.parametrize("old", sorted(path.stem for path in STORES.glob("*.zip")))
def test_an_old_store_is_read_verified_and_recognised(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unpack(old, tmp_path)
    monkeypatch.setattr(index, "RUNS_TO_INDEX", 1)
    folders, indexed = load(root), load(root)
    assert (root / INDEX_FOLDER).exists()
    assert folders.runs == indexed.runs
    assert [run.recipe for run in indexed.runs] == [recipe_key(run.config) for run in folders.runs]
    lines = read_index(root, stamps(root) or {}).lines
    assert lines.schema == LINES
    assert all(json.loads(text)["recipe"] for text in lines["description"])
    found = verify(root)
    assert not found.wrong
    assert found.runs == found.indexed == len(indexed.runs)
    assert found.without_checksums == [run.id for run in folders.runs if run.manifest.checksums is None]
    if old in COMMANDS:
        words = [word for word in COMMANDS[old] if "=" in word]
        trees = map(whole_tree, STUDIES[old].configs("quick", [42]))
        asked = swept(trees, settings(words))
        assert {run.id for run in WantedRuns.of(asked).complete(indexed)} == {run.id for run in indexed.runs}


@pytest.mark.parametrize("name", STUDIES)
def test_recipes_and_seeds_of_a_study_are_its_configurations(name: str) -> None:
    study = STUDIES[name]
    for scale in ("quick", "full"):
        for beside, configs in ((False, study.configs), (True, study.beside)):
            asked, known = configs(scale, [3, 5]), WantedRuns.of_study(study, scale, [3, 5], beside=beside)
            again = WantedRuns.of(asked)
            assert len(known) == len(again) == len(asked)
            assert known.seeds == again.seeds
            assert study_recipes(study, scale, beside=beside) is study_recipes(study, scale, beside=beside)


def test_the_whole_configuration_decides_what_a_run_is(tmp_path: Path) -> None:
    one, other = STUDIES["audit"].configs("quick", [0])[:2]
    write_run(tmp_path, one)
    write_run(tmp_path, other, tree=to_tree(other) | {"batch_size": 7})
    gathered = gather(load(tmp_path), [one, other], "here")
    assert [run.id for run in gathered.stored.runs] == [one.id]
    (why,) = gathered.left_out.values()
    assert why == "batch_size = 7 instead of 32"


@pytest.fixture
def no_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunConfig, "__post_init__", lambda config: pytest.fail("a configuration was built"))


@pytest.mark.usefixtures("no_configurations")
def test_a_report_of_watched_runs_builds_no_configuration(tmp_path: Path) -> None:
    watch(tmp_path)
    known = load(tmp_path)
    assert report_contents(known, source="here", title="").watched
