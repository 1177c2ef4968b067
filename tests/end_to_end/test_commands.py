"""The commands of the README."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sonde as package
from conftest import SMALL, Sonde

pytestmark = pytest.mark.timeout(600)

FIGURES = [
    "residual/training_loss",
    "residual/gradient_magnitude",
    "residual/activation_mean",
    "residual/activation_std",
    "residual/signal_flow",
    "residual/gradient_flow",
    "residual/gradient_highway",
    "residual/chain_rule",
    "residual/one_input",
    "residual/learning_comparison",
]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The residual study, small, run once in a process of its own."""
    root = tmp_path_factory.mktemp("study")
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "run", "residual", *SMALL], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (root / "stdout").write_text(done.stdout)
    (root / "stderr").write_text(done.stderr)
    return root


def test_run_draws_ten_figures_as_png_and_pdf_with_captions(study: Path) -> None:
    for figure in FIGURES:
        assert (study / "out" / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
        assert (study / "out" / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
        assert "n = 1" in (study / "out" / f"{figure}.txt").read_text()


def test_run_ends_with_a_conclusion_of_at_most_twelve_lines_on_80_columns(study: Path) -> None:
    lines = (study / "stdout").read_text().splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("On identity with L = 4, ")
    assert sum("MLP" in line for line in lines[1:]) == 4
    assert any(line.startswith("How sure: n = 1 seed") for line in lines)
    assert "sonde report --runs runs" in lines[-1] + lines[-2]


def test_run_prints_findings_with_n_and_run_ids_and_a_line_per_run(study: Path, sonde: Sonde) -> None:
    printed = sonde("run", "residual", "--details", "--no-figures", *SMALL, cwd=study).stdout
    ids = [run.id for run in package.load(study / "runs").runs]
    assert len(ids) == 4
    for id in ids:
        assert id in printed
    networks = [f"{name}MLP, weights × {scale}" for name in ("Plain ", "ReLU Res") for scale in ("1", "1/√L")]
    for network in networks:
        assert re.search(rf"• {network}, L = 4, on identity: .*(learn).*loss", printed)
    for heading in (
        "final loss",
        "lowest",
        "above lowest, fell by",
        "gradient, least … most",
        "predicted",
        "trained",
    ):
        assert heading in printed
    assert re.findall(r"\[(\d)/4\]", (study / "stderr").read_text()) == ["1", "2", "3", "4"]


def test_show_lists_runs_and_as_json_their_last_metrics(study: Path, sonde: Sonde) -> None:
    text = sonde("show", "--runs", "runs", cwd=study).stdout
    assert "2/2" in text
    assert "complete" in text
    runs = json.loads(sonde("show", "--runs", "runs", "--json", cwd=study).stdout)
    assert len(runs) == 4
    assert all(
        run.keys()
        == {
            "id",
            "label",
            "model",
            "rule",
            "task",
            "seed",
            "epoch",
            "state",
            "message",
            "sessions",
            "metrics",
        }
        for run in runs
    )
    rows = package.load(study / "runs").rows
    for run in runs:
        expected = rows.filter(run=run["id"], metric="batch_loss").sort("step")["value"][-1]
        assert run["metrics"]["batch_loss"] == expected
        assert (run["rule"], run["task"], run["seed"], run["epoch"], run["state"]) == (
            "bp",
            "identity",
            42,
            2,
            "complete",
        )


@pytest.mark.usefixtures("coarse")
def test_export_and_figures_from_files_draw_the_same_figures(study: Path, sonde: Sonde) -> None:
    done = sonde("export", "--runs", "runs", "--layout", "paper", "--out", "export", *SMALL, cwd=study)
    assert "residual: 4 runs on identity" in done.stdout
    names = {file.name for file in (study / "export").iterdir()}
    assert {"results.json", "results_fair.json", "sonde.json"} <= names
    sonde("figures", "--from", "export", "--out", "again", cwd=study)
    assert all((study / "again" / f"{figure}.png").exists() for figure in FIGURES)
    at_start = (  # show values at initialisation, which the layout does not hold
        *("signal_flow", "gradient_flow", "gradient_highway", "chain_rule"),
    )
    for figure in (figure for figure in FIGURES if not figure.endswith(at_start)):
        from_runs, from_files = (study / out / f"{figure}.txt" for out in ("out", "again"))
        assert from_files.read_text() == from_runs.read_text()


@pytest.mark.usefixtures("coarse")
def test_figures_name_the_runs_they_leave_out(study: Path, sonde: Sonde) -> None:
    done = sonde("figures", "residual", "--runs", "runs", "--out", "none", cwd=study, check=False)
    assert done.returncode == 2
    assert "epochs = 2 instead of 10" in done.stderr
    done = sonde("figures", "residual", *SMALL, "--only", "variant=raw", "--out", "raw", cwd=study)
    named = re.findall(r"left out: (.*) \(model\.weight_scale = '1/sqrt\(L\)' instead of 1\.0\)", done.stderr)
    assert {id for line in named for id in line.split(", ")} == {
        run.id for run in package.load(study / "runs").runs if run.about["variant"] == "scaled"
    }
    for figure in FIGURES:
        assert "weights × 1 (" in (study / "raw" / f"{figure}.txt").read_text()
    sonde("figures", "residual", *SMALL, "--layout", "paper", "--out", "paper", cwd=study)
    assert "weights × 1 (" in (study / "paper" / "plots" / "training_loss.txt").read_text()
    assert "weights × 1/√L" in (study / "paper" / "plots_micro" / "1_signal_flow.txt").read_text()


def test_list_names_everything_and_as_json_for_programs(sonde: Sonde) -> None:
    text = sonde("list").stdout
    for name in ("plain_mlp", "bp", "identity", "hidden_norm", "residual", "chain_rule"):
        assert name in text
    everything = json.loads(sonde("list", "--json").stdout)
    assert list(everything) == ["models", "rules", "tasks", "probes", "studies", "figures"]
    models = json.loads(sonde("list", "models", "--json").stdout)
    assert {"name": models[0]["name"], "d": models[0]["options"]["d"]} == {"name": "plain_mlp", "d": 64}


def test_names_are_listed_and_explained_without_torch_from_the_second_time_on(
    sonde: Sonde, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = [["list", "--json"], ["explain", "--json"], ["explain", "bp"], ["explain", "D1"]]
    first = [sonde(*some).stdout for some in words]
    code = f"import sys, sonde.cli\nfor some in {words}: sonde.cli.app(some, standalone_mode=False)\n"
    code += "print([m for m in ('torch', 'polars', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "".join([*first, "[]\n"])
    for path in tmp_path.rglob("names/*"):
        path.write_bytes(b"damaged")
    assert [sonde(*some).stdout for some in words] == first
    assert sonde("explain", "credit-cosine").stdout == sonde("explain", "credit_cosine").stdout


@pytest.mark.usefixtures("coarse")
def test_run_as_json_is_json_alone(study: Path, sonde: Sonde, sonde_process: Sonde) -> None:
    words = ("run", "residual", *SMALL, "--json")
    result = json.loads(sonde_process(*words, "--no-figures", cwd=study).stdout)
    assert [run["reused"] for run in result["runs"]] == [True] * 4
    assert {finding["numbers"]["verdict"] for finding in result["findings"]}
    assert result["figures"] == []
    drawn = json.loads(sonde(*words, cwd=study).stdout)
    assert drawn == result | {"figures": drawn["figures"]}
    assert len(drawn["figures"]) == 2 * len(FIGURES), "a picture and a caption of each"


@pytest.mark.usefixtures("coarse")
def test_quiet_is_quiet(study: Path, sonde: Sonde) -> None:
    done = sonde("run", "residual", *SMALL, "--quiet", cwd=study)
    assert done.stdout == done.stderr == ""


MISTAKES = [
    (["run", "residul"], "unknown study 'residul': did you mean 'residual'"),
    (["run", "residual", "--set", "model.widht=3"], "unknown key 'model.widht'"),
    (["run", "residual", "--set", "epochs=zero"], "epochs = 'zero': input should be a valid integer"),
    (["run", "residual", "--set", "epochs"], "write key=value"),
    (["run", "residual", "--set", "model=res_mpl"], "unknown model 'res_mpl': did you mean 'res_mlp'"),
    (["run", "residual", "--set", "model.d=32"], "set model.d and task.d to the same number"),
    (
        ["run", "residual", "--only", "model=resnet"],
        "no run has that value; there are plain_mlp, res_mlp",
    ),
    (["run", "residual", "--seeds", "a,b"], "whole numbers separated by commas"),
    (["run", "residual", "--runs", "file"], "file is a file: name a folder"),
    (["run", "residual", "--out", "file"], "file is a file: name a folder"),
    (["run", "residual", "--device", "cuda"], "device 'cuda' is not there: use one of"),
    (["show", "--runs", "file"], "file is a file"),
    (["show", "--runs", "absent"], "absent does not exist"),
    (["show", "--runs", "foo://bucket/x"], "foo://bucket/x: unknown protocol 'foo'"),
    (["show", "--runs", "s3:/bucket/x"], "a URL is written s3://…, with two slashes"),
    (["run", "residual", "--runs", "s3://key:secret@bucket/x"], "credentials do not belong in a URL"),
    (["figures"], "name a study"),
    (["figures", "--from", "absent"], "absent is not a folder"),
    (["figures", "--from", "broken"], "results.json is not JSON"),
    (["figures", "--from", "mislabelled"], "mislabelled/sonde.json: runs: missing"),
    (["figures", "residual", "--runs", "absent"], "absent does not exist"),
    (["export", "--runs", "empty"], "empty holds no runs"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    words: list[str], message: str, sonde: Sonde, tmp_path: Path
) -> None:
    if "cuda" in words:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has the device the test asks for")
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.json").write_text('{"config"')
    (tmp_path / "mislabelled").mkdir()
    (tmp_path / "mislabelled" / "sonde.json").write_text("{}")
    done = sonde(*words, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.glob("**/*.png"))


def test_a_mistake_ends_a_process_with_code_2_and_leaves_stdout_empty(sonde_process: Sonde) -> None:
    done = sonde_process("run", "residul", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr


def test_debug_shows_the_traceback(sonde: Sonde) -> None:
    done = sonde("show", "--runs", "absent", "--debug", check=False)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_help_imports_neither_torch_nor_matplotlib_nor_polars() -> None:
    code = (
        "import sys, sonde.cli\n"
        "try: sonde.cli.app(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'matplotlib', 'polars', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_show_needs_no_torch(study: Path) -> None:
    code = "import sys, sonde\nstored = sonde.load('runs')\nprint(len(stored), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=study, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "False"]
