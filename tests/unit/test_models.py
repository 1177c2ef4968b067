import itertools
import math

import pytest
import torch

from conftest import regression
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.run_ids import network_label
from sonde.models import Model, PlainMLP, ResidualMLP, ResMLP, StudentNet, VitMini
from sonde.network import Signature

IMAGES = Signature(shape=(1, 8, 8), outputs=5, classifies=True)


def test_both_networks_of_a_seed_start_from_the_same_weights() -> None:
    plain, residual = (
        model(d=16, L=5).build(regression(16), generator(42, "init")).state_dict() for model in (PlainMLP, ResMLP)
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
    weight = PlainMLP(d=512, L=1).build(regression(512), generator(0, "init")).state_dict()["blocks.0.linear.weight"]
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 512), rel=0.01)


@pytest.mark.parametrize(("scale", "name"), [(1, "raw"), ("1/sqrt(L)", "scaled"), (0.5, "weight scale 0.5")])
def test_the_variant_is_read_off_the_configuration(scale: float, name: str) -> None:
    assert PlainMLP(L=20, weight_scale=scale).variant == name


def test_widths_that_do_not_match_say_which_to_change() -> None:
    with pytest.raises(SondeError, match=r"model\.d = 8, but the task maps 4 inputs.*set model\.d and task\.d"):
        PlainMLP(d=8).build(regression(4), generator(0, "init"))


def test_residual_is_the_sum_and_plain_the_branch_alone() -> None:
    x = torch.randn(3, 8)
    plain, residual = (model(d=8, L=1).build(regression(8), generator(2, "init")) for model in (PlainMLP, ResMLP))
    torch.testing.assert_close(residual(x), x + plain(x))
    states, output = residual.states(x)
    assert len(states) == 2
    assert torch.equal(states[0], x)
    assert torch.equal(states[1], output)


def spread(weights: dict[str, torch.Tensor], name: str) -> float:
    return float(torch.cat([value.flatten() for key, value in weights.items() if key.endswith(name)]).std())


def test_a_residual_mlp_starts_with_branches_of_the_set_scale_and_pytorchs_other_weights() -> None:
    weights = ResidualMLP(d=128, L=4, w2_std=0.03).build(IMAGES, generator(0, "init")).state_dict()
    assert spread(weights, "w2.weight") == pytest.approx(0.03, rel=0.02)
    assert not any(value.any() for name, value in weights.items() if name.endswith("w2.bias"))
    assert spread(weights, "w1.weight") == pytest.approx(1 / math.sqrt(3 * 128), rel=0.02)


def test_at_its_default_init_a_branch_adds_a_tenth_of_the_stream() -> None:
    net = ResidualMLP().build(Signature(shape=(3072,), outputs=10, classifies=True), generator(0, "init"))
    states, _ = net.states(torch.randn(64, 3072, generator=generator(1, "x")))
    for before, after in itertools.pairwise(states):
        ratios = (after - before).norm(dim=-1) / before.norm(dim=-1)
        assert ratios.median().item() == pytest.approx(0.1, rel=0.5)


def test_a_student_starts_with_variances_of_one_over_d_and_one_over_d_times_L() -> None:
    weights = StudentNet(d=128, L=4).build(IMAGES, generator(0, "init")).state_dict()
    assert spread(weights, "w1.weight") == pytest.approx(1 / math.sqrt(128), rel=0.02)
    assert spread(weights, "w2.weight") == pytest.approx(1 / math.sqrt(128 * 4), rel=0.02)


@pytest.mark.parametrize("out_ln", [False, True])
def test_the_head_of_a_transformer_reads_the_first_token_alone(out_ln: bool) -> None:
    net = VitMini(d=8, L=1, heads=2, out_ln=out_ln).build(IMAGES, generator(0, "init"))
    states, output = net.states(torch.randn(2, 1, 8, 8, generator=generator(1, "x")))
    h = states[-1].detach().clone()
    h[:, 1:] += 1
    assert torch.equal(net.readout(h), output)
    h[:, 0, 0] += 1
    assert not torch.equal(net.readout(h), output)


@pytest.mark.parametrize(
    ("former", "model"),
    [
        ("Residual MLP", ResMLP()),
        ("Residual MLP, linear output", ResMLP(output="linear")),
        ("ResMLP", ResidualMLP()),
        ("ResMLP, no terminal LN", ResidualMLP(out_ln=False)),
        ("MLP without residual", ResidualMLP(residual=False)),
    ],
)
def test_a_label_of_an_earlier_version_is_read_as_the_label_of_today(former: str, model: Model) -> None:
    assert network_label(former) == network_label(model.label) == model.label
