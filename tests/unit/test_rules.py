"""What rules draw before they start."""

import pytest
import torch

from sonde.core.generators import generator
from sonde.rules import CreditBridge, DirectFeedback, Facts, FeedbackAlignment
from sonde.rules.states import Matrices

D, C, L = 200, 50, 3
FACTS = Facts(shapes=[(D,)] * (L + 1), output_shape=(C,), steps=10, device=torch.device("cpu"), dtype=torch.float32)


def spread(matrices: list[torch.Tensor]) -> float:
    return float(torch.stack(matrices).std())


@pytest.mark.parametrize("seed", [0, 1])
def test_direct_feedback_has_a_matrix_for_every_state_with_variance_one_over_its_outputs(seed: int) -> None:
    for matrices in (
        DirectFeedback().init(FACTS, generator(seed, "rule")).matrices,
        CreditBridge().init(FACTS, generator(seed, "rule")).feedback.matrices,
    ):
        assert [b.shape for b in matrices] == [(D, C)] * (L + 1)
        assert spread(matrices) == pytest.approx(C**-0.5, rel=0.03)


@pytest.mark.parametrize("seed", [0, 1])
def test_feedback_alignment_has_a_matrix_for_every_block_with_variance_one_over_the_width(seed: int) -> None:
    state = FeedbackAlignment().init(FACTS, generator(seed, "rule"))
    assert isinstance(state, Matrices)
    assert [b.shape for b in state.matrices] == [(D, D)] * L
    assert spread(state.matrices) == pytest.approx(D**-0.5, rel=0.03)
