"""Products by the faster library: gradients of weights have the bits of `torch.mm`, measured values are close."""

import pytest
import torch

from sonde.config import RunConfig
from sonde.models import ResidualMLP
from sonde.network import units
from sonde.rules import Backprop
from sonde.tasks import Digits
from sonde.training import kernels
from sonde.training.kernels import by_mm, by_onednn, faster_product
from sonde.training.program import Program
from sonde.training.step import rule_backward

SHAPES = [(128, 256, 256), (128, 256, 3072), (32, 512, 512), (97, 300, 200), (128, 10, 256), (500, 128, 128)]


def tensors(samples: int, outputs: int, inputs: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(7)
    g, x = (torch.randn(samples, width, generator=rng, dtype=torch.float64) for width in (outputs, inputs))
    return g.to(dtype), x.to(dtype), torch.empty(outputs, inputs, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_chosen_product_has_the_bits_of_pytorchs_own(shape: tuple[int, int, int]) -> None:
    g, x, out = tensors(*shape)
    found = faster_product(*shape, like=x)(g, x, out)
    assert found is out
    assert torch.equal(found, g.T @ x)
    exact = g.double().T @ x.double()
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5 * exact.abs().max().item())


def test_other_bits_are_never_chosen_however_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one_bit(g: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        by_mm(g, x, out).view(-1)[0].mul_(1 + 2**-20)
        return out

    monkeypatch.setattr(kernels, "by_onednn", off_by_one_bit)
    monkeypatch.setattr(kernels, "_seconds", lambda product, *_: 1.0 if product is by_mm else 0.0)
    kernels._compared.cache_clear()
    assert faster_product(128, 256, 256, like=torch.zeros(1)) is by_mm
    kernels._compared.cache_clear()


def test_small_products_float64_and_strided_tensors_stay_with_pytorch() -> None:
    assert faster_product(32, 64, 64, like=torch.zeros(1)) is by_mm
    assert faster_product(128, 256, 256, like=torch.zeros(1, dtype=torch.float64)) is by_mm
    g, x, out = tensors(64, 256, 512)
    strided = x[:, ::2]
    assert torch.equal(by_onednn(g, strided, out[:, :256].contiguous()), g.T @ strided)


def test_the_choice_draws_no_number_of_the_global_generator() -> None:
    before = torch.get_rng_state()
    kernels._compared.cache_clear()
    faster_product(128, 256, 256, like=torch.zeros(1))
    assert torch.equal(before, torch.get_rng_state())


def test_a_wide_step_by_hand_has_the_gradients_of_autograd_bit_for_bit() -> None:
    config = RunConfig(model=ResidualMLP(d=256, L=2), rule=Backprop(), task=Digits(), batch_size=128)
    program = Program(config, config.task.load(0, None, torch.device("cpu"), torch.float32), torch.device("cpu"))
    x, y = next(program.data.batches(128, program.order))
    program.backward(x, y)
    by_hand = [p.grad.clone() for p in program.net.parameters() if p.grad is not None]
    for p in program.net.parameters():
        p.grad = None
    rule_backward(program.net, config.rule, program.credit.state, x, y, program.loss)
    by_autograd = [p.grad for p in program.net.parameters() if p.grad is not None]
    assert len(by_hand) == len(by_autograd) > 0
    assert all(torch.equal(a, b) for a, b in zip(by_hand, by_autograd, strict=True))


def wide_program(d: int = 128) -> Program:
    config = RunConfig(model=ResidualMLP(d=d, L=2), rule=Backprop(), task=Digits(), batch_size=96)
    return Program(config, config.task.load(config.seed, None, torch.device("cpu"), torch.float32), torch.device("cpu"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the products that oneDNN computes."""
    found: list[torch.Size] = []
    product = units.onednn_linear

    def counted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        found.append(weight.shape)
        return product(x, weight, bias)

    monkeypatch.setattr(units, "onednn_linear", counted)
    return found


needs_onednn = pytest.mark.skipif(not units.has_onednn(), reason="this PyTorch has no oneDNN")


@needs_onednn
def test_the_test_set_by_onednn_has_the_loss_and_accuracy_of_pytorchs_own_products(calls: list[torch.Size]) -> None:
    program = wide_program()
    program.train_epoch(1)
    loss, accuracy = (reading.value for reading in program.evaluate())
    assert calls
    x, y = program.data.test(0, program.data.test_samples)
    with torch.no_grad():
        output = program.net.eval()(x)
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(output, y).item(), rel=1e-6)
    assert accuracy == (output.argmax(-1) == y).double().mean().item()


@needs_onednn
def test_a_label_that_rounding_decides_is_left_to_pytorchs_own_products(calls: list[torch.Size]) -> None:
    program = wide_program()
    head = program.net.readout.out_head
    with torch.no_grad():
        head.weight[1:] = head.weight[0]  # every sample is tied between all classes
        head.bias.zero_()
    before = program.net.eval()(program.data.test(0, 360)[0]).argmax(-1)
    accuracy = program.evaluate()[1].value
    assert calls
    assert accuracy == (before == program.data.test(0, 360)[1]).double().mean().item()


@needs_onednn
def test_outputs_and_input_gradients_by_onednn_differ_by_rounding_and_none_is_made_for_trained_weights(
    calls: list[torch.Size],
) -> None:
    linear, x = torch.nn.Linear(512, 256), torch.randn(128, 512, requires_grad=True)
    with units.ProductsByOneDNN():
        linear(x)
        assert not calls
        linear.requires_grad_(False)
        out = linear(x)
    (below,) = torch.autograd.grad(out.square().sum(), x)
    assert calls == [(256, 512), (512, 256)]
    exact = torch.nn.functional.linear(x.double(), *(p.double() for p in linear.parameters()))
    (exact_below,) = torch.autograd.grad(exact.square().sum(), x)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(below, exact_below, rtol=0, atol=1e-4)
    linear.double()
    with units.ProductsByOneDNN():
        linear(x.detach().double())
    assert len(calls) == 2


@needs_onednn
def test_replicas_of_a_stack_have_the_products_of_a_network_alone() -> None:
    weight, x = torch.randn(256, 512), torch.randn(128, 512)
    strided = weight.T.contiguous().T
    with units.ProductsByOneDNN():
        assert torch.equal(torch.nn.functional.linear(x, weight), torch.nn.functional.linear(x, strided))


@needs_onednn
def test_where_onednn_cannot_compute_pytorch_does() -> None:
    linear, x = torch.nn.Linear(512, 256).requires_grad_(False), torch.randn(3, 128, 512)
    with units.ProductsByOneDNN():
        mapped = torch.func.vmap(linear)(x)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            linear(torch.randn(128, 513))
    torch.testing.assert_close(mapped, linear(x))
