"""Over random shapes, scales and zero patterns: no probe raises, and none gives a number that does not exist."""

import math
import statistics
from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import regression
from networks import loss_of, read
from sonde.metrics.probes import Context, Snapshot, take
from sonde.metrics.reductions import cosines, pearson, rms, sample_norms
from sonde.metrics.rows import Reading
from sonde.models import PlainMLP, ResidualMLP, ResMLP, StudentNet, VitMini
from sonde.models.model import Model
from sonde.network import Signature
from sonde.rules import RULES
from sonde.training.credit_assignment import CreditAssignment

Vector = list[float]
entries = st.one_of(st.just(0.0), st.floats(-1, 1).filter(lambda v: v == 0 or abs(v) > 1e-3))
exponents = st.integers(-150, 150)


def exact_square(v: Vector) -> Fraction:
    return sum((Fraction(x) ** 2 for x in v), Fraction(0))


def root(square: Fraction) -> float:
    """The square root of a fraction too large or too small for a float."""
    shift = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** shift), shift)


@given(
    st.integers(1, 6).flatmap(lambda d: st.lists(st.tuples(entries, entries), min_size=d, max_size=d)),
    exponents,
    exponents,
)
def test_a_cosine_is_the_exact_one_at_any_scale_and_undefined_of_zero(
    pairs: list[tuple[float, float]], p: int, q: int
) -> None:
    a, b = [x * 10.0**p for x, _ in pairs], [y * 10.0**q for _, y in pairs]
    (found,) = cosines(torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64)).tolist()
    if not any(a) or not any(b):
        assert math.isnan(found)
        return
    dot = sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0))
    size = math.sqrt(dot * dot / (exact_square(a) * exact_square(b)))
    assert found == pytest.approx(math.copysign(size, dot), abs=1e-14)


@given(st.lists(entries, min_size=1, max_size=6), exponents)
def test_a_norm_is_the_exact_one_at_any_scale(v: Vector, p: int) -> None:
    v = [x * 10.0**p for x in v]
    tensor = torch.tensor([v], dtype=torch.float64)
    expected = root(exact_square(v)) if any(v) else 0
    assert sample_norms(tensor).item() == pytest.approx(expected, rel=1e-14)
    assert rms(tensor) == pytest.approx(expected / math.sqrt(len(v)), rel=1e-14)


@given(st.lists(st.tuples(entries, entries), min_size=1, max_size=8), exponents, exponents)
def test_a_correlation_is_the_exact_one_and_undefined_without_spread(
    pairs: list[tuple[float, float]], p: int, q: int
) -> None:
    x, y = [v * 10.0**p for v, _ in pairs], [v * 10.0**q for _, v in pairs]
    (found,) = pearson(torch.tensor([x], dtype=torch.float64), torch.tensor(y, dtype=torch.float64))
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(found)
        return
    mean_x, mean_y = (sum(map(Fraction, v), Fraction(0)) / len(v) for v in (x, y))
    dx, dy = [Fraction(v) - mean_x for v in x], [Fraction(v) - mean_y for v in y]
    spread = math.sqrt(min(sum(v * v for v in d) / max(map(Fraction, map(abs, w))) ** 2 for d, w in ((dx, x), (dy, y))))
    if math.isnan(found):
        assert spread < 1e-14
        return
    covariance = sum((a * b for a, b in zip(dx, dy, strict=True)), Fraction(0))
    size = math.sqrt(covariance**2 / (sum(v * v for v in dx) * sum(v * v for v in dy)))
    assert found == pytest.approx(math.copysign(size, covariance), abs=1e-14 / spread)


def draw_snapshot(draw: st.DrawFn) -> Snapshot:
    """A network whose parts are scaled by 1e-30 … 1e30 and zeroed here and there, read with the credit of a rule."""
    d, depth, n = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    image = Signature(shape=(1, 4, 4), outputs=draw(st.integers(2, 4)), classifies=True)
    models: list[tuple[Model, Signature]] = [
        (PlainMLP(d=d, L=depth), regression(d)),
        (ResMLP(d=d, L=depth), image),
        (ResidualMLP(d=d, L=depth, out_ln=draw(st.booleans()), residual=draw(st.booleans())), image),
        (VitMini(d=d, L=depth, heads=1, patch=2), image),
        (StudentNet(d=d, L=depth), image),
    ]
    model, signature = draw(st.sampled_from(models))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    net = model.build(signature, rng).double()
    initial = {name: p.detach().clone() for name, p in net.named_parameters()}
    x = torch.rand(n, *signature.shape, generator=rng).double() * 2 - 1
    y = torch.randint(signature.outputs, (n,), generator=rng) if signature.classifies else x
    scale = st.sampled_from([1.0, 1.0, 1.0, 0.0, 1e-30, 1e-10, 1e10, 1e30])
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(draw(scale))
    x = x * draw(scale)
    x[: draw(st.integers(0, n))] *= draw(scale)
    fitting = [name for name in RULES if signature.classifies or name != "ff"]  # ff needs labels
    rule = RULES[draw(st.sampled_from(fitting))]()
    loss = loss_of(signature)
    assignment = CreditAssignment(net, rule, sample=x, loss=loss, steps=draw(st.integers(0, 9)))
    context = Context(
        credits=assignment.credits,
        redrawn=assignment.redrawn,
        initial=initial,
        directions=draw(st.integers(1, 4)),
        draws=draw(st.integers(1, 3)),
    )
    return take(net, x, y, loss, context)


def vector(h: torch.Tensor, i: int) -> Vector:
    found: Vector = (h[i] if h.ndim == 2 else h[i, 0]).tolist()
    return found


def has_direction(*vectors: Vector) -> bool:
    return all(any(v) and all(map(math.isfinite, v)) for v in vectors)


def check_norms(name: str, tensors: list[torch.Tensor], found: dict[tuple[str, int | None], Reading]) -> None:
    for layer, h in enumerate(tensors):
        norms = [math.hypot(*vector(h, i)) for i in range(len(h))]
        reading = found[name, layer]
        assert reading.defined == all(map(math.isfinite, norms)), (name, layer)
        if reading.defined:
            assert reading.value == pytest.approx(statistics.median(norms), rel=1e-12, abs=1e-320)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_probe_raises_or_gives_a_number_that_does_not_exist(data: st.DataObject) -> None:
    snapshot = draw_snapshot(data.draw)
    n, found = snapshot.samples, read(snapshot)
    for key, reading in found.items():
        assert reading.defined == math.isfinite(reading.value), key
        assert reading.defined == (reading.reason is None), key
        draws = reading.metric.endswith("/null_std")
        assert 0 <= reading.samples <= (snapshot.context.draws if draws else n), key
        if reading.defined and not reading.metric.startswith("drift"):
            assert reading.samples > 0, key
    assert snapshot.credits is not None
    check_norms("hidden_norm", snapshot.states, found)
    check_norms("grad_norm", snapshot.gradients, found)
    check_norms("credit_norm", snapshot.credits, found)
    for ending, credits in snapshot.candidates.items():
        for layer, g in enumerate(snapshot.gradients):
            a, h = credits[layer], snapshot.states[layer]  # type: ignore[index]
            reading = found[f"credit_cosine{ending}", layer]
            with_direction = sum(has_direction(vector(a, i), vector(g, i)) for i in range(n))
            assert reading.samples == with_direction
            assert reading.defined == (with_direction > 0)
            if reading.defined:
                assert abs(reading.value) <= 1 + 1e-12
                assert ending != "/bp" or abs(reading.value - 1) <= 1e-12
            rho = found[f"rho{ending}", layer]
            if rho.defined:
                assert abs(rho.value) <= 1 + 1e-12
                assert any(any(vector(a, i)) and any(vector(h, i)) for i in range(n))
            for eta in snapshot.context.etas:
                nudge = found[f"nudge[{eta:g}]{ending}", layer]
                if nudge.defined:
                    assert a.any()
                    floor = 1.0 if snapshot.loss.classifies else 0.0
                    assert abs(nudge.value) > 2**-52 * max(floor, statistics.fmean(snapshot.losses_N.tolist()))
    for block in range(snapshot.depth):
        f, h = snapshot.branches[block], snapshot.states[block]
        below, above = found["hidden_norm", block], found["hidden_norm", block + 1]
        possible = below.defined and above.defined and below.value > 0
        assert found["growth", block].defined == (
            possible and math.isfinite(above.value / below.value if below.value else math.nan)
        )
        residual = snapshot.net.residual
        directed = sum(residual and has_direction(vector(f, i), vector(h, i)) for i in range(n))
        assert found["branch_cosine", block].samples == directed
        assert found["branch_cosine", block].defined == (directed > 0)
        assert not found["branch_ratio", block].defined or residual
    initial = snapshot.context.initial
    assert initial is not None
    for name, start in initial.items():
        assert found[f"drift[{name}]", None].defined == bool(start.any())
    assert not found["cross_batch_cosine", snapshot.depth // 2].defined
