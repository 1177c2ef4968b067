"""The mistakes of lessons.md that networks, rules and probes make impossible, one test each.

Those that concern comparisons, spreads and figures are tested with their modules.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sonde
from networks import NETWORKS, loss_of, moved, read, samples
from sonde.config import Probing, RunConfig
from sonde.metrics.probes import PROBES, Context, take
from sonde.metrics.reductions import sample_norms
from sonde.metrics.rows import undefined
from sonde.models import ResidualMLP, VitMini
from sonde.network import Pooling
from sonde.network.losses import CROSS_ENTROPY
from sonde.rules import RULES, Backprop, DirectFeedback
from sonde.tasks import Digits
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.program import Program, pack, unpack

CPU = torch.device("cpu")
MODEL, IMAGE = NETWORKS["residual_mlp"]


def test_a_network_without_terminal_layer_norm_is_labelled_as_what_it_is_and_is_another_run() -> None:
    for model in (ResidualMLP(), VitMini()):
        bare = replace(model, out_ln=False)
        assert bare.label == f"{model.label}, no terminal LN"
        runs = {RunConfig(model=m, rule=Backprop(), task=Digits()).id for m in (model, bare)}
        assert len(runs) == 2


def test_the_norm_of_a_sample_is_never_taken_over_the_wrong_axis() -> None:
    h_Nd = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    assert sample_norms(h_Nd).tolist() == [5, 2]
    tokens_NTd = torch.stack([h_Nd, h_Nd * 9], dim=1)
    assert sample_norms(Pooling("cls").read(tokens_NTd)).tolist() == [5, 2]
    for wrong in (h_Nd[0], tokens_NTd, h_Nd[None, None]):
        with pytest.raises(ValueError, match="expected samples × width"):
            sample_norms(wrong)


def test_the_cosine_of_a_tiny_gradient_is_not_shrunk_by_a_clamp() -> None:
    net, _ = moved(MODEL, IMAGE)
    snapshot = take(net, *samples(IMAGE, 4), CROSS_ENTROPY)
    before = read(snapshot, "credit_cosine")
    for g in snapshot.gradients:
        g.mul_(1e-10 / sample_norms(g).max())
    after = read(snapshot, "credit_cosine")
    for layer in range(4):
        assert after["credit_cosine/bp", layer].value == pytest.approx(1, abs=1e-12)
        null = before["credit_cosine/null", layer].value
        assert after["credit_cosine/null", layer].value == pytest.approx(null, rel=1e-12)


def test_a_cosine_is_taken_with_the_feedback_matrices_that_trained_the_network() -> None:
    net, _ = moved(MODEL, IMAGE)
    x, y = samples(IMAGE, 16)

    def cosines(assignment: CreditAssignment) -> list[float]:
        found = read(take(net, x, y, CROSS_ENTROPY, Context(credits=assignment.credits)), "credit_cosine")
        return [found["credit_cosine", layer].value for layer in range(4)]

    trained, other = (CreditAssignment(net, DirectFeedback(), sample=x, seed=seed) for seed in (1, 2))
    assert cosines(other) != cosines(trained)
    other.load_state_dict(unpack(pack(trained.state_dict())))
    assert cosines(other) == cosines(trained)


def test_the_credit_of_an_unknown_rule_is_undefined_not_one() -> None:
    net, _ = moved(MODEL, IMAGE)
    found = read(take(net, *samples(IMAGE, 4), CROSS_ENTROPY), "credit_cosine", "credit_norm", "rho", "nudge")
    for (metric, _), reading in found.items():
        if "/" not in metric:
            assert reading.reason == "the credit of no rule is known"
            assert math.isnan(reading.value)


def test_rho_is_nan_with_a_reason_where_it_is_undefined_and_never_zero() -> None:
    net, _ = moved(MODEL, IMAGE)
    with torch.no_grad():
        for p in net.readout.parameters():
            p.zero_()
    for reading in read(take(net, *samples(IMAGE, 4), CROSS_ENTROPY), "rho").values():
        assert not reading.defined
        assert math.isnan(reading.value)
        assert reading.reason
    assert math.isnan(undefined("rho", "no spread").value)


def test_credit_is_measured_per_layer_so_that_layer_0_cannot_carry_a_mean(tmp_path: Path) -> None:
    config = RunConfig(
        model=ResidualMLP(d=8, L=2),
        rule=DirectFeedback(),
        task=Digits(),
        probes=Probing(size=8, directions=2),
        epochs=1,
    )
    sonde.train(config, runs=tmp_path)
    rows = sonde.load(tmp_path).rows
    for metric in ("credit_cosine", "credit_norm", "grad_norm", "rho", "nudge[0.01]"):
        for epoch in (0, 1):
            assert rows.filter(metric=metric, epoch=epoch)["layer"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("case", NETWORKS)
def test_credit_points_uphill_and_bp_through_the_same_interface_has_cosine_one(case: str) -> None:
    model, signature = NETWORKS[case]
    net, _ = moved(model, signature)
    x, y = samples(signature, 6)
    assignment = CreditAssignment(net, Backprop(), sample=x, loss=loss_of(signature))
    found = read(take(net, x, y, loss_of(signature), Context(credits=assignment.credits)))
    for layer in range(len(net.blocks) + 1):
        assert found["credit_cosine", layer].value == pytest.approx(1, abs=1e-12)
        assert found["nudge[0.001]", layer].value < 0


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_lowers_the_loss_of_a_toy_problem(rule: str) -> None:
    options = {"prediction": "readout"} if rule == "ff" else {}  # its goodness descends another objective than the loss
    kind = RULES[rule](**options)
    config = RunConfig(model=ResidualMLP(d=16, L=2), rule=kind, task=Digits(), batch_size=64, epochs=2)
    program = Program(config, config.task.load(0, None, CPU, torch.float32), CPU)
    before = program.evaluate()[0].value
    for epoch in (1, 2):
        program.train_epoch(epoch)
    assert program.evaluate()[0].value < 0.95 * before


def test_what_chance_achieves_is_measured_wherever_a_rule_is() -> None:
    net, _ = moved(MODEL, IMAGE)
    snapshot = take(net, *samples(IMAGE, 4), CROSS_ENTROPY)
    for name in ("credit_cosine", "rho", "nudge"):
        metrics = {reading.metric for reading in PROBES[name](snapshot)}
        bare = {metric for metric in metrics if "/" not in metric}
        assert bare
        endings = ("", "/bp", "/null") if name == "nudge" else ("", "/bp", "/null", "/null_std")
        assert metrics == {metric + ending for metric in bare for ending in endings}
