"""Watches of models that several processes hold together, against the same model in one process."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from polars.testing import assert_frame_equal
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import sonde
from sonde.observe.ring import DENSE

sys.path.insert(0, str(Path(__file__).parent))
from shard_worker import EVERY, LOSS, SPIKE, SPIKE_EVERY, SPIKE_STEPS, STEPS, WATCHED_STEPS, adam, made, train

pytestmark = pytest.mark.timeout(1200)  # a busy machine imports PyTorch slowly, in every process
WORKER = Path(__file__).parent / "shard_worker.py"
METRICS = ("weight_norm", "weight_grad_norm", "update_ratio")
POOLED = ("out_rms", "out_mean", "out_max", "grad_rms", "dead_share", "saturated_share", "masked_growth", "loss")
CLOSE = {"64": 1e-12, "32": 1e-6}


class Worker:
    """One process of several.  It writes into files: nobody has to read a pipe for it to go on."""

    def __init__(self, folder: Path, cases: list[str], world: int, rank: int, **environment: str) -> None:
        self.rank, self._out, self._err = rank, folder / f"out-{rank}", folder / f"err-{rank}"
        known = {"OMP_NUM_THREADS": "1", "WORLD": str(world), "RANK": str(rank), "MEETING": str(folder / "meeting")}
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER), str(folder / "runs"), *cases],
                stdout=out,
                stderr=err,
                env={**os.environ, **known, **environment},
            )

    @property
    def found(self) -> dict[str, dict[str, Any]]:
        """What it printed for each case that it finished."""
        return {one["case"]: one for one in map(json.loads, self._out.read_text().splitlines())}

    @property
    def warned(self) -> str:
        return self._err.read_text()

    def __str__(self) -> str:
        """How it ended, with the first and the last lines of what it warned of."""
        lines = [line[:300] for line in self.warned.splitlines()]
        kept = lines if len(lines) <= 60 else [*lines[:20], "…", *lines[-40:]]
        return "\n".join([f"rank {self.rank}: {self.process.poll()} after {list(self.found)}", *kept])


def ended(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The same, when each has ended; none is left behind, even if one does not end."""
    try:
        for worker in workers:
            worker.process.wait(timeout=900)
    except subprocess.TimeoutExpired:
        pytest.fail("a process does not end\n" + "\n".join(map(str, workers)))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
    return workers


def run(folder: Path, cases: list[str], world: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What each process prints for each case, by rank; and what each warns of."""
    workers = ended([Worker(folder, cases, world, rank) for rank in range(world)])
    assert all(worker.process.returncode == 0 for worker in workers), "\n".join(map(str, workers))
    return [worker.found for worker in workers], [worker.warned for worker in workers]


def of_case(folder: Path, case: str) -> pl.DataFrame:
    stored = sonde.load(folder / "runs")
    (run,) = (watched.id for watched in stored.watched if watched.about["label"] == case)
    return stored.rows.filter(run=run)


@functools.cache
def unsharded(bits: str) -> pl.DataFrame:
    dtype = getattr(torch, f"float{bits}")
    model = made(dtype)
    optimiser = adam(model)
    with sonde.watch(model, optimiser, loss=LOSS, runs=None, every=EVERY) as watch:
        train(model, optimiser, dtype, range(STEPS))
        return watch.rows


def assert_equals_unsharded(rows: pl.DataFrame, kind: str, bits: str) -> None:
    keys = ["step", "module", "metric"]
    metrics = METRICS if kind in ("tensor", "both") else (*METRICS, *POOLED)  # with whole features
    ours, truth = (some.filter(pl.col("metric").is_in(metrics)) for some in (rows, unsharded(bits)))
    columns = [*keys, "value", "defined", "reason", "samples"]
    both = truth.select(columns).join(
        ours.select(columns), on=keys, how="full", suffix="_ours", validate="1:1", nulls_equal=True
    )
    assert both.height == truth.height == ours.height
    assert both["defined"].to_list() == both["defined_ours"].to_list()
    assert both["reason"].to_list() == both["reason_ours"].to_list()
    same = pl.col("metric") != "loss"  # of a loss, `samples` are its calls
    assert both.filter(same)["samples"].to_list() == both.filter(same)["samples_ours"].to_list()
    there = both.filter(pl.col("defined") & (pl.col("value").abs() > 1e-4))
    assert there.height > 25 * WATCHED_STEPS
    apart = (pl.col("value_ours") / pl.col("value") - 1).abs()
    if bits == "32":  # later, and in the update itself, training in float32 rounds differently in parts
        there = there.filter((pl.col("step") == 0) & (pl.col("metric") != "update_ratio"))
    assert there.select(apart).max().item() <= CLOSE[bits]


def assert_equals_gathered(rows: pl.DataFrame, truth: list[dict[str, list[float]]], bits: str) -> None:
    """Against parameters that were gathered around the steps of the same sharded run."""
    known = {(row["step"], row["module"], row["metric"]): row["value"] for row in rows.to_dicts() if row["defined"]}
    compared = 0
    for (step, module, metric), value in known.items():
        if metric in METRICS and module in truth[step]:
            weight, gradient, update, _ = truth[step][module]
            right = [weight, gradient, update / weight if weight else None][METRICS.index(metric)]
            assert value == pytest.approx(right, rel=CLOSE[bits], abs=0), (step, module, metric)
            compared += 1
    assert compared > 25 * WATCHED_STEPS


def check_spike(folder: Path, cases: list[str], world: int) -> None:
    """After a spike on the last rank all ranks watch the same steps, and the ring has the whole of every parameter."""
    found, warned = run(folder, cases, world)
    assert not any("are undefined" in err for err in warned), warned
    dense = range(SPIKE // SPIKE_EVERY * SPIKE_EVERY + SPIKE_EVERY + 1, 99)[:DENSE]
    least = {*range(10), *range(0, SPIKE_STEPS, SPIKE_EVERY), *dense}
    for case in cases:
        rows, (kind, bits, _) = of_case(folder, case), case.split("-")
        watched = rows.filter(metric="out_rms", module="up")["step"].to_list()
        assert least <= set(watched), "the loss of another rank may leave its band later"
        for known in found:
            assert known[case]["collectives"] == len(watched)
            assert known[case]["same"], "watching changed the weights"
        truth = found[0][case]["truth"]
        assert_equals_gathered(rows, truth, bits)
        moved = rows.filter(metric="update_sample").filter(pl.col("defined"))
        assert {*range(1, dense[-1] + 1)} <= set(moved["step"])
        for step, module, value in moved.select("step", "module", "value").iter_rows():
            assert value == pytest.approx(truth[step][module][3], rel=CLOSE[bits], abs=0), (step, module)
        if kind == "fsdp":
            assert {*range(dense[-1] + 1)} <= set(rows.filter(metric="loss")["step"])
        (stored,) = (one for one in sonde.load(folder / "runs").watched if one.about["label"] == case)
        assert (SPIKE, "loss") in {(one["step"], one["of"]) for one in stored.facts["spikes"]}


@pytest.mark.parametrize("world", [2, 4])
def test_processes_watch_the_same_steps_after_a_spike_and_rings_hold_whole_parameters(
    world: int, tmp_path: Path
) -> None:
    check_spike(tmp_path, ["ddp-64-spike", "fsdp-64-spike", "tensor-64-spike"], world)


@pytest.mark.slow
def test_rings_of_four_processes_hold_whole_parameters_on_meshes_of_one_and_two_axes(tmp_path: Path) -> None:
    check_spike(tmp_path, ["hybrid-64-spike", "both-64-spike", "zero-64-spike"], 4)


def check(folder: Path, cases: list[str], world: int) -> None:
    found, warned = run(folder, cases, world)
    assert not any("are undefined" in err for err in warned), warned
    for case in cases:
        for rank, known in enumerate(found):
            assert known[case]["collectives"] == WATCHED_STEPS
            assert known[case]["same"], "watching changed the weights"
            assert (known[case]["height"] > 0) == (rank == 0)
        rows, (kind, bits) = of_case(folder, case), case.split("-")
        assert_equals_gathered(rows, found[0][case]["truth"], bits)
        assert_equals_unsharded(rows, kind, bits)
    assert len(sonde.load(folder / "runs").watched) == len(cases)


def test_norms_of_two_processes_are_those_of_one_and_cost_one_collective_a_watched_step(tmp_path: Path) -> None:
    check(tmp_path, ["fsdp-64", "fsdp-32", "tensor-64", "tensor-32", "offload-64", "ignored-64"], 2)


def test_outputs_of_data_parallel_processes_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    cases = ["ddp-64", "ddp-32", "nosync-64", "zero-64"]
    check(tmp_path, cases, 2)
    assert all(run.facts["ranks"] == 2 for run in sonde.load(tmp_path / "runs").watched)


def test_norms_and_outputs_of_four_processes_are_those_of_one(tmp_path: Path) -> None:
    check(tmp_path, ["ddp-64", "zero-64", "fsdp-64", "tensor-64"], 4)


def test_processes_whose_mesh_is_without_rank_0_watch_and_wait_for_nobody(tmp_path: Path) -> None:
    """Two processes hold one model and two another; rank 0 records its own."""
    found, warned = run(tmp_path, ["apart-64"], 4)
    assert not any("are undefined" in err for err in warned), warned
    assert [known["apart-64"]["collectives"] for known in found] == [WATCHED_STEPS, WATCHED_STEPS, 0, 0]
    assert all(known["apart-64"]["same"] for known in found), "watching changed the weights"
    rows = of_case(tmp_path, "apart-64")
    assert_equals_gathered(rows, found[0]["apart-64"]["truth"], "64")
    assert_equals_unsharded(rows, "apart", "64")


@pytest.mark.slow
def test_norms_of_four_processes_are_those_of_one_on_meshes_of_one_and_two_axes(tmp_path: Path) -> None:
    kinds = ("fsdp", "tensor", "hybrid", "both", "ddp", "zero")
    check(tmp_path, [f"{kind}-{bits}" for kind in kinds for bits in CLOSE], 4)


def test_processes_that_do_not_watch_alike_train_on_and_sharded_parameters_are_undefined(tmp_path: Path) -> None:
    cases = ["only_first", "only_second", "other_steps", "other_modules", "second_closes", "first_closes"]
    cases += ["second_gives_up", "flat", "no_optimiser"]
    found, warned = run(tmp_path, cases, 2)
    assert [known["height"] for known in found[1].values()] == [0] * len(cases)
    assert all("undefined" in err for err in warned)
    assert len(sonde.load(tmp_path / "runs").watched) == len(cases) - 1
    undefined = {"only_first": "rank 1 does not watch", "other_steps": "rank 1 watches other", "flat": "FSDP1"}
    undefined["other_modules"] = "rank 1 watches other modules"
    for case, words in undefined.items():
        weights = of_case(tmp_path, case).filter(pl.col("metric").is_in(METRICS))
        assert not weights["defined"].any()
        assert all(words in reason for reason in weights["reason"])
    alone, beside = (
        of_case(tmp_path, case)
        .filter(pl.col("metric").is_in(METRICS[:2]) & (pl.col("step") < 2))
        .sort("step", "metric", "module")
        .select("step", "metric", "module", "value", "reason")
        for case in ("no_optimiser", "first_closes")
    )
    assert_frame_equal(alone, beside, check_exact=True)
    for case in ("second_closes", "second_gives_up"):
        weights = of_case(tmp_path, case).filter(metric="weight_norm")
        assert weights.filter(pl.col("step") < 3)["defined"].all()
        later = weights.filter(pl.col("step") >= 3)
        assert later["step"].max() == 12
        assert not later["defined"].any()
        assert all("rank 1" in reason for reason in later["reason"])


def test_a_process_that_is_silent_or_raises_holds_the_other_no_longer_than_the_timeout_of_the_group(
    tmp_path: Path,
) -> None:
    cases = ["second_is_silent", "second_raises"]
    first, second = ended(
        [Worker(tmp_path, cases, 2, rank, TIMEOUT=seconds) for rank, seconds in enumerate(("10", "300"))]
    )
    assert "planted" in second.warned
    assert "the sum over processes failed" in first.warned, str(first)
    assert cases[0] in first.found, "training went on to its end"
    for case in cases:
        weights = of_case(tmp_path, case).filter(metric="weight_norm")
        assert set(range(3)) <= set(weights["step"])
        assert weights.filter(pl.col("step") < 3)["defined"].all()
        assert not weights.filter(pl.col("step") >= 3)["defined"].any()


def test_outputs_are_those_of_rank_0_where_data_parallel_processes_do_not_watch_alike(tmp_path: Path) -> None:
    words = {
        "only_first": "rank 1 does not watch",
        "other_modules": "rank 1 watches other",
        "second_closes": "any more",
    }
    cases = [f"ddp_{case}" for case in words]
    _, (warned, _) = run(tmp_path, [cases[0], "ddp_only_second", *cases[1:]], 2)
    for case, said in zip(cases, words.values(), strict=True):
        assert said in warned
        samples = of_case(tmp_path, case).filter(metric="out_rms", module="up")["samples"].to_list()
        assert samples == ([8] * 3 if case == "ddp_second_closes" else [4] * 3) + [4] * (WATCHED_STEPS - 3)
        assert of_case(tmp_path, case).filter(metric="weight_norm")["defined"].all()
    assert all(run.facts["ranks"] == 1 for run in sonde.load(tmp_path / "runs").watched)


# In one process


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def distributed(placement: Any) -> nn.Linear:
    model = nn.Linear(4, 3, bias=False)
    mesh = init_device_mesh("cpu", (1,))
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [placement]))
    return model


def stepped(model: nn.Linear, placement: Any) -> pl.DataFrame:
    """The rows of the weight in one step with a gradient that is placed in this way."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    with sonde.watch(model, optimiser, runs=None) as watch:
        grad = DTensor.from_local(torch.ones(3, 4), model.weight.device_mesh, [placement], run_check=False)
        model.weight.grad = grad
        optimiser.step()
        return watch.rows.filter(module="weight")


@pytest.mark.filterwarnings("ignore:.*no call of the model")
@pytest.mark.usefixtures("alone")
def test_a_partial_gradient_is_undefined_by_name() -> None:
    rows = {row["metric"]: row for row in stepped(distributed(Replicate()), Partial()).to_dicts()}
    assert rows["weight_norm"]["defined"]
    assert not rows["weight_grad_norm"]["defined"]
    assert "Partial" in rows["weight_grad_norm"]["reason"]


@pytest.mark.filterwarnings("ignore:.*no call of the model")
@pytest.mark.usefixtures("alone")
def test_without_a_process_group_sharded_parameters_are_undefined_with_a_warning() -> None:
    model = distributed(Shard(0))
    dist.destroy_process_group()
    with pytest.warns(UserWarning, match="not initialised"):
        rows = stepped(model, Shard(0))
    assert not rows["defined"].any()
    assert all("not initialised" in reason for reason in rows["reason"])


@pytest.mark.filterwarnings("ignore:.*no call of the model")
@pytest.mark.usefixtures("alone")
def test_a_sharded_model_is_not_experimented_with() -> None:
    model = distributed(Shard(0))
    watch = sonde.watch(model, torch.optim.SGD(model.parameters(), 0.1), runs=None, loss=nn.functional.mse_loss)
    with pytest.warns(UserWarning, match="experimented"):
        watch.diagnose((torch.zeros(2, 4), torch.zeros(2, 3)))
    watch.close()
