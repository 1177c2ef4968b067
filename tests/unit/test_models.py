import math

import pytest
import torch

from conftest import regression
from sonde.errors import SondeError
from sonde.generators import generator
from sonde.models import PlainMLP, ResMLP


def test_both_networks_of_a_seed_start_from_the_same_weights() -> None:
    plain, residual = (
        model(d=16, L=5).build(regression(16), generator(42, "init")).state_dict()
        for model in (PlainMLP, ResMLP)
    )
    assert plain.keys() == residual.keys()
    assert all(torch.equal(plain[name], residual[name]) for name in plain)


def test_the_scaled_variant_is_the_raw_one_times_one_over_root_L() -> None:
    raw, scaled = (
        ResMLP(d=16, L=4, weight_scale=scale).build(regression(16), generator(1, "init")).state_dict()
        for scale in (1.0, "1/sqrt(L)")
    )
    torch.testing.assert_close(scaled["blocks.2.linear.weight"], raw["blocks.2.linear.weight"] / 2)
    assert not raw["blocks.2.linear.bias"].any()


def test_weights_are_kaiming_normal() -> None:
    weight = (
        PlainMLP(d=512, L=1)
        .build(regression(512), generator(0, "init"))
        .state_dict()["blocks.0.linear.weight"]
    )
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 512), rel=0.01)


@pytest.mark.parametrize(("scale", "name"), [(1, "raw"), ("1/sqrt(L)", "scaled"), (0.5, "weight scale 0.5")])
def test_the_variant_is_read_off_the_configuration(scale: float, name: str) -> None:
    assert PlainMLP(L=20, weight_scale=scale).variant == name


def test_widths_that_do_not_match_say_which_to_change() -> None:
    with pytest.raises(
        SondeError, match=r"model\.d = 8, but the task maps 4 inputs.*set model\.d and task\.d"
    ):
        PlainMLP(d=8).build(regression(4), generator(0, "init"))


def test_residual_is_the_sum_and_plain_the_branch_alone() -> None:
    x = torch.randn(3, 8)
    plain, residual = (
        model(d=8, L=1).build(regression(8), generator(2, "init")) for model in (PlainMLP, ResMLP)
    )
    torch.testing.assert_close(residual(x), x + plain(x))
    states, output = residual.states(x)
    assert len(states) == 2
    assert torch.equal(states[0], x)
    assert torch.equal(states[1], output)
