"""Chance is drawn as the rule draws; the gradient per error and its resolution are what they say."""

import math
import statistics

import pytest
import torch

from networks import NETWORKS, loss_of, moved, read, samples
from sonde.core.generators import generator
from sonde.metrics.probes import Context, take
from sonde.metrics.probes.credit import draws, over_draws
from sonde.metrics.rows import Reading, undefined
from sonde.models import PlainMLP, ResidualMLP
from sonde.network import Signature
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR
from sonde.rules import RULES, CreditBridge, DirectFeedback, Rule
from sonde.rules.dfa import DirectKolenPollack
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.program import use_bf16

MODEL, IMAGE = NETWORKS["residual_mlp"]


def assigned(rule: Rule, seed: int = 1, steps: int = 10) -> tuple[CreditAssignment, Context]:
    net, _ = moved(MODEL, IMAGE)
    x, _ = samples(IMAGE, 6)
    credit = CreditAssignment(net, rule, sample=x, loss=loss_of(IMAGE), steps=steps, seed=seed)
    return credit, Context(credits=credit.credits, redrawn=credit.redrawn, seed=3, epoch=2, draws=5)


@pytest.mark.parametrize("shared", [False, True])
def test_chance_of_direct_kolen_pollack_draws_matrices_of_its_own_shape(shared: bool) -> None:
    assert DirectKolenPollack(per_channel=shared).chance == DirectFeedback(per_channel=shared)


@pytest.mark.parametrize("rule", ["bp", "frozen"])
def test_a_rule_that_owns_nothing_has_nothing_to_draw(rule: str) -> None:
    credit, _ = assigned(RULES[rule]())
    assert credit.redrawn is None


@pytest.mark.parametrize("rule", ["fa", "dfa", "state_bridge", "credit_bridge"])
def test_a_draw_is_what_the_rule_would_say_had_it_begun_with_another_seed(rule: str) -> None:
    """With the generator its state was made from, it says what the rule says."""
    credit, context = assigned(RULES[rule]())
    snapshot = take(credit.net, *samples(IMAGE, 6), loss_of(IMAGE), context)
    assert credit.redrawn is not None
    own, same = credit.credits(snapshot), credit.redrawn(snapshot, generator(1, "rule"))
    other = credit.redrawn(snapshot, generator(2, "rule"))
    assert all(torch.equal(a, b) for a, b in zip(own, same, strict=True))
    assert not torch.allclose(own[1], other[1])
    exact = rule in ("fa", "state_bridge")  # the top gets g_L, whatever is drawn
    assert torch.equal(own[-1], other[-1]) == exact


def test_chance_of_the_credit_bridge_answers_as_it_would_at_this_step() -> None:
    """By fresh matrices while the rule warms up, by a fresh network afterwards."""
    credit, context = assigned(CreditBridge(warmup=0.5))
    snapshot = take(credit.net, *samples(IMAGE, 6), loss_of(IMAGE), context)
    e_NC = snapshot.loss.error(snapshot.output_NC, snapshot.y)

    def rank(a_Nd: torch.Tensor) -> int:
        """Credit by matrices is linear in the error, N×C: adding it changes no rank."""
        together = torch.cat([e_NC, a_Nd], 1)
        return int(torch.linalg.matrix_rank(together) - torch.linalg.matrix_rank(e_NC))

    assert [rank(a[1]) for a in draws(snapshot)] == [0] * 5
    credit.state.steps = 5  # type: ignore[attr-defined]
    assert all(rank(a[1]) > 0 for a in draws(snapshot))


def test_draws_are_named_by_seed_epoch_and_number() -> None:
    credit, context = assigned(DirectFeedback())
    snapshot = take(credit.net, *samples(IMAGE, 6), loss_of(IMAGE), context)
    assert credit.redrawn is not None
    third = credit.redrawn(snapshot, generator(3, "probe/null/2/3"))
    assert torch.equal(list(draws(snapshot))[3][1], third[1])


def test_feedback_that_all_samples_share_scatters_more_than_a_vector_a_sample() -> None:
    """A null of random vectors is too narrow for it: here by more than two."""
    net = ResidualMLP(d=64, L=2).build(IMAGE, generator(0, "init"))
    x, y = samples(IMAGE, 100)
    credit = CreditAssignment(net, DirectFeedback(), sample=x)
    snapshot = take(net, x, y, CROSS_ENTROPY, Context(redrawn=credit.redrawn))
    shared = read(snapshot, "credit_cosine")["credit_cosine/null_std", 1].value
    assert shared > 2 / math.sqrt(64 * 100)
    alone = read(take(net, x, y, CROSS_ENTROPY), "credit_cosine")["credit_cosine/null_std", 1].value
    assert alone == pytest.approx(1 / math.sqrt(64 * 100), rel=0.6)


def test_mean_and_spread_are_over_the_draws_that_have_a_value() -> None:
    found = [Reading(metric="x/null", value=v, samples=n) for v, n in ((0.1, 9), (0.4, 7))]
    mean, std = over_draws("x", [*found, undefined("x/null", "no credit")], 1)
    assert (mean.metric, mean.value, mean.samples) == ("x/null", 0.25, 7)
    assert (std.metric, std.samples) == ("x/null_std", 2)
    assert std.value == pytest.approx(statistics.stdev([0.1, 0.4]))
    _, one = over_draws("x", [found[0]], 1)
    assert "one value has no spread" in (one.reason or "")
    assert [r.reason for r in over_draws("x", [undefined("x/null", "no credit")], 1)] == ["no credit"] * 2


def test_the_gradient_per_error_does_not_fall_with_the_error() -> None:
    """Logits that are four times as sure: the gradient falls a hundredfold and more, per error it rises."""
    net, _ = moved(ResidualMLP(d=8, L=2, w2_std=0.3), IMAGE)
    x, _ = samples(IMAGE, 32)
    y = net(x).argmax(-1)
    head = list(net.readout.parameters())[-2:]
    with torch.no_grad():
        for p in head:
            p.mul_(40)
    before, after = [], []
    for found in (before, after):
        readings = read(take(net, x, y, CROSS_ENTROPY), "grad_norm")
        found += [readings["grad_norm", 2].value, readings["grad_per_error", 2].value]
        with torch.no_grad():
            for p in head:
                p.mul_(4)
    assert after[0] < 1e-2 * before[0]
    assert after[1] > 2 * before[1]


def test_samples_without_an_error_do_not_count_and_without_any_it_is_undefined() -> None:
    signature = Signature(shape=(8,), outputs=8, classifies=False)
    net = PlainMLP(d=8, L=2).build(signature, generator(0, "init"))
    x = torch.randn(5, 8, generator=generator(1, "x"))
    y = net.double()(x.double()).detach()
    y[:2] += 1
    reading = read(take(net, x, y, MEAN_SQUARED_ERROR), "grad_norm")["grad_per_error", 2]
    assert (reading.defined, reading.samples) == (True, 2)
    reading = read(take(net, x, net(x.double()).detach(), MEAN_SQUARED_ERROR), "grad_norm")["grad_per_error", 2]
    assert not reading.defined
    assert "the output error is zero" in (reading.reason or "")


def raised(offset: float, *, double: bool = False, bf16: bool = False) -> dict[int, Reading]:
    """`grad_resolution` by layer of a network whose stream has a constant added, which every LayerNorm takes out."""
    net, _ = moved(ResidualMLP(d=8, L=2, w2_std=0.3), IMAGE)
    with torch.no_grad():
        next(p for name, p in net.named_parameters() if name.endswith("embed.1.bias") or p.ndim == 1).add_(offset)
    if double:
        net.double()
    if bf16:
        use_bf16(net)
    x, y = samples(IMAGE, 32)
    found = read(take(net, x.double() if double else x, y, CROSS_ENTROPY), "grad_norm")
    return {layer: one for (metric, layer), one in found.items() if metric == "grad_resolution"}


def test_a_gradient_is_resolved_until_rounding_takes_its_place() -> None:
    """A constant in the stream changes nothing in exact arithmetic; float32 loses to it what samples differ in."""
    least = {offset: min(one.value for one in raised(offset).values()) for offset in (0.0, 1e3, 1e5, 1e7)}
    assert list(raised(0.0)) == [0, 1, 2]
    assert 1 - least[0.0] < 1e-11
    assert least[0.0] > least[1e3] > least[1e5] > least[1e7]
    assert least[1e3] > 0.999
    assert least[1e7] < 0.9
    assert all(one.value == pytest.approx(1, abs=1e-7) for one in raised(1e7, double=True).values())


def test_products_in_bfloat16_resolve_less_than_float32() -> None:
    for single, half in zip(raised(0.0).values(), raised(0.0, bf16=True).values(), strict=True):
        assert 1e-8 < 1 - half.value < 1e-2
        assert 1 - single.value < 1e-4 * (1 - half.value)


def test_resolution_weighs_samples_as_a_training_step_does_and_leaves_the_network_alone() -> None:
    net, _ = moved(ResidualMLP(d=8, L=2, w2_std=0.3), IMAGE)
    x, y = samples(IMAGE, 32)
    weights = [p.clone() for p in net.parameters()]
    snapshot = take(net, x, y, CROSS_ENTROPY)
    value = read(snapshot, "grad_norm")["grad_resolution", 1].value
    assert all(torch.equal(a, b) for a, b in zip(weights, net.parameters(), strict=True))
    states, output = net.states(x)
    loss = CROSS_ENTROPY.per_sample(output, y).sum()
    (rounded,) = torch.autograd.grad(loss, states[1])
    exact = snapshot.gradients[1].flatten()
    other = rounded.double().flatten()
    assert 1 - value == pytest.approx(1 - float(exact @ other / exact.norm() / other.norm()), abs=1e-14)


def test_a_gradient_that_underflows_is_undefined_and_says_in_which_precision() -> None:
    net, _ = moved(ResidualMLP(d=8, L=2, w2_std=0.3), IMAGE)
    gain, *_, head, _ = net.readout.parameters()
    with torch.no_grad():
        head.mul_(1e-30)
        gain.mul_(1e-20)
    found = read(take(net, *samples(IMAGE, 8), CROSS_ENTROPY), "grad_norm")["grad_resolution", 2]
    assert found.reason == "the gradient is zero in float32 and not in float64"
