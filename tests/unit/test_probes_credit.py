"""Cosines of credit: exact for BP, zero for chance, unchanged by scale, undefined without a direction."""

import math

import pytest
import torch

from networks import NETWORKS, loss_of, moved, read, samples
from sonde.metrics.probes import Context, Snapshot, take
from sonde.models import ResidualMLP
from sonde.network import Signature
from sonde.rules import RULES, CreditBridge, DirectFeedback
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.program import pack
from sonde.training.step import Rerun, signal_on

IMAGE = Signature(shape=(1, 8, 8), outputs=4, classifies=True)


def snapshot_of(case: str, rule: str, n: int = 6) -> Snapshot:
    model, signature = NETWORKS[case]
    net, _ = moved(model, signature)
    x, y = samples(signature, n)
    assignment = CreditAssignment(net, RULES[rule](), sample=x, loss=loss_of(signature), seed=1)
    return take(net, x, y, loss_of(signature), Context(credits=assignment.credits))


@pytest.mark.parametrize("case", NETWORKS)
def test_the_cosine_of_bp_is_one_at_every_layer(case: str) -> None:
    snapshot = snapshot_of(case, "bp")
    found = read(snapshot, "credit_cosine")
    for layer in range(snapshot.depth + 1):
        for metric in ("credit_cosine", "credit_cosine/bp"):
            assert abs(found[metric, layer].value - 1) <= 1e-12
            assert found[metric, layer].samples == snapshot.samples


def test_the_cosine_of_a_random_vector_is_within_four_standard_errors_of_zero() -> None:
    net = ResidualMLP(d=64, L=3).build(IMAGE, torch.Generator().manual_seed(0))
    x, y = samples(IMAGE, 200)
    found = read(take(net, x, y, loss_of(IMAGE)), "credit_cosine")
    for layer in range(4):
        assert abs(found["credit_cosine/null", layer].value) < 4 / math.sqrt(64 * 200)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e30, 1e-200, 1e200])
def test_the_cosine_of_a_scaled_credit_or_gradient_is_unchanged(scale: float) -> None:
    snapshot = snapshot_of("residual_mlp", "dfa")
    before = [r.value for r in read(snapshot, "credit_cosine").values()]
    assert snapshot.credits is not None
    for tensors in (snapshot.gradients, snapshot.credits):
        for t in tensors:
            t.mul_(scale)
    after = [r.value for r in read(snapshot, "credit_cosine").values()]
    assert after == pytest.approx(before, rel=1e-12, abs=1e-14)


def test_the_cosine_with_a_zero_gradient_is_undefined_and_says_so() -> None:
    snapshot = snapshot_of("residual_mlp", "dfa")
    for g in snapshot.gradients:
        g.zero_()
    for reading in read(snapshot, "credit_cosine").values():
        assert not reading.defined
        assert math.isnan(reading.value)
        assert reading.samples == 0
        assert "is zero in every sample" in str(reading.reason)


def test_samples_without_a_cosine_are_not_counted() -> None:
    snapshot = snapshot_of("residual_mlp", "dfa")
    snapshot.gradients[1][:2] = 0
    snapshot.gradients[2][0, 0] = math.nan
    found = read(snapshot, "credit_cosine")
    assert [found["credit_cosine", layer].samples for layer in range(4)] == [6, 4, 5, 6]


@pytest.mark.parametrize("case", ["residual_mlp", "vit_mini"])
def test_frozen_blocks_have_no_credit(case: str) -> None:
    found = read(snapshot_of(case, "frozen"), "credit_cosine", "credit_norm", "nudge", "rho")
    assert found["credit_cosine", 0].value == pytest.approx(1)
    assert found["rho", 0].value > 0.99
    for layer in (1, 2, 3):
        assert found["credit_cosine", layer].reason == "the credit is zero in every sample"
        assert found["credit_norm", layer].value == 0
        assert found["nudge[0.01]", layer].reason == "the credit is zero"
        assert found["rho", layer].reason == "the credit predicts the same change everywhere"
        assert found["credit_cosine/bp", layer].value == pytest.approx(1)


@pytest.mark.parametrize(
    ("rule", "case"),
    [
        (rule, case)
        for rule in RULES
        for case in ("residual_mlp", "vit_mini", "res_mlp")
        if rule != "ff" or NETWORKS[case][1].classifies  # ff needs labels
    ],
)
def test_credits_are_the_rule_s_own_in_float64_and_leave_its_state_alone(rule: str, case: str) -> None:
    model, signature = NETWORKS[case]
    net, _ = moved(model, signature)
    x, y = samples(signature, 5)
    assignment = CreditAssignment(net.double(), RULES[rule](), sample=x.double(), loss=loss_of(signature))
    y = y.double() if y.is_floating_point() else y
    for _ in range(3):
        assignment.backward(x.double(), y)
    if isinstance(assignment.rule, CreditBridge):
        assert not assignment.state.warming_up  # type: ignore[attr-defined]
    stored = pack(assignment.state_dict())
    snapshot = take(net, x, y, loss_of(signature), Context(credits=assignment.credits))
    credits = snapshot.credits
    assert pack(assignment.state_dict()) == stored
    signal = signal_on(
        Rerun(net, x.double()),
        snapshot.states,
        snapshot.output_NC,
        y,
        loss_of(signature),
        gradients=lambda: snapshot.gradients,
    )
    assert credits is not None
    for mine, theirs in zip(credits, assignment.rule.credits(assignment.state, signal), strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def test_while_it_warms_up_the_credit_bridge_is_measured_as_the_dfa_that_trains() -> None:
    model, signature = NETWORKS["residual_mlp"]
    net, _ = moved(model, signature)
    x, y = samples(signature, 5)
    bridge = CreditAssignment(net, CreditBridge(warmup=0.5), sample=x, steps=10, seed=3)
    dfa = CreditAssignment(net, DirectFeedback(), sample=x, seed=3)
    dfa.state.matrices = bridge.state.feedback.matrices  # type: ignore[attr-defined]
    cosines = [
        [r.value for r in read(take(net, x, y, loss_of(signature), context), "credit_cosine").values()]
        for context in (Context(credits=bridge.credits), Context(credits=dfa.credits))
    ]
    assert cosines[0] == cosines[1]
