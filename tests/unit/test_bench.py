"""The benchmark's bookkeeping: orders, ratios, operations, rows.  No test asserts a time."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import Sonde
from sonde.cli.train import import_benchmark
from sonde.models import Model, PlainMLP, ResidualMLP, ResMLP
from sonde.rules import RULES, Frozen
from sonde.training import backward_by_hand
from sonde.training.kernels import by_mm

import_benchmark()

from sonde_bench import BENCHES, Options, Row, peers, table  # noqa: E402
from sonde_bench.arithmetic import Products, flops, forward_flops  # noqa: E402
from sonde_bench.cifar10 import Jobs, WholeEpoch  # noqa: E402
from sonde_bench.jax_loops import NO_JAX, has_jax  # noqa: E402
from sonde_bench.loops import (  # noqa: E402
    BATCH,
    NO_BIOTORCH,
    NO_COMPILER,
    NOT_QUICK,
    Noise,
    has_biotorch,
    program,
)
from sonde_bench.measure import Variant, measure  # noqa: E402
from sonde_bench.stacking import Stacking  # noqa: E402
from sonde_bench.startup import StartUp  # noqa: E402
from sonde_bench.steps import Steps  # noqa: E402

KEYS = {"name", "ours", "reference", "limit", "ratio", "p10", "p90", "bar", "compiling"}
MLP_512, MLP_1024 = PlainMLP(d=512, L=3), PlainMLP(d=1024, L=7)


class Clock:
    """Time goes by only where somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.worked: list[str] = []

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, seconds: list[float]) -> Variant:
        """The first of the seconds is the warm-up's."""
        left = iter(seconds)

        def run() -> None:
            self.now += next(left)
            self.worked.append(name)

        return Variant(run, 2)


def test_a_round_has_every_variant_once_in_an_order_of_its_own() -> None:
    clock = Clock()
    rounds = 20
    measure({name: clock.work(name, [1.0] * (rounds + 1)) for name in "abc"}, rounds, clock=clock)
    orders = [tuple(clock.worked[first : first + 3]) for first in range(0, len(clock.worked), 3)]
    assert len(orders) == rounds + 1  # and one unmeasured
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) > 1


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    clock = Clock()
    variants = {
        "ours": clock.work("ours", [100.0, 2.0, 4.0, 6.0, 8.0, 40.0]),
        "reference": clock.work("reference", [100.0, 2.0, 2.0, 2.0, 2.0, 2.0]),
    }
    row = measure(variants, 5, clock=clock).row("a", "ours", "reference", bar=2.5)
    assert (row.ours, row.reference) == (3.0, 1.0)  # a step, of two
    assert row.ratio == 3.0
    assert row.p10 == pytest.approx(1.4)  # between 1 and 2, the first two of five
    assert row.p90 == pytest.approx(13.6)
    assert row.above_bar


def test_rounds_are_told_as_they_end() -> None:
    told: list[tuple[int, int]] = []
    clock = Clock()
    measure({"a": clock.work("a", [1.0] * 4)}, 3, clock=clock, on_round=lambda *round: told.append(round))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa"])
@pytest.mark.parametrize(
    "model",
    [
        MLP_512,
        PlainMLP(d=16, L=5),
        ResMLP(d=16, L=2),
        ResidualMLP(d=16, L=3),
        ResidualMLP(d=16, out_ln=False),
    ],
)
def test_operations_are_those_pytorch_counts_in_the_real_step(
    rule: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backward_by_hand, "faster_product", lambda *_, **__: by_mm)  # oneDNN's it does not count
    trained = program(model, RULES[rule](), Noise(shape=(784,), steps=1))
    x, _ = next(trained.data.batches(BATCH, trained.order))
    with FlopCounterMode(display=False) as counted:
        trained.train_epoch(1)
    assert flops(trained.net, trained.config.rule, x) == counted.get_total_flops()


@pytest.mark.parametrize(("model", "share"), [(MLP_512, 0.757), (MLP_1024, 0.693)])
def test_direct_feedback_saves_a_quarter_of_the_operations_or_more(model: PlainMLP, share: float) -> None:
    net = program(model, RULES["bp"](), Noise(shape=(784,), steps=1)).net
    x = torch.zeros(BATCH, 784)
    saved = flops(net, RULES["dfa"](), x) / flops(net, RULES["bp"](), x)
    assert saved == pytest.approx(share, abs=5e-4)


def test_feedback_alignment_saves_none() -> None:
    trained = program(MLP_512, RULES["fa"](), Noise(shape=(784,), steps=1))
    x = torch.zeros(BATCH, 784)
    assert flops(trained.net, RULES["fa"](), x) == flops(trained.net, RULES["bp"](), x)


@pytest.mark.parametrize("networks", [1, 3])
def test_the_products_alone_are_those_of_backprop(networks: int) -> None:
    trained = program(ResidualMLP(d=16, L=3), RULES["bp"](), Noise(shape=(3, 4, 4), steps=1))
    x, _ = next(trained.data.batches(BATCH, trained.order))
    products = Products(trained.net, BATCH, networks=networks)
    with FlopCounterMode(display=False) as counted:
        products()
    assert products.flops == counted.get_total_flops() == networks * flops(trained.net, RULES["bp"](), x)


def test_the_operations_of_a_forward_pass_are_those_pytorch_counts() -> None:
    net = program(ResidualMLP(d=16, L=3), RULES["bp"](), Noise(shape=(3, 4, 4), steps=1)).net
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        net(torch.zeros(7, 3, 4, 4))
    assert forward_flops(net, 7) == counted.get_total_flops()


def test_runs_in_a_stack_have_the_limit_of_their_products() -> None:
    (row,) = Stacking(widths=(16,), runs=(2,), rounds=1)(Options(quick=True))
    assert row.ours is not None
    assert row.limit is not None
    assert 0 < row.limit < row.ours


def test_the_operations_of_other_rules_are_counted_as_they_run() -> None:
    trained = program(PlainMLP(d=4, L=1), Frozen(), Noise(shape=(4,), steps=1))
    x = torch.randn(2, 4)
    assert flops(trained.net, RULES["usf"](), x) == flops(trained.net, RULES["bp"](), x)
    assert flops(trained.net, Frozen(), x) < flops(trained.net, RULES["bp"](), x)


def tiny(**bars: float) -> Steps:
    return Steps(label="tiny", model=PlainMLP(d=4, L=2), shape=(6,), bars=bars, products_bar=0.0, steps=1, rounds=3)


def test_a_row_above_its_bar_says_where_the_time_goes() -> None:
    rows = {row.name: row for row in tiny(bp=1e9)(Options())}
    assert not rows["bp, tiny"].profile
    slow = rows["bp, tiny ÷ its matrix products"]
    assert any("addmm" in line for line in slow.profile)
    assert slow.name in "\n".join(table.profiles(list(rows.values())))


@pytest.mark.skipif(not has_biotorch(), reason=NO_BIOTORCH)
def test_biotorch_has_rows_of_its_own_and_a_column_in_the_table() -> None:
    rows = list(tiny(dfa=1e9)(Options()))
    ours, theirs = rows
    assert theirs.biotorch_of == ours.name
    (line,) = table.lines(rows)
    assert all(line)


def test_a_peer_that_is_absent_has_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "has_jax", lambda: False)
    monkeypatch.setattr(peers, "has_compiler", lambda: False)
    rows = list(replace(tiny(bp=1e9), peers=True)(Options()))
    absent = {row.name: row.skipped for row in rows if row.skipped}
    assert absent == {"bp, tiny ÷ JAX": NO_JAX, "bp, tiny ÷ torch.compile": NO_COMPILER}
    assert any("JAX is not installed" in line[0] for line in table.lines(rows))


@pytest.mark.skipif(not has_jax(), reason=NO_JAX)
def test_jax_is_measured_in_the_same_rounds_and_its_compiling_beside() -> None:
    rows = {row.name: row for row in replace(tiny(bp=1e9), peers=True)(Options(quick=True))}
    row = rows["bp, tiny ÷ JAX"]
    assert row.ratio is not None
    assert row.compiling is not None
    assert "compiled in" in table.lines([row])[0][2]
    assert rows["bp, tiny ÷ torch.compile"].skipped in (NOT_QUICK, NO_COMPILER)


def test_rows_have_the_keys_programs_read() -> None:
    assert set(Row(name="a").to_json()) == KEYS


@pytest.mark.parametrize("bench", [WholeEpoch(bar=1.2, rounds=1), Jobs(bar=0.6, rounds=1)])
def test_without_images_a_row_says_that_it_was_skipped(bench: WholeEpoch | Jobs, tmp_path: Path) -> None:
    (row,) = bench(Options(data_root=tmp_path))
    assert row.skipped == "no images; --data-root or SONDE_DATA"
    assert row.ratio is None
    assert "skipped" in table.lines([row])[0][0]


def test_results_are_saved_with_the_machine(tmp_path: Path) -> None:
    row = Row(name="a", ours=2e-3, reference=1e-3, ratio=2.0, p10=1.9, p90=2.1, bar=1.0, profile=("slow",))
    table.save(tmp_path / "new", [row], table.machine())
    stored = json.loads((tmp_path / "new" / "results.json").read_text())
    assert stored["rows"] == [row.to_json()]
    assert {"processor", "cores", "packages", "threads", "date"} <= set(stored["machine"])
    page = (tmp_path / "new" / "results.md").read_text()
    assert stored["machine"]["packages"]["torch"] in page
    assert "2.000" in page
    assert "slow" in page
    assert table.TRIED.read_text(encoding="utf-8") in page
    widths = [line.count("|") for line in page.splitlines() if line.startswith("|")]
    assert all(above == below for above, below in pairwise(widths))


def test_the_command_names_the_benchmarks(sonde: Sonde) -> None:
    listed = json.loads(sonde("bench", "--list", "--json").stdout)
    assert [entry["name"] for entry in listed] == list(BENCHES)
    assert "residual_256" in sonde("bench", "--list").stdout
    unknown = sonde("bench", "residual_265", check=False)
    assert unknown.returncode == 2
    assert "did you mean 'residual_256'" in unknown.stderr


def test_start_up_is_measured_against_an_interpreter_that_does_nothing() -> None:
    for row in StartUp(rounds=3)(Options(quick=True)):
        assert row.ours is not None
        assert row.reference is not None
        assert row.ours > row.reference == row.limit > 0


def test_without_a_checkout_the_command_says_where_the_benchmark_is(
    sonde: Sonde, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = sys.modules[import_benchmark.__module__]  # in `sonde.cli`, its name is the function's
    monkeypatch.setattr(command, "__file__", str(tmp_path / "lib" / "sonde" / "cli" / "bench.py"))
    refused = sonde("bench", "--list", check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "checkout" in refused.stderr
    assert "make bench" in refused.stderr


def test_the_command_prints_rows(sonde: Sonde) -> None:
    done = sonde("bench", "residual_256", "--quick", "--json", "--save", "saved")
    rows = json.loads(done.stdout)
    assert all(set(row) == KEYS for row in rows)
    assert {row["bar"] for row in rows} == {0.97, None}
    assert all(row["p10"] <= row["ratio"] <= row["p90"] for row in rows if row["ratio"] is not None)
    assert "residual_256" in done.stderr


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(sonde: Sonde, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = sonde("bench", "--quick", "stacked", "--save", str(tmp_path / "file"), check=False)
    assert refused.returncode == 2
    assert "is a file: name a folder" in refused.stderr
    assert "[1/1]" not in refused.stderr


def test_the_page_of_speed_shows_the_stored_results() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "speed.md").read_text()
    rows = json.loads((root / "benchmarks" / "results.json").read_text())["rows"]
    for row in (row for row in rows if row["bar"] is not None):
        mark = "\\*" if row["ratio"] > row["bar"] else ""
        spread = f"{row['p10']:.3f}–{row['p90']:.3f}"
        assert f"| {row['name']} | {row['ratio']:.3f}{mark} | {spread} | {row['bar']:.2f} |" in page
    again = {row["name"]: row for row in json.loads((root / "benchmarks" / "one_network.json").read_text())["rows"]}
    for name in (name for name in again if f"{name} ÷ JAX" in again):
        alone, jax, compiled = (again[name + ending] for ending in ("", " ÷ JAX", " ÷ torch.compile"))
        spread = f"{jax['ratio']:.2f} | {jax['p10']:.2f}–{jax['p90']:.2f}"
        assert f"| {name} | {alone['ratio']:.2f} | {spread} | {compiled['ratio']:.2f} |" in page
    ratios = {row["name"]: row["ratio"] for row in rows}
    compared = [name for name in ratios if f"{name} ÷ JAX" in ratios]
    assert compared
    for name in compared:
        peers = " | ".join(f"{ratios[name + ending]:.2f}" for ending in ("", " ÷ JAX", " ÷ torch.compile"))
        assert f"| {name} | {peers} |" in page
