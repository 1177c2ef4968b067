"""A look at a model before training: right numbers, plain words, and nothing changed."""

import json
import math
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde as library
from conftest import Sonde
from sonde.core.errors import SondeError
from watch_programs import Transformer, plain_mlp, resnet, tokens


def batch() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(16, 12, generator=rng), torch.randint(4, (16,), generator=rng)


def test_signal_and_gradient_are_those_of_a_plain_pass_in_float64() -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    x, y = batch()
    found = library.check(model, x, y, functional.cross_entropy)
    h, wanted = x.double(), []
    for layer in model:
        h = nn.Module.__call__(layer.double(), h)
        h.retain_grad()
        wanted.append(h)
    loss = functional.cross_entropy(h, y)
    loss.backward()
    for place, tensor in enumerate(wanted):
        line = found.table.row(place, named=True)
        assert line["signal"] == pytest.approx(float(tensor.detach().square().mean().sqrt()), rel=1e-12)
        assert line["gradient"] == pytest.approx(float(tensor.grad.square().mean().sqrt()), rel=1e-12)
    assert found.loss_value == pytest.approx(loss.item(), rel=1e-6)
    assert found.remarks == []


def test_the_predicted_range_stands_beside_each_number_and_marks_what_lies_outside() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())])
    x, y = torch.randn(128, 64, generator=torch.Generator().manual_seed(1)), torch.randint(64, (128,))
    found = library.check(model, x, y)
    line = found.table.row(2, named=True)
    assert line["signal_low"] <= line["signal_expected"] <= line["signal_high"]
    assert line["signal_is_inside"] is True
    assert line["gradient"] == pytest.approx(line["gradient_expected"], rel=0.5)
    assert "✗" not in found.shown()[3][4]
    assert found.expected is not None
    outside = replace(found, expected=found.expected.with_columns(is_inside=pl.lit(False)))
    assert "✗" in outside.shown()[3][4]
    unknown = library.check(nn.Sequential(nn.Linear(64, 4), Sorted()), x)
    assert unknown.table["signal_low"].to_list()[1:] == [None, None]


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x).values


def test_nothing_is_changed() -> None:
    torch.manual_seed(0)
    model = resnet()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    library.check(model, torch.randn(4, 3, 8, 8, generator=torch.Generator()), torch.tensor([0, 1, 2, 3]), inits=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_what_is_plainly_wrong_is_said_in_words() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
            self.unused = nn.Linear(3, 3)
            self.second.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x).detach()))

    model = Wrong()
    nn.init.zeros_(model.second.weight), nn.init.zeros_(model.second.bias)
    remarks = library.check(model.eval(), *batch()).remarks
    assert "the output is exactly zero at second" in remarks
    assert "no gradient reaches first.weight, first.bias, unused.weight, unused.bias" in remarks
    assert "2 of 8 parameters ask for no gradient: second.weight, second.bias" in remarks
    assert "never called: unused" in remarks
    assert "the model is in eval mode" in remarks


def test_the_first_output_that_is_not_finite_is_named() -> None:
    model = plain_mlp()
    with torch.no_grad():
        model[2].bias[0] = math.inf
    assert any("not finite" in remark for remark in library.check(model, *batch()).remarks)


def test_a_band_over_initialisations_holds_the_fresh_ones() -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    x, y = batch()
    found = library.check(model, x, y, inits=6)
    assert found.band is not None
    assert found.band.inits == 6
    assert found.band.rows["n"].unique().to_list() == [6]
    torch.manual_seed(3)
    for layer in model:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    fresh = library.check(model, x, y).table.row(0, named=True)["signal"]
    low, high = found.band.of("0", "out_rms") or (math.nan, math.nan)
    assert low <= fresh <= high
    assert "(" in str(found)
    assert "6 fresh initialisations" in str(found)


def test_a_model_that_insists_on_single_precision_is_checked_in_it() -> None:
    class Insists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(12, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.float())

    found = library.check(Insists(), *batch())
    assert found.remarks[0].startswith("checked in float32: the model does not run in float64")


def test_tokens_and_tied_weights_are_checked_too() -> None:
    torch.manual_seed(0)
    x, y = tokens(0)
    found = library.check(Transformer(), x, y)
    assert found.facts["shared"] == [["embed.weight", "head.weight"]]
    assert found.facts["inputs"][0]["dtype"] == "int64"
    assert "attention_entropy" in found.rows["metric"].to_list()


def test_the_picture_shows_the_numbers_of_the_table_and_the_band() -> None:
    torch.manual_seed(0)
    found = library.check(plain_mlp(), *batch(), inits=3)
    upper, lower = found.figure().axes
    assert list(upper.lines[0].get_ydata()) == found.table["signal"].to_list()[:5]
    assert list(lower.lines[0].get_ydata()) == found.table["gradient"].to_list()[:5]
    assert upper.collections
    assert upper.get_yscale() == "log"


def test_a_notebook_gets_table_picture_and_words() -> None:
    shown = library.check(plain_mlp(), *batch())._repr_html_()
    assert "data:image/png;base64," in shown
    assert "<td" in shown
    assert "nothing is zero or not finite" in shown


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: library.check(nn.ReLU(), torch.ones(2, 2)), "no parameters"),
        (lambda: library.check(plain_mlp(), *batch(), inits=0), "inits=0"),
        (lambda: library.check(plain_mlp(), batch()[0], {"y": 1}), "need a loss"),
        (lambda: library.check(plain_mlp(), *batch(), lambda out, y: out.detach().sum()), "does not depend"),
    ],
)
def test_bad_input_is_told_in_one_line(call: object, words: str) -> None:
    with pytest.raises(SondeError, match=words):
        call()  # type: ignore[operator]


PROGRAM = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def batch():
    return torch.ones(3, 4), torch.tensor([0, 1, 0])

def whole():
    return make(), *batch(), nn.CrossEntropyLoss()
"""


def test_the_command_reads_functions_of_a_file(tmp_path: Path, sonde: Sonde) -> None:
    (tmp_path / "net.py").write_text(PROGRAM)
    printed = sonde("check", "net.py:make", "--batch", "net.py:batch", "--out", "pictures/net.png").stdout
    assert "Sequential at initialisation; loss: cross-entropy" in printed
    assert "nothing is zero or not finite" in printed
    assert (tmp_path / "pictures/net.png").stat().st_size > 1000
    known = json.loads(sonde("check", "net.py:whole", "--json").stdout)
    assert [line["module"] for line in known["table"]] == ["0", "1", "2", "(model)"]
    assert known["loss"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["net.py"], "write FILE.py:FUNCTION"),
        (["other.py:make"], "other.py does not exist"),
        (["net.py:mk"], "net.py has no 'mk': did you mean 'make'?"),
        (["net.py:make"], "gives no batch"),
        (["net.py:whole", "--out", "net.gif"], "name a .png, .pdf or .svg file"),
    ],
)
def test_the_command_tells_what_is_missing(words: list[str], told: str, tmp_path: Path, sonde: Sonde) -> None:
    (tmp_path / "net.py").write_text(PROGRAM)
    done = sonde("check", *words, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_batch_that_does_not_fit_is_one_line_and_no_traceback(sonde: Sonde, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 2), torch.randn(3, 5)\n"
    )
    told = sonde("check", "net.py:make", check=False)
    assert told.returncode == 2
    assert "RuntimeError" in told.stderr
    assert "Traceback" not in told.stderr
