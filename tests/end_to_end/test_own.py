"""The scripts of docs/own.md are complete: each runs as it stands, and its plugin works on the command line too."""

import io
import math
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import safetensors.torch
import torch
from torch import nn

import sonde as package
from sonde.training.program import Program

CPU = torch.device("cpu")

PAGE = (Path(__file__).parents[2] / "docs" / "own.md").read_text()
SCRIPTS = {
    text.split(":", 1)[0].removeprefix('"""'): text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}
REFERENCES = {
    "network.py": ("--model", "network.py:narrow"),
    "data.py": ("--task", "data.py:rings"),
    "rule.py": ("--rule", "rule.py:Signs"),
    "fitted.py": ("--rule", "fitted.py:FittedFeedback"),
    "pepita.py": ("--rule", "pepita.py:Pepita"),
    "probe.py": ("--set", "probes.names+=probe.py:sparsity"),
    "attention.py": ("--model", "vit_mini", "--set", "probes.names+=attention.py:attention_entropy"),
}


def test_the_page_has_one_script_of_each_kind() -> None:
    assert SCRIPTS.keys() == REFERENCES.keys()
    for words in REFERENCES.values():
        assert " ".join(words) in PAGE


IN_A_PROCESS = ("network.py", "rule.py")  # the others in this one, which need not import everything again


def output_of(script: str, place: Path) -> str:
    """What a script prints that is run in its folder, where a warning is an error."""
    if script in IN_A_PROCESS:
        command = [sys.executable, "-W", "error", script]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout
    with chdir(place), redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_it_stands(name: str, tmp_path: Path, sonde: Callable[..., CompletedProcess[str]]) -> None:
    (tmp_path / name).write_text(SCRIPTS[name])
    assert "shape: (" in output_of(name, tmp_path)
    trained = {run.id for run in package.load(tmp_path / "runs").runs}
    small = ("--epochs", "1", "--set", "model.d=16", "--set", "batch_size=64")
    small = small if name != "network.py" else small[:2]
    sonde("train", *REFERENCES[name], *small, "--quiet")
    assert len({run.id for run in package.load(tmp_path / "runs").runs} - trained) == 1


def test_the_pages_pepita_computes_what_the_built_in_rule_does(tmp_path: Path) -> None:
    (tmp_path / "pepita.py").write_text(SCRIPTS["pepita.py"])
    rules = [package.plugin("rule", f"{tmp_path / 'pepita.py'}:Pepita"), package.rules.Pepita(credit_scale="rms")]
    model, task = package.models.ResidualMLP(d=16, L=2), package.tasks.Digits()
    programs = [
        Program(config, task.load(1, None, CPU, torch.float64), CPU)
        for config in (
            package.RunConfig(model=model, rule=rule, task=task, epochs=1, seed=1, precision="float64")
            for rule in rules
        )
    ]
    mine, built_in = (program.credit.state.matrices[0] for program in programs)  # type: ignore[attr-defined]
    mine.copy_(built_in.T)
    weights = []
    for program in programs:
        program.train_epoch(1)
        weights.append(program.weights())
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=1e-9, atol=1e-12)


def test_the_attention_entropy_of_a_trained_vit_is_that_of_pytorchs_attention(tmp_path: Path) -> None:
    """A probe in a file outside the package: its values are those of `nn.MultiheadAttention` with the same weights."""
    (tmp_path / "attention.py").write_text(SCRIPTS["attention.py"])
    probes = package.Probing(names=("loss", f"{tmp_path / 'attention.py'}:attention_entropy"), costly=(), size=16)
    config = package.RunConfig(
        model=package.models.VitMini(d=16, L=2, heads=2, patch=2),
        rule=package.rules.Backprop(),
        task=package.tasks.Digits(),
        probes=probes,
        epochs=1,
    )
    package.train(config, runs=tmp_path / "runs")
    stored = package.load(tmp_path / "runs").rows.filter(metric="attention_entropy", epoch=1).sort("layer")["value"]

    program = Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU)
    program.net.load_state_dict(safetensors.torch.load_file(tmp_path / "runs" / config.id / "weights.safetensors"))
    net, (x, _) = program.net.double(), program.data.test(0, 16)
    expected = []
    with torch.no_grad():
        for block, h in zip(net.blocks, net.states(x.double())[0], strict=False):
            attention = nn.MultiheadAttention(16, 2, batch_first=True, dtype=torch.float64)
            attention.in_proj_weight.copy_(block.qkv.weight)  # type: ignore[union-attr, arg-type]
            attention.in_proj_bias.copy_(block.qkv.bias)  # type: ignore[union-attr, arg-type]
            inputs = block.ln1(h)  # type: ignore[operator]
            p = attention(inputs, inputs, inputs, average_attn_weights=False)[1]
            expected.append(-(p * p.log()).sum(-1).mean().item())
    assert stored.to_list() == pytest.approx(expected, rel=1e-9)
    assert all(0 < entropy < math.log(17) for entropy in stored)
