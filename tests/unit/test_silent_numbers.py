"""Numbers that were once wrong without a word: each is right, or undefined with its reason, or refused by name."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import sonde
from networks import read
from plain_modules import GPT, GUESTS, ConvNet, LeNet, T, ViT, images, words
from sonde.core.errors import SondeError
from sonde.metrics.probes import Context, Snapshot, take
from sonde.network import Network
from sonde.network.losses import MEAN_SQUARED_ERROR, Loss, LossFunction
from sonde.rules import (
    RULES,
    Backprop,
    CreditBridge,
    DirectFeedback,
    FeedbackAlignment,
    Rule,
)
from sonde.rules.dfa import direct_feedback
from sonde.training.credit_assignment import CreditAssignment


def conv_chain(n: int = 6) -> tuple[CreditAssignment, Tensor, Tensor]:
    x, y = images(n)
    return (
        CreditAssignment(GUESTS["convnet"].chain().double(), FeedbackAlignment(), sample=x.double()),
        x.double(),
        y,
    )


def snapshot(assignment: CreditAssignment, x: Tensor, y: Tensor) -> Snapshot:
    return take(assignment.net, x, y, assignment.loss, Context(credits=assignment.credits))


def test_fa_on_maps_mixes_channels_not_the_width_of_the_image() -> None:
    assignment, x, y = conv_chain()
    assert [tuple(b.shape) for b in assignment.state.matrices] == [(6, 6), (6, 6)]  # type: ignore[attr-defined]
    looked = snapshot(assignment, x, y)
    assert looked.credits is not None
    b = assignment.state.matrices[1]  # type: ignore[attr-defined]
    expected = torch.einsum("nchw,dc->ndhw", looked.gradients[2], b)
    torch.testing.assert_close(looked.credits[1], expected, rtol=1e-12, atol=1e-16)


def test_fa_on_maps_of_linear_units_with_their_own_jacobians_is_backprop() -> None:
    units = [nn.Conv2d(3, 3, 1) for _ in range(2)]
    net = Network(nn.Conv2d(1, 3, 3), units, nn.Sequential(nn.Flatten(), nn.Linear(108, 4)), residual=False).double()
    x, y = images()
    F.cross_entropy(net(x.double()), y).backward()
    expected = {name: p.grad.clone() for name, p in net.named_parameters()}  # type: ignore[union-attr]
    net.zero_grad()
    assignment = CreditAssignment(net, FeedbackAlignment(credit_scale="none"), sample=x.double())
    for b, unit in zip(assignment.state.matrices, units, strict=True):  # type: ignore[attr-defined]
        b.copy_(unit.weight.detach()[:, :, 0, 0].T)
    assignment.backward(x.double(), y)
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("rule", [FeedbackAlignment(), CreditBridge()])
def test_a_unit_that_changes_the_shape_of_maps_is_refused_by_name_before_training(rule: Rule) -> None:
    x, _ = images()
    net = sonde.chain(LeNet(), ["pool1", "conv2", "pool2", "fc1"], sample=x)
    with pytest.raises(SondeError, match=r"unit 'pool1'.* use .*dfa"):
        CreditAssignment(net, rule, sample=x)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("samples", [5, 6])  # once as many as there are channels
def test_dfa_on_maps_sends_each_sample_its_own_error_whatever_the_size_of_the_batch(
    samples: int, per_channel: bool
) -> None:
    x, y = images(samples)
    rule = DirectFeedback(per_channel=per_channel)
    assignment = CreditAssignment(GUESTS["convnet"].chain().double(), rule, sample=x.double())
    looked = snapshot(assignment, x.double(), y)
    assert looked.credits is not None
    error = looked.loss.error(looked.output_NC, y)
    for a, b in zip(looked.credits, assignment.state.matrices, strict=True):  # type: ignore[attr-defined]
        assert a.shape == (samples, 6, 8, 8)
        assert tuple(b.shape) == ((6, 4) if per_channel else (6 * 8 * 8, 4))
        for i in range(samples):
            row = b @ error[i]
            expected = (row / 8)[:, None, None].expand(6, 8, 8) if per_channel else row.view(6, 8, 8)
            torch.testing.assert_close(a[i], expected, rtol=1e-12, atol=1e-16)


def test_dfa_says_when_its_matrices_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.rules.dfa.LARGE_FEEDBACK", 1000)
    assignment, _, _ = conv_chain()
    with pytest.warns(UserWarning, match=r"matrices of dfa take .* GiB; of maps, per_channel=True takes less"):
        direct_feedback(assignment.facts, torch.Generator())


def test_a_penalty_on_maps_counts_a_position_as_a_sample() -> None:
    net, (x, y) = GUESTS["convnet"].chain().double().eval(), images()
    module = net.module
    h = module.stem(x.double())  # type: ignore[operator]
    expected = torch.zeros((), dtype=torch.float64)
    for stage in module.stages:  # type: ignore[union-attr]
        h = stage(h)
        expected = expected + h.pow(2).sum(1).mean()
    loss = F.cross_entropy(module(x.double()), y) + 0.3 * expected
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    CreditAssignment(net, Backprop(penalty=0.3), sample=x.double()).backward(x.double(), y)
    for p, g in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-10, atol=1e-14)


def test_a_token_that_the_readout_does_not_read_has_no_gradient_rather_than_one_of_zero() -> None:
    torch.manual_seed(0)
    x, y = images()
    net = sonde.chain(ViT("last"), ["encoder.layers.*"], sample=x, pooling="cls")
    assignment = CreditAssignment(net, DirectFeedback(), sample=x)
    found = read(snapshot(assignment, x, y), "grad_norm", "credit_norm", "credit_cosine", "rho", "hidden_norm")
    top = {metric: reading for (metric, layer), reading in found.items() if layer == 2}
    for metric, reading in top.items():
        if metric != "hidden_norm":
            assert not reading.defined, metric
            assert reading.reason == "the readout does not read this token"
    assert top["hidden_norm"].defined
    right = sonde.chain(net.module, ["encoder.layers.*"], sample=x)
    assert read(take(right, x, y, nn.CrossEntropyLoss()), "grad_norm")["grad_norm", 2].value > 0


@pytest.mark.parametrize(("pool", "reader"), [("cls", "cls"), ("last", "last"), ("mean", "mean")])
def test_of_tokens_what_the_readout_reads_is_read(pool: str, reader: str) -> None:
    x, y = images()
    net = sonde.chain(ViT(pool), ["encoder.layers.*"], sample=x)
    assert take(net, x, y, nn.CrossEntropyLoss()).pooling.name == reader


def test_a_batchnorm_network_is_not_shown_one_sample_in_training_mode() -> None:
    module = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
    ).train()
    before = copy.deepcopy(module.state_dict())
    CreditAssignment(sonde.chain(module), DirectFeedback(), sample=torch.randn(1, 8))
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_samples_that_see_each_other_in_eval_mode_cannot_be_measured_one_by_one() -> None:
    x, y = torch.randn(6, 8), torch.randint(4, (6,))
    module = nn.Sequential(
        nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 4)
    )
    assignment = CreditAssignment(sonde.chain(module), Backprop(), sample=x)
    assignment.backward(x, y)
    with pytest.raises(SondeError, match=r"unit '1' to '2' lets samples see each other in eval mode.*running"):
        take(assignment.net, x, y, assignment.loss)


@pytest.mark.parametrize("rule", RULES)
def test_batchnorm_gathers_statistics_once_a_step_and_none_in_a_snapshot(rule: str) -> None:
    x, y = images()
    net = GUESTS["convnet"].chain().train()
    module = copy.deepcopy(net.module)
    assignment = CreditAssignment(net, RULES[rule](credit_scale="rms"), sample=x)
    prepared = copy.deepcopy(assignment.net)  # ff changes the inputs and what units read of a state
    plain = prepared.module if rule == "ff" else module
    (prepared if rule == "ff" else module)(x)
    assignment.backward(x, y)
    for (name, ours), theirs in zip(net.module.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs), name
    snapshot(assignment, x, y)
    for (name, ours), theirs in zip(net.module.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs), name


def test_integer_inputs_are_not_cast_to_double() -> None:
    net, (x, y) = GUESTS["gpt"].chain(), words()
    assignment = CreditAssignment(net, Backprop(), sample=x)
    looked = snapshot(assignment, x, y)
    assert looked.x.dtype == torch.int64
    assert looked.states[0].dtype == torch.float64
    several = Context(test=lambda first, last: words(last - first), test_samples=300)
    found = read(take(net, x, y, assignment.loss, several), "cross_batch_cosine")
    assert found["cross_batch_cosine", 1].defined


def test_a_unit_that_returns_a_tuple_gives_its_first_element_as_the_state() -> None:
    x, y = words()
    nets = [GUESTS[name].chain() for name in ("gpt", "gpt_tuples")]
    plain, tuples = (
        read(snapshot(CreditAssignment(net, DirectFeedback(), sample=x), x, y), "hidden_norm", "rho", "nudge")
        for net in nets
    )
    assert plain == tuples
    with torch.no_grad():
        states, _ = nets[1].states(x)
    assert all(tuple(h.shape) == (len(x), T, 8) for h in states)


def test_what_a_unit_returns_beside_the_state_is_passed_on() -> None:
    net, (x, _) = GUESTS["gpt_passes_on"].chain(), words()
    with torch.no_grad():
        states, output = net.states(x)
        assert torch.equal(output, net.module(x))
        for layer, h in enumerate(states):
            torch.testing.assert_close(net.tail(h, layer, x).output, output)
    other = GPT(returns_more=True)
    other.load_state_dict(net.module.state_dict())
    assert not torch.allclose(other(x), output), "the test must be able to fail"


def test_a_block_of_a_module_with_parts_that_returns_a_tuple_is_refused_by_name() -> None:
    class Pair(nn.Module):
        def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
            return h, h

    net = Network(nn.Linear(4, 4), [Pair()], nn.Linear(4, 2), residual=True)
    with pytest.raises(SondeError, match=r"a block returns a tuple, not a tensor: use sonde\.chain"):
        CreditAssignment(net, Backprop(), sample=torch.randn(3, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Unflatten(1, (2, 2, 2, 1)),
            r"block 0 returns a state of shape 2×2×2×2×1: .* maps \(N×C×H×W\)",
        ),
        (lambda: nn.Flatten(0), r"block 0 .*of shape 16"),
        (
            Transposed := type("Transposed", (nn.Module,), {"forward": lambda self, h: h.mT}),
            r"first axis.*batch_first",
        ),
        (
            type("Rounded", (nn.Module,), {"forward": lambda self, h: h.long()}),
            r"torch\.int64: .*floating-point",
        ),
    ],
)
def test_a_state_that_is_neither_vector_nor_tokens_nor_map_is_refused_by_name(make: object, message: str) -> None:
    net = Network(nn.Linear(8, 8), [make()], nn.Identity(), residual=False)  # type: ignore[operator]
    with pytest.raises(SondeError, match=message):
        CreditAssignment(net, Backprop(), sample=torch.randn(8, 8))


def test_tokens_before_samples_are_refused_even_when_there_are_as_many_of_each() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=False)
    net = Network(Swapped(), [encoder], Swapped(), residual=False)
    with pytest.raises(SondeError, match=r"what embeds the input .*first axis.*batch_first=True"):
        CreditAssignment(net, Backprop(), sample=torch.randn(2, 2, 8))


class Swapped(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.transpose(0, 1)


def test_linear_outputs_keep_the_number_of_their_layer() -> None:
    x, y = images()
    net = sonde.chain(LeNet(), ["pool1", "conv2", "pool2", "fc1"], sample=x)
    found = read(take(net, x, y, nn.CrossEntropyLoss()), "activation_mean", "activation_std", "preact_grad_norm")
    for metric in ("activation_mean", "activation_std", "preact_grad_norm"):
        assert [found[metric, layer].defined for layer in (1, 2, 3, 4)] == [False, True, False, True]
        assert found[metric, 1].reason == "the block runs no linear map and no convolution"


@pytest.mark.parametrize("loss", [MEAN_SQUARED_ERROR, nn.MSELoss()])
def test_squared_errors_do_not_spread_targets_over_outputs(loss: Loss | LossFunction) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(5, 4)
    assignment = CreditAssignment(sonde.chain(net), Backprop(), sample=x, loss=loss)
    with pytest.raises(SondeError, match=r"\(5, 1\) have targets of shape \(5,\).*same shape"):
        assignment.backward(x, torch.randn(5))


def test_rho_of_the_gradient_is_one_whatever_is_read() -> None:
    for name, readers in {"vit_mean": ("cls", "last", "mean", "flat"), "convnet": ("flat", "mean")}.items():
        guest = GUESTS[name]
        x, y = guest.batch(32)
        for reader in readers:
            net = sonde.chain(guest.build(), guest.units, sample=x, pooling=reader)  # type: ignore[arg-type]
            found = read(take(net, x, y, nn.CrossEntropyLoss()), "rho")
            for layer in range(3):
                assert found["rho/bp", layer].value > 0.99, (name, reader, layer)
                assert math.isfinite(found["rho/null", layer].value)


def test_maps_have_no_tokens_to_read() -> None:
    x, _ = images()
    net = sonde.chain(ConvNet(), ["stages.*"], sample=x, pooling="cls")
    with pytest.raises(SondeError, match=r"pooling 'cls' is for tokens, but h_0 is a map of shape 6×8×8: choose"):
        CreditAssignment(net, Backprop(), sample=x)


def test_blocks_that_share_a_module_have_a_linear_output_each() -> None:
    torch.manual_seed(0)
    shared = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    net = Network(nn.Identity(), [shared, shared, shared], nn.Linear(4, 3).double(), residual=False)
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    looked = take(net, x, y, nn.CrossEntropyLoss())
    for h, z in zip(looked.states, looked.preactivations, strict=False):
        assert z is not None
        torch.testing.assert_close(z, shared[0](h).detach())
