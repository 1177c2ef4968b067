"""The gradient of a weight matrix by the faster library: the bits of `torch.mm`, close to float64."""

import pytest
import torch

from sonde.config import RunConfig
from sonde.models import ResidualMLP
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
