"""What a step is, and which passes belong to it."""

import math
import warnings
from typing import Any

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import sonde
from sonde.observe.step_record import is_costly, is_watched, next_watched
from watch_programs import Cell, Checkpointed, Recurrent, Transformer, plain_mlp, tokens, vectors


def value(watch: Any, module: str | None, metric: str, step: int = 0) -> float:
    found = rows(watch, module, metric, step)
    assert found["defined"].all(), found["reason"].to_list()
    return float(found["value"].item())


def reason(watch: Any, module: str | None, metric: str, step: int = 0) -> str:
    found = rows(watch, module, metric, step)
    assert not found["defined"].any()
    return str(found["reason"].item())


def rows(watch: Any, module: str | None, metric: str, step: int) -> pl.DataFrame:
    named = pl.col("module").is_null() if module is None else pl.col("module") == module
    return watch.rows.filter(named & (pl.col("metric") == metric) & (pl.col("step") == step))


def rms(*tensors: Tensor) -> float:
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    return float(flat.square().mean().sqrt())


def test_watched_are_the_first_ten_steps_and_then_every_25th() -> None:
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(60):
        model(torch.ones(3, 2)).sum().backward()
        optimiser.step()
    assert watch.step == 60
    assert watch.rows["step"].unique().sort().to_list() == [*range(10), 25, 50]
    assert [step for step in range(60) if is_watched(step, 25)] == [*range(10), 25, 50]


@pytest.mark.parametrize("every", [1, 3, 25, 1000])
def test_the_next_watched_step_is_the_next_one_that_is_watched(every: int) -> None:
    for step in range(200):
        following = next(later for later in range(step + 1, 2000) if is_watched(later, every))
        assert next_watched(step, every) == following


def test_costly_steps_are_watched_and_become_rare() -> None:
    costly = [step for step in range(30_000) if is_costly(step, 25)]
    assert costly == [0, 25, 100, 400, 1600, 6400, 25_600]
    assert all(is_watched(step, 25) for step in costly)


def test_micro_batches_of_a_step_are_pooled() -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    outputs, norms = [], []
    for step in range(2):
        for part in range(3):
            out = model(vectors(3 * step + part)[0])
            out.retain_grad()
            out.square().mean().backward()
            outputs.append(out)
        norms.append(float(model[0].weight.grad.norm()))
        optimiser.step()
        optimiser.zero_grad()
    assert watch.step == 2
    for step in range(2):
        mine = outputs[3 * step : 3 * step + 3]
        assert value(watch, "4", "out_rms", step) == pytest.approx(rms(*mine), rel=1e-5)
        assert value(watch, "4", "grad_rms", step) == pytest.approx(rms(*(out.grad for out in mine)), rel=1e-5)
        assert value(watch, "0.weight", "weight_grad_norm", step) == pytest.approx(norms[step], rel=1e-5)
    assert rows(watch, "4", "out_rms", 0)["samples"].item() == 30


def test_an_evaluation_without_gradients_is_not_a_step_and_leaves_no_trace() -> None:
    found = []
    for evaluate in (False, True):
        torch.manual_seed(0)
        model = plain_mlp()
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        watch = sonde.watch(model, optimiser, runs=None)
        for step in range(3):
            if evaluate:
                with torch.no_grad():
                    model(100 * vectors(50)[0])
            optimiser.zero_grad()
            model(vectors(step)[0]).square().mean().backward()
            optimiser.step()
        found.append(watch.rows)
    assert found[0].equals(found[1])


def test_a_forward_pass_that_no_gradient_comes_back_to_is_not_part_of_the_step() -> None:
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(1000 * vectors(7)[0])
    out = model(vectors(0)[0])
    model(1000 * vectors(8)[0])
    out.square().mean().backward()
    optimiser.step()
    assert value(watch, "4", "out_rms") == pytest.approx(rms(out), rel=1e-5)


def test_gradients_cleared_without_a_step_take_their_pass_with_them() -> None:
    """As where a GradScaler skips a step, or a second network was trained through this one."""
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(1000 * vectors(7)[0]).square().mean().backward()
    out = model(vectors(0)[0])
    optimiser.zero_grad()
    out.square().mean().backward()
    optimiser.step()
    assert value(watch, "4", "out_rms") == pytest.approx(rms(out), rel=1e-5)


def test_without_an_optimiser_a_step_ends_with_the_next_forward_pass_after_a_backward_pass() -> None:
    model = plain_mlp()
    watch = sonde.watch(model, runs=None)
    outputs, norms = [], []
    for step in range(30):
        with torch.no_grad():
            model(vectors(step)[0])
        out = model(vectors(step)[0])
        out.square().mean().backward()
        norms.append(float(model[0].weight.grad.norm()))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        outputs.append(out)
    assert watch.step == 29, "the last step has not ended yet"
    for step in (0, 9, 25):
        assert value(watch, "4", "out_rms", step) == pytest.approx(rms(outputs[step]), rel=1e-5)
        assert value(watch, "0.weight", "weight_grad_norm", step) == pytest.approx(norms[step], rel=1e-5)
    assert "no optimiser" in reason(watch, "0.weight", "update_ratio")


def test_with_two_optimisers_a_step_ends_when_both_have_stepped() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first, second = (torch.optim.SGD(part.parameters(), 0.1) for part in model)
    watch = sonde.watch(model, first, second, runs=None)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        first.step()
        second.step()
    assert watch.step == 3
    assert all(watch.rows.filter(metric="update_ratio")["defined"])


def test_an_optimiser_that_never_steps_does_not_hold_up_the_others() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    first, second = (torch.optim.SGD(part.parameters(), 0.1) for part in model)
    watch = sonde.watch(model, first, second, runs=None)
    for _ in range(6):
        model(torch.randn(5, 4)).square().mean().backward()
        first.step()
    assert watch.step == 5


def test_a_discriminator_is_read_in_its_own_passes_only() -> None:
    torch.manual_seed(0)
    generator, judge = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    of_generator, of_judge = (torch.optim.SGD(net.parameters(), 0.01) for net in (generator, judge))
    watch = sonde.watch(judge, of_judge, runs=None)
    mine = []
    for _ in range(3):
        fake = 100 * generator(torch.randn(6, 3))
        of_judge.zero_grad()
        real_out, fake_out = judge(torch.randn(6, 4)), judge(torch.randn(6, 4))
        (real_out.square().mean() - fake_out.mean()).backward()
        of_judge.step()
        mine.append((real_out, fake_out))
        of_generator.zero_grad()
        judge(fake).mean().backward()
        of_generator.step()
    for step in range(3):
        assert value(watch, "2", "out_rms", step) == pytest.approx(rms(*mine[step]), rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_step_that_the_scaler_skips_is_no_step(fused: bool, set_to_none: bool, given: bool) -> None:
    kept = []
    for overflows in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2))
        optimiser = torch.optim.Adam(model.parameters(), 0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        loss = nn.MSELoss()
        watch = sonde.watch(model, optimiser, loss=loss, runs=None, every=3, scaler=scaler if given else None)
        for number in range(16):
            again = (False, True) if overflows and number in (0, 1, 2, 11, 15) else (False,)
            for overflow in reversed(again):
                optimiser.zero_grad(set_to_none=set_to_none)
                x = torch.full((5 + 2 * overflow, 3), number + 1.0)
                out = model(x)
                scaler.scale(loss(out, torch.zeros_like(out)) * (float("inf") if overflow else 1.0)).backward()
                scaler.step(optimiser)
                scaler.update()
        assert watch.step == 16
        kept.append(watch.rows.filter(~pl.col("metric").is_in(["target_mean", "target_spread"])))
        watch.close()
    keys = ["step", "module", "metric"]
    assert_frame_equal(
        *(found.sort(*keys).select(*keys, "value", "defined", "samples") for found in kept), check_exact=True
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("late", [None, False, True])
def test_the_loss_of_a_skipped_step_is_neither_recorded_nor_a_spike(fused: bool, late: bool | None) -> None:
    """By the loss module (`late` is None), or logged before or after the optimiser's step."""
    kept = []
    for overflows in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2))
        optimiser = torch.optim.Adam(model.parameters(), 0.01, fused=fused)
        scaler, loss = torch.amp.GradScaler("cpu", init_scale=1024.0), nn.MSELoss()
        with sonde.watch(model, optimiser, loss=loss if late is None else None, runs=None) as watch:
            for number in range(52):
                for overflow in (True, False) if overflows and number in (2, 11, 30, 50) else (False,):
                    optimiser.zero_grad()
                    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(number))
                    out = model(torch.inf * x if overflow else x)
                    value = loss(out, torch.zeros_like(out))
                    if late is False:
                        watch.log(value)
                    scaler.scale(value).backward()
                    scaler.step(optimiser)
                    scaler.update()
                    if late:
                        watch.log(value)
            assert watch.step == 52
            assert "spikes" not in watch.facts
            kept.append(watch.rows.filter(metric="loss").select("step", "value", "samples"))
    assert kept[0].height == (12 if late is None else 52)
    assert_frame_equal(*kept, check_exact=True)


@pytest.mark.parametrize("given", [True, False])
def test_gradients_are_freed_of_the_scale_of_a_grad_scaler(given: bool) -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watch = sonde.watch(model, optimiser, runs=None, scaler=scaler if given else None)
    out = model(vectors(0)[0])
    twin = out.detach().requires_grad_()
    scaler.scale(out.square().mean()).backward()
    scaler.step(optimiser)
    scaler.update()
    twin.square().mean().backward()
    assert value(watch, "4", "grad_rms") == pytest.approx(rms(twin.grad), rel=1e-5)
    assert value(watch, "4.bias", "weight_grad_norm") == pytest.approx(float(twin.grad.sum(0).norm()), rel=1e-5)


def test_under_float16_and_an_unknown_scale_gradients_are_undefined() -> None:
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(vectors(0)[0]).square().mean()
    (512 * loss).backward()
    optimiser.step()
    assert "scaler=" in reason(watch, "0", "grad_rms")
    assert value(watch, "0", "out_rms") > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_counts_once(reentrant: bool) -> None:
    found = []
    for checkpointed in (True, False):
        torch.manual_seed(0)
        model = Checkpointed(reentrant=reentrant).eval()  # no dropout: the plain pass must be the same
        if not checkpointed:
            model.forward = lambda x, model=model: plain_forward(model, x)  # type: ignore[method-assign]
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        watch = sonde.watch(model, optimiser, runs=None)
        for step in range(2):
            optimiser.zero_grad()
            model(vectors(step)[0]).square().mean().backward()
            optimiser.step()
        found.append(watch.rows.filter(pl.col("metric") != "grad_noise"))
        assert all(module["calls"] == 1 for module in watch.facts["modules"])
    assert found[0].drop("value", "reason").equals(found[1].drop("value", "reason"))
    assert found[0]["value"].fill_nan(0).to_list() == pytest.approx(found[1]["value"].fill_nan(0).to_list(), rel=1e-4)


def plain_forward(model: Any, x: Tensor) -> Tensor:
    h = model.stem(x)
    for block in model.blocks:
        h = h + block(h)
    out: Tensor = model.head(h)
    return out


def test_a_module_that_is_called_again_and_again_is_read_call_by_call() -> None:
    model = Cell()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    x, y = tokens(0)
    logits, _ = model({"x": x})
    functional.cross_entropy(logits.flatten(0, 1), y.flatten()).backward()
    optimiser.step()
    names = watch.rows.filter(metric="out_rms")["module"].to_list()
    assert names == ["embed", "cell", *(f"cell#{call}" for call in range(2, 8)), "head", "(model)"]
    known = {module["name"]: module["calls"] for module in watch.facts["modules"]}
    assert known["cell"] == 7
    assert watch.facts["inputs"][0]["name"] == "0.x"
    assert watch.facts["inputs"][0]["max"] <= 10


def test_modules_that_work_in_place_are_read_before_and_not_compared_after() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    x = torch.randn(5, 6)
    with torch.no_grad():
        before = functional.linear(x, model[0].weight, model[0].bias)
    model(x).sum().backward()
    optimiser.step()
    assert value(watch, "0", "out_rms") == pytest.approx(rms(before), rel=1e-5)
    assert value(watch, "1", "out_rms") == pytest.approx(rms(before.relu()), rel=1e-5)
    assert "in place" in reason(watch, "1", "stream_step")
    assert value(watch, "0", "grad_rms") > 0


def test_a_second_backward_pass_through_an_output_makes_its_gradient_undefined() -> None:
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    loss = model(vectors(0)[0]).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    optimiser.step()
    assert "second backward pass" in reason(watch, "4", "grad_rms")


def test_where_no_gradient_comes_the_reason_says_so() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.cut, self.above = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.below(x)
            return self.above(self.cut(h).detach())

    model = Cut()
    optimiser = torch.optim.SGD(model.above.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(torch.randn(3, 4)).sum().backward()
    optimiser.step()
    assert "asks for a gradient" in reason(watch, "below", "grad_rms")
    assert "no gradient came back" in reason(watch, "cut", "grad_rms")
    assert "has no gradient" in reason(watch, "below.weight", "weight_grad_norm")
    assert "no optimiser" in reason(watch, "below.weight", "update_ratio")
    unused = next(module for module in watch.facts["modules"] if module["name"] == "unused")
    assert unused == {"name": "unused", "type": "Linear", "calls": 0, "reason": "never called"}
    held = {known["name"]: known["in_optimiser"] for known in watch.facts["parameters"]}
    assert held["above.weight"]
    assert not held["cut.weight"]


def test_the_first_module_that_is_not_finite_is_named_with_its_step() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for step in range(4):
        optimiser.zero_grad()
        if step == 2:
            with torch.no_grad():
                model[2].bias[0] = math.inf
        model(torch.ones(2, 3)).sum().backward()
        optimiser.step()
    found = watch.rows.filter(metric="nonfinite")
    assert found["step"].to_list() == [2]
    assert found["module"].to_list() == [None]
    assert "weights were already not finite" in found["reason"].item()


def test_a_nan_that_the_loss_makes_is_first_seen_in_the_gradient_of_the_last_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    out = model(torch.ones(2, 3))
    (out - out.detach()).sqrt().sum().backward()
    optimiser.step()
    found = watch.rows.filter(metric="nonfinite").to_dicts()
    assert [(row["step"], row["module"], row["value"]) for row in found] == [(0, "(model)", 2.0)]


def test_a_module_whose_output_is_not_finite_is_named() -> None:
    class Bad(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x - x)

    model = nn.Sequential(nn.Linear(3, 3), Bad(), nn.Linear(3, 3))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(torch.ones(2, 3)).sum().backward()
    optimiser.step()
    found = watch.rows.filter(metric="nonfinite").to_dicts()
    assert [(row["module"], row["value"]) for row in found] == [("1", 1.0)]


@pytest.mark.parametrize("late", [False, True])
def test_a_logged_loss_belongs_to_the_step_it_was_made_in(late: bool) -> None:
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for step in range(30):
        loss = model(torch.ones(3, 2)).square().mean()
        loss.backward()
        if not late:
            watch.log(loss=float(step))
        optimiser.step()
        if late:
            watch.log(torch.tensor(float(step)))
    losses = watch.rows.filter(metric="loss").sort("step")
    assert losses["value"].to_list() == losses["step"].to_list() == list(range(30))


def test_losses_that_are_heard_and_losses_that_are_told_come_in_the_order_of_steps() -> None:
    model, criterion = nn.Linear(2, 1), nn.MSELoss()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, loss=criterion, runs=None)
    for _ in range(30):
        loss = criterion(model(torch.ones(3, 2)), torch.zeros(3, 1))
        loss.backward()
        optimiser.step()
        watch.log(loss)
    assert watch.rows.filter(metric="loss")["step"].to_list() == list(range(30))


def test_a_loss_module_is_recorded_with_its_targets() -> None:
    model, criterion = nn.Linear(2, 3), nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, loss=criterion, runs=None)
    loss = criterion(model(torch.ones(4, 2)), torch.tensor([0, 1, 2, 2]))
    loss.backward()
    optimiser.step()
    assert value(watch, None, "loss") == pytest.approx(loss.item())
    target = watch.facts["targets"][0]
    assert (target["dtype"], target["min"], target["max"]) == ("int64", 0.0, 2.0)


def test_dead_channels_of_maps_are_channels() -> None:
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 2))
    with torch.no_grad():
        model[0].bias[:2] = -100.0
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(torch.randn(3, 2, 8, 8)).sum().backward()
    optimiser.step()
    assert value(watch, "1", "dead_share") == pytest.approx(2 / 5)


def test_a_recurrent_module_is_read_at_its_sequence_of_outputs() -> None:
    torch.manual_seed(0)
    model = Recurrent()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    x, _ = tokens(0)
    out, _ = model.rnn(model.embed(x).detach())
    leaf = out.detach().requires_grad_()
    model.head(leaf).square().mean().backward()
    optimiser.zero_grad()
    model(x).square().mean().backward()
    optimiser.step()
    assert value(watch, "rnn", "out_rms") == pytest.approx(rms(out), rel=1e-5)
    assert value(watch, "rnn", "grad_rms") == pytest.approx(rms(leaf.grad), rel=1e-5)
    assert value(watch, "rnn.weight_hh_l0", "update_ratio") > 0


def test_under_autocast_outputs_are_read_in_the_precision_they_have() -> None:
    torch.manual_seed(0)
    model = plain_mlp()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    x, _ = vectors(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = functional.linear(x, model[0].weight, model[0].bias)
        model(x).float().square().mean().backward()
    optimiser.step()
    assert first.dtype == torch.bfloat16
    assert value(watch, "0", "out_rms") == pytest.approx(rms(first), rel=1e-5)
    assert value(watch, "0", "grad_rms") > 0, "bfloat16 needs no scaler"


def test_tied_weights_are_one_parameter_with_two_names() -> None:
    model = Transformer()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(tokens(0)[0]).square().mean().backward()
    optimiser.step()
    names = watch.rows.filter(metric="weight_norm")["module"].to_list()
    assert "embed.weight" in names
    assert "head.weight" not in names
    assert watch.facts["shared"] == [["embed.weight", "head.weight"]]


def test_attention_of_the_module_is_that_of_the_function() -> None:
    """`nn.MultiheadAttention` with a causal mask against the weights it returns itself."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    x, mask = torch.randn(3, 5, 8), nn.Transformer.generate_square_subsequent_mask(5)
    out, weights = model(x, x, x, attn_mask=mask, average_attn_weights=False)
    out.sum().backward()
    optimiser.step()
    entropy = torch.special.entr(weights.detach().double()).sum(-1).mean()
    assert value(watch, "(model)", "attention_entropy") == pytest.approx(float(entropy), rel=1e-5)


def test_rows_that_have_waited_long_enough_are_written(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=tmp_path)

    def stored() -> int:
        return int(sonde.load(tmp_path).rows["step"].max() or 0)

    def step() -> None:
        model(torch.ones(3, 2)).sum().backward()
        optimiser.step()

    for _ in range(4):
        step()
    assert stored() == 0, "a few rows wait"
    monkeypatch.setattr("sonde.observe.row_writer.WAITING_SECONDS", 0.0)
    watch._recorder.flush()
    step()
    assert stored() == 4
    watch.close()


def test_a_module_that_returns_its_input_has_the_gradient_of_it() -> None:
    class Passes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.same, self.last = (
                nn.Linear(4, 4),
                nn.LayerNorm(4),
                nn.Identity(),
                nn.Linear(4, 4),
            )

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x) + 1  # no module's output
            return self.last(self.norm(h) + self.same(h))

    model = Passes()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    model(torch.randn(3, 4)).square().sum().backward()
    optimiser.step()
    assert value(watch, "same", "grad_rms") == pytest.approx(value(watch, "first", "grad_rms"), rel=1e-5)
    assert value(watch, "same", "stream_step") == 0


def test_a_model_that_calls_itself_is_read_as_one_pass() -> None:
    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            out: Tensor = self.inner(x)
            return self(out, depth - 1) if depth else out

    model = Tree()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    watch = sonde.watch(model, optimiser, runs=None)
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        optimiser.step()
    for step in range(2):
        names = watch.rows.filter(metric="out_rms", step=step)["module"].to_list()
        assert names == ["inner", "inner#2", "inner#3", "(model)", "(model)#2", "(model)#3"]


def test_an_optimiser_that_steps_before_there_are_gradients_makes_no_step() -> None:
    model = plain_mlp()
    optimiser = torch.optim.Adam(model.parameters())
    watch = sonde.watch(model, optimiser, runs=None)
    optimiser.step()
    assert watch.step == 0
    model(vectors(0)[0]).sum().backward()
    optimiser.step()
    assert watch.step == 1
    assert watch.rows.filter(metric="out_rms", step=0).height > 0


def test_halves_of_grad_noise_are_samples_where_time_comes_first() -> None:
    found = []
    for batch_first in (True, False):
        torch.manual_seed(0)
        model = nn.LSTM(3, 4, batch_first=batch_first).double()
        x = torch.randn(6, 5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        watch = sonde.watch(model, optimiser := torch.optim.SGD(model.parameters(), 0.1), runs=None)
        out = model(x if batch_first else x.transpose(0, 1))[0]
        (out if batch_first else out.transpose(0, 1)).pow(3).sum().backward()
        optimiser.step()
        found += watch.rows.filter(metric="grad_noise").select("value", "samples").rows()
        watch.close()
    assert found[0] == found[1]
    assert found[0][1] == 6


def test_data_parallel_and_parametrised_models_are_read_as_the_model_inside() -> None:
    found = []
    for wrap in (lambda model: model, nn.DataParallel):
        torch.manual_seed(0)
        inner = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2))
        model = wrap(inner)
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        with sonde.watch(model, optimiser, runs=None) as watch:
            for number in range(2):
                optimiser.zero_grad()
                model(torch.randn(5, 3, generator=torch.Generator().manual_seed(number))).square().mean().backward()
                optimiser.step()
            found.append(watch.rows.drop("run"))
    assert_frame_equal(*found, check_exact=True)
    names = found[0].filter(metric="weight_grad_norm")["module"].unique().to_list()
    assert "0.parametrizations.weight.original0" in names
    assert found[0].filter(metric="out_rms", module="0")["defined"].all()


class Replicas(nn.DataParallel):
    """What `nn.DataParallel` does on two devices: it calls a copy of the model on each half of the batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.device_ids = [0, 1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([replica(self.module)(half) for half in x.chunk(2)])


def replica(module: nn.Module) -> nn.Module:
    copy = module._replicate_for_data_parallel()
    for name, part in module._modules.items():
        copy._modules[name] = replica(part)
    for name, parameter in module._parameters.items():
        setattr(copy, name, parameter.clone())
    return copy


def test_replicas_on_several_devices_are_undefined_and_parameters_are_read() -> None:
    found = []
    for wrap in (Replicas, lambda model: model):
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            watch = sonde.watch(model, optimiser, runs=None)
            for number in range(3):
                optimiser.zero_grad()
                model(torch.randn(6, 3, generator=torch.Generator().manual_seed(number))).square().mean().backward()
                optimiser.step()
        found.append(watch.rows)
        assert [str(one.message).count("DistributedDataParallel") for one in said] == [1] * (wrap is Replicas)
        watch.close()
    undefined = found[0].filter(metric="out_rms")
    assert undefined["module"].to_list() == ["0", "1", "2"]
    assert not undefined["defined"].any()
    assert all("copy of the module on each device" in reason for reason in undefined["reason"])
    norms = [rows.filter(pl.col("metric").is_in(["weight_norm", "weight_grad_norm", "update_ratio"])) for rows in found]
    assert norms[0].height == 36
    columns = ["step", "module", "metric", "value"]
    assert_frame_equal(*(rows.select(columns).sort(columns[:3]) for rows in norms), rel_tol=1e-5)


def test_a_functional_call_is_read_like_a_call() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2))
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(5, 3)
    with sonde.watch(model, optimiser, runs=None) as watch:
        scaled = {name: 2 * parameter for name, parameter in model.named_parameters()}
        out = torch.func.functional_call(model, scaled, (x,))
        out.square().mean().backward()
        optimiser.step()
        rows = watch.rows
    assert rows.filter(metric="out_rms", module="0")["value"].item() == pytest.approx(rms(out), rel=1e-6)
    assert rows.filter(metric="weight_grad_norm")["defined"].all()
    assert "replaced" not in watch.facts


@pytest.mark.parametrize("late", [False, True])
def test_where_samples_have_backward_passes_of_their_own_the_logged_loss_is_that_of_the_step(late: bool) -> None:
    model, criterion = nn.Linear(2, 1), nn.MSELoss()
    optimiser = torch.optim.SGD(model.parameters(), 0.01)
    watch = sonde.watch(model, optimiser, loss=criterion, runs=None)
    torch.manual_seed(0)
    told = []
    for _ in range(12):
        x, y = torch.randn(6, 2), torch.randn(6, 1)
        losses, total = [], [torch.zeros_like(p) for p in model.parameters()]
        for one, of in zip(x.split(1), y.split(1), strict=True):  # as in DP-SGD
            optimiser.zero_grad()
            losses.append(criterion(model(one), of))
            losses[-1].backward()
            total = [sums + p.grad for sums, p in zip(total, model.parameters(), strict=True)]
        for sums, p in zip(total, model.parameters(), strict=True):
            p.grad = sums / 6
        told.append(torch.stack(losses).mean().item())
        if not late:
            watch.log(told[-1])
        optimiser.step()
        if late:
            watch.log(told[-1])
    found = watch.rows.filter(metric="loss").sort("step")
    assert found["step"].to_list() == list(range(12))
    assert found["value"].to_list()[late:] == pytest.approx(told[late:])  # the first step is written as it ends
