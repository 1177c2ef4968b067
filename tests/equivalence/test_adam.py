"""Sonde's Adam against PyTorch's, bit for bit."""

import pytest
import torch
from torch import nn

from sonde.training.kernels import Adam

SHAPES = ((33, 7), (10,), (5,), (64, 64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("decoupled", "theirs"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_steps_are_those_of_torch_optim(
    decoupled: bool, theirs: type[torch.optim.Adam | torch.optim.AdamW], dtype: torch.dtype
) -> None:
    rng = torch.Generator().manual_seed(0)
    mine = [nn.Parameter(torch.randn(shape, generator=rng, dtype=dtype)) for shape in SHAPES]
    other = [nn.Parameter(p.detach().clone()) for p in mine]
    untouched = mine[-1].detach().clone()
    ours = Adam(mine, weight_decay=0.01, decoupled=decoupled)
    reference = theirs(other, lr=1e-3, weight_decay=0.01, fused=True)
    for step in range(30):
        lr = 1e-3 * (step + 1)
        for p, q in zip(mine[:-1], other[:-1], strict=True):  # the last gets no gradient
            p.grad = torch.randn(p.shape, generator=rng, dtype=dtype)
            q.grad = p.grad.clone()
        reference.param_groups[0]["lr"] = lr
        ours.step(lr)
        reference.step()
        if step == 14:  # what is stored brings the same optimiser back
            stored = ours.state_dict()
            ours = Adam(mine, weight_decay=0.01, decoupled=decoupled)
            ours.load_state_dict(stored)
    assert all(torch.equal(p, q) for p, q in zip(mine, other, strict=True))
    assert torch.equal(mine[-1], untouched)


def test_without_any_gradient_nothing_happens() -> None:
    p = nn.Parameter(torch.ones(3))
    optimiser = Adam([p], weight_decay=0.01, decoupled=True)
    optimiser.step(0.1)
    assert p.tolist() == [1, 1, 1]
    assert optimiser.steps.item() == 0
