"""A loss that jumps: what the ring keeps of the steps before, and which kind, step and module a finding names."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

import sonde as package
from conftest import Sonde
from sonde.core.seed_statistics import band_limit
from sonde.observe.ring import DENSE, STEPS, _Band
from sonde.show.live.store_poller import PageState, StoreFollower

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import spikes

sys.path.pop(0)

AT = 113


class Plain:
    """An MLP in float64 that is trained on a batch too large in step `AT`, and what a naive loop sees of each step."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)).double()
        self.criterion, self.optimiser = nn.CrossEntropyLoss(), torch.optim.Adam(self.model.parameters(), 1e-3)
        self.gradients: list[dict[str, float]] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        self.losses: list[float] = []
        self.options = options

    def train(self, steps: int = 160, *, watched: bool = True) -> Any:
        torch.manual_seed(1)
        target = torch.randn(10, 5).double()
        watch = (
            package.watch(self.model, self.optimiser, loss=self.criterion, **{"runs": None, **self.options})
            if watched
            else None
        )
        for step in range(steps):
            x = torch.randn(32, 10).double()
            y = (x @ target).argmax(1)
            self.optimiser.zero_grad()
            loss = self.criterion(self.model(30 * x if step == AT else x), y)
            loss.backward()
            self.optimiser.step()
            self.losses.append(loss.item())
            named = dict(self.model.named_parameters())
            self.gradients.append({name: p.grad.norm().item() for name, p in named.items() if p.grad is not None})
            self.weights.append({name: p.detach().clone() for name, p in named.items()})
        return watch


def entries(weight: torch.Tensor) -> torch.Tensor:
    flat = weight.flatten()
    return flat[:: max(1, len(flat) // 64)][:64]


def test_the_ring_writes_the_steps_before_a_spike_as_naive_code_computes_them() -> None:
    program = Plain()
    watch = program.train()
    assert {one["step"] for one in watch.facts["spikes"]} == {AT}
    rows = watch.rows
    window = range(AT - STEPS + 1, AT + DENSE + 1)
    assert set(rows["step"]) == {*range(10), 25, 50, 75, 100, 150, *window}
    for metric in ("weight_grad_norm", "update_sample", "loss"):
        known = rows.filter(pl.col("metric") == metric, pl.col("step").is_between(window[0], window[-1]))
        assert set(known["step"]) == set(window), metric
    for step, module, metric, value in rows.select("step", "module", "metric", "value").iter_rows():
        if metric == "weight_grad_norm":
            assert value == pytest.approx(program.gradients[step][module], rel=1e-12)
        if metric == "loss":
            assert value == pytest.approx(program.losses[step], rel=1e-12)
        if metric == "update_sample":
            now, before = (entries(program.weights[at][module]) for at in (step, step - 1))
            assert value == pytest.approx(((now - before).norm() / before.norm()).item(), rel=1e-9)
        if metric == "learning_rate":
            assert value == 1e-3
    assert rows.group_by("step", "module", "metric").len()["len"].max() == 1
    watch.close()


def test_the_steps_after_a_spike_are_watched() -> None:
    watch = Plain().train()
    steps = watch.rows.filter(metric="out_rms", module="(model)")["step"].to_list()
    assert steps == [*range(10), 25, 50, 75, 100, *range(AT + 1, AT + 1 + DENSE), 150]
    watch.close()


def test_weights_are_the_same_bits_with_a_spike_under_a_watch() -> None:
    watched, alone = Plain(), Plain()
    watched.train().close()
    alone.train(watched=False)
    for name, weight in watched.weights[-1].items():
        assert torch.equal(weight, alone.weights[-1][name])


def test_a_loss_that_is_logged_after_the_step_is_compared_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    watch = package.watch(model, optimiser, runs=None)
    for step in range(60):
        x = torch.randn(8, 3)
        optimiser.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimiser.step()
        watch.log(100 * loss if step == 40 else loss)
    assert [one["step"] for one in watch.facts["spikes"]] == [40]
    watch.close()


def test_without_a_spike_nothing_is_written_beside_the_watched_steps() -> None:
    watch = Plain().train(AT)
    assert set(watch.rows["step"]) == {*range(10), 25, 50, 75, 100}
    assert "spikes" not in watch.facts
    watch.close()


def test_a_band_follows_a_trend_and_scales_with_the_noise() -> None:
    falling = [10 - 0.2 * step for step in range(32)]
    assert band_limit(falling, 1.0) < falling[0]
    noisy = [1 + 0.1 * (-1) ** step for step in range(32)]
    apart = 0.2
    assert band_limit(noisy, 1.0) == pytest.approx(1 + 6 * 1.4826 * apart / math.sqrt(2))
    assert band_limit([2.0] * 32, 1.5) == 3.0


def test_a_band_takes_what_follows_a_spike_shortly_for_the_same_one() -> None:
    band = _Band(1.3)
    high = [*range(40, 44), 40 + 2 * DENSE - 1, 40 + 2 * DENSE]
    found = [step for step in range(high[-1] + 1) if band.is_spike(step, 9.0 if step in high else 1.0)]
    assert found == [40, 40 + 2 * DENSE]


@pytest.mark.parametrize(
    ("program", "kind"),
    [("mlp", "batch"), ("mlp", "rate"), ("mlp", "moment"), ("mlp", "overflow"), ("language", "router")],
)
def test_kind_step_and_module_of_a_planted_spike_are_named(program: str, kind: str) -> None:
    score = spikes.diagnosed(spikes.Case(program, kind, 200 + list(spikes.KINDS).index(kind)))
    assert score["right"], score
    assert score["module_right"] is not False


def test_report_and_live_page_have_what_moved_first_around_the_spike(tmp_path: Path, sonde: Sonde) -> None:
    case = spikes.Case("mlp", "moment", 206)
    spikes.Run(case).train(runs=tmp_path / "runs").close()
    sonde("report", "--no-figures")
    follower = StoreFollower(tmp_path / "runs")
    follower.refresh()
    live = PageState("runs", "title").build(follower.stored(), follower.stamps)["html"]["watched_runs"]
    for page in ((tmp_path / "report.html").read_text(), live):
        around = page.partition("Around step ")[2].partition("</details>")[0]
        _, first, *_ = re.findall(r"<tr.*?</tr>", around, re.S)
        name, step, *_ = (re.sub("<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", first, re.S))
        assert name.startswith(case.modules[0])
        assert case.at <= int(step) <= case.at + 1


def test_attention_logits_are_named_as_the_kind() -> None:
    score = spikes.diagnosed(spikes.Case("vision", "attention", 9))
    assert score["right"], score
    assert score["module_right"]


def test_the_report_shows_what_moved_first(tmp_path: Path, sonde: Sonde) -> None:
    watch = spikes.Run(spikes.Case("mlp", "moment", 206)).train(runs=tmp_path / "runs")
    watch.close()
    sonde("report", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    table = page[page.index("what moved first") :]
    first = re.search(r'<th scope="row" class="left">(.*?)</th>', table)
    assert first is not None
    assert first[1].startswith("layers.1.")


@pytest.mark.parametrize("program", spikes.PROGRAMS)
def test_a_healthy_program_has_no_spike(program: str) -> None:
    assert spikes.diagnosed(spikes.Case(program, None, 500))["said"] is None


def test_the_page_has_the_scores_of_the_benchmark() -> None:
    scores = json.loads((spikes.HERE / "spikes.json").read_text())
    assert spikes.summary(scores["runs"]) == scores["summary"]
    page = spikes.PAGE.read_text()
    assert spikes.placed(page, spikes.table(scores["summary"])) == page, "python benchmarks/spikes.py writes it anew"
