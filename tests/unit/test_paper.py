import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import sonde
from conftest import tiny_config
from sonde.analysis.evidence import Evidence
from sonde.core.errors import SondeError
from sonde.models import PlainMLP, ResMLP
from sonde.show.figures import FIGURES, NoData
from sonde.show.paper import from_files, read_residual, residual_files
from sonde.studies.study import gather


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    root = tmp_path_factory.mktemp("runs")
    configs = [
        tiny_config(model=model(d=8, L=3, weight_scale=scale), seed=seed)
        for model in (PlainMLP, ResMLP)
        for scale in (1.0, "1/sqrt(L)")
        for seed in (42, 7)
    ]
    for config in configs:
        sonde.train(config, runs=root)
    return gather(sonde.load(root), configs, "runs").evidence


@pytest.fixture
def folder(evidence: Evidence, tmp_path: Path) -> Path:
    for name, file in residual_files(evidence).items():
        (tmp_path / name).write_text(json.dumps(file.content()))
    return tmp_path


def test_keys_are_exact_and_lengths_follow_the_configuration(folder: Path) -> None:
    names = ["results.json", "results_fair.json", "results_seed7.json", "results_fair_seed7.json"]
    assert {file.name for file in folder.iterdir()} == {
        *names,
        *(n.replace("results", "layer_states") for n in names),
    }
    document = json.loads((folder / "results.json").read_text())
    assert document["config"] == {
        "num_layers": 3,
        "hidden_dim": 8,
        "num_samples": 32,
        "training_steps": 12,
        "learning_rate": 0.001,
        "batch_size": 8,
    }
    assert document.keys() == {"config", "plain_mlp", "res_mlp"}
    for model in ("plain_mlp", "res_mlp"):
        network = document[model]
        assert list(network) == [
            "final_loss",
            "initial_loss",
            "loss_history",
            "gradient_norms",
            "activation_means",
            "activation_stds",
        ]
        assert len(network["loss_history"]) == 12
        assert [len(network[key]) for key in ("gradient_norms", "activation_means", "activation_stds")] == [3] * 3
        assert (network["initial_loss"], network["final_loss"]) == (
            network["loss_history"][0],
            network["loss_history"][-1],
        )


def test_files_written_and_read_back_hold_the_same_values(evidence: Evidence, folder: Path) -> None:
    again = read_residual(folder)
    assert again is not None
    metrics = ["batch_loss", "activation_mean", "activation_std", "preact_grad_norm", "state[3]"]
    columns = ["model", "variant", "metric", "layer", "value"]

    def values(of: Evidence, seed: int | None) -> pl.DataFrame:
        kept = of.runs.filter(pl.col("seed").eq_missing(seed))
        rows = of.rows.join(kept, on="run").filter(pl.col("metric").is_in(metrics))
        last = rows.filter((pl.col("epoch") == pl.col("epochs")) | (pl.col("metric") == "batch_loss"))
        return last.sort("model", "variant", "metric", "layer", "step").select(columns)

    assert values(evidence, 7).equals(values(again, 7))
    assert values(evidence, 42).equals(values(again, None)), "the layout records no seed for results.json"


def test_files_without_states_get_them_at_initialisation(folder: Path) -> None:
    for file in folder.glob("layer_states*.json"):
        file.unlink()
    states = from_files(folder)["residual"].rows.filter(metric="state[0]")
    assert set(states["epoch"]) == {0}
    assert set(states["layer"]) == {0, 1, 2, 3}


def change(document: dict[str, Any], path: str, value: Any) -> None:
    *keys, last = path.split(".")
    for key in keys:
        document = document[key]
    if value is KeyError:
        del document[last]
    else:
        document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("plain_mlp", KeyError, r"plain_mlp: missing"),
        ("config", [], r"config: expected an object, found a list"),
        ("config.num_layers", 0, r"config\.num_layers: expected a whole number of at least 1, found 0"),
        ("config.num_layers", 2.5, r"config\.num_layers: expected a whole number"),
        (
            "config.learning_rate",
            "fast",
            r"config\.learning_rate: expected a finite number, found the text 'fast'",
        ),
        ("res_mlp.gradient_norms", [1.0, 2.0], r"res_mlp\.gradient_norms: expected 3 values, found 2"),
        (
            "res_mlp.gradient_norms",
            [1.0, float("nan"), 2.0],
            r"res_mlp\.gradient_norms\[1\]: expected a finite number, found NaN",
        ),
        (
            "res_mlp.gradient_norms",
            [1.0, None, 2.0],
            r"res_mlp\.gradient_norms\[1\]: expected a finite number, found null",
        ),
        ("res_mlp.activation_stds", {}, r"res_mlp\.activation_stds: expected a list, found an object"),
        ("plain_mlp.gradient_norms", KeyError, r"plain_mlp\.gradient_norms: missing"),
        (
            "plain_mlp.gradient_norms",
            [1.0, -2.0, 3.0],
            r"plain_mlp\.gradient_norms\[1\]: expected 0 or more, found -2\.0",
        ),
        ("res_mlp.activation_stds", [1.0, 1.0, -1e-9], r"res_mlp\.activation_stds\[2\]: expected 0 or more"),
        ("plain_mlp.loss_history", [float("inf")] * 12, r"plain_mlp\.loss_history\[0\].*found Infinity"),
        ("plain_mlp.final_loss", True, r"plain_mlp\.final_loss: expected a finite number, found true"),
    ],
)
def test_a_malformed_file_is_an_error_naming_file_and_key(folder: Path, path: str, value: Any, message: str) -> None:
    file = folder / "results.json"
    document = json.loads(file.read_text())
    change(document, path, value)
    file.write_text(json.dumps(document))
    with pytest.raises(SondeError, match=rf"results\.json: {message}"):
        read_residual(folder)


def test_text_that_is_not_json_is_an_error_naming_the_file(folder: Path) -> None:
    (folder / "results_fair.json").write_text('{"config": ')
    with pytest.raises(SondeError, match=r"results_fair\.json is not JSON"):
        read_residual(folder)


def test_a_folder_without_files_says_what_it_expected(tmp_path: Path) -> None:
    with pytest.raises(SondeError, match=r"expected results\.json, results_fair\.json"):
        from_files(tmp_path)
    with pytest.raises(SondeError, match="is not a folder"):
        from_files(tmp_path / "absent")


def test_an_undefined_value_stops_the_export_naming_run_epoch_and_metric(evidence: Evidence) -> None:
    run = evidence.runs.filter(model="plain_mlp", variant="raw", seed=42)["run"][0]
    broken = (pl.col("run") == run) & (pl.col("metric") == "activation_std") & (pl.col("layer") == 2)
    rows = evidence.rows.with_columns(
        defined=pl.col("defined") & ~broken,
        reason=pl.when(broken).then(pl.lit("one value")).otherwise("reason"),
    )
    with pytest.raises(SondeError, match=rf"run {run}, epoch 3, metric activation_std: undefined \(one value\)"):
        residual_files(Evidence(rows, evidence.runs, "runs"))["results.json"].content()


def test_half_a_pair_is_not_exported(evidence: Evidence) -> None:
    with pytest.raises(SondeError, match="lacks a complete run of res_mlp"):
        residual_files(evidence.of(model="plain_mlp"))


def test_a_file_without_the_history_of_its_loss_gives_every_figure_that_does_not_need_it(
    folder: Path,
) -> None:
    for file in folder.glob("results*.json"):
        document = json.loads(file.read_text())
        for model in ("plain_mlp", "res_mlp"):
            for key in ("loss_history", "initial_loss"):
                del document[model][key]
        file.write_text(json.dumps(document))
    raw = from_files(folder)["residual"].of(variant="raw")
    for name in ("gradient_magnitude", "activation_mean", "activation_std"):
        assert "n = 2 runs" in FIGURES[name].draw(raw)[1]
    with pytest.raises(NoData, match="loss_history"):
        FIGURES["training_loss"].draw(raw)


def test_a_residual_file_that_does_not_record_its_data_set_says_so(folder: Path, evidence: Evidence) -> None:
    for spec in (FIGURES["training_loss"], FIGURES["gradient_magnitude"]):
        assert (
            "data set not recorded (read as the identity task"
            in spec.draw(from_files(folder)["residual"].of(variant="raw"))[1]
        )
        assert ", identity task." in spec.draw(evidence.of(variant="raw"))[1]


def of_rules(evidence: Evidence, *rules: str) -> Evidence:
    """The runs once for each rule, the losses of the second and third other than those of the first."""
    rows, runs = [], []
    for times, rule in enumerate(rules, 1):
        name = pl.col("run") + f"-{rule}"
        rows.append(evidence.rows.with_columns(run=name, value=pl.col("value") * times))
        runs.append(evidence.runs.with_columns(run=name, rule=pl.lit(rule), rule_label=pl.lit(rule)))
    return Evidence(pl.concat(rows), pl.concat(runs), evidence.source)


@pytest.mark.parametrize("rules", [("bp", "mine"), ("bp", "mine", "yours"), ("mine",)])
def test_the_files_hold_the_runs_of_bp_or_of_the_only_rule_there_is(evidence: Evidence, rules: tuple[str, ...]) -> None:
    expected, found = residual_files(evidence), residual_files(of_rules(evidence, *rules))
    assert found.keys() == expected.keys()
    for name, file in found.items():
        assert file.content() == expected[name].content()
        assert all(run.endswith(f"-{rules[0]}") for run in file.runs.values())


def test_of_several_rules_without_bp_none_is_written_as_the_networks(evidence: Evidence) -> None:
    with pytest.raises(SondeError, match=r"hold one rule, and the runs have mine and yours: choose one"):
        residual_files(of_rules(evidence, "mine", "yours"))


def test_a_figure_of_states_that_no_file_holds_says_with_which_seed_they_were_drawn(folder: Path) -> None:
    draw, said = FIGURES["one_input"].draw, "networks of this configuration were drawn anew with"
    assert said not in draw(from_files(folder)["residual"])[1]
    for file in folder.glob("layer_states*.json"):
        file.unlink()
    evidence = from_files(folder)["residual"]
    assert f"States are not in the files: {said} seed 7." in draw(evidence)[1]
    unnamed = evidence.runs.filter(pl.col("seed").is_null())
    caption = draw(Evidence(evidence.rows, unnamed, evidence.source))[1]
    assert f"States are not in the files: {said} seed 42." in caption
