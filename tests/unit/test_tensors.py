import pytest
import torch

from sonde.training.program import pack, unpack


def test_any_nesting_of_state_comes_back_bit_for_bit() -> None:
    shared = torch.randn(3, dtype=torch.float64)
    tree = {
        "state": {0: {"step": torch.tensor(3.0), "average": shared}, 1: {"average": shared}},
        "groups": [{"lr": 1e-3, "betas": [0.9, 0.999], "name": None, "params": [0, 1], "on": True}],
        "generator": torch.Generator().manual_seed(3).get_state(),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": {},
    }
    again = unpack(pack(tree))
    assert again["groups"] == tree["groups"]
    assert list(again["state"]) == [0, 1]
    assert again["empty"] == {}
    assert again["half"].dtype == torch.bfloat16
    assert torch.equal(again["state"][1]["average"], shared)
    assert torch.equal(again["generator"], tree["generator"])  # type: ignore[arg-type]


def test_a_tree_without_tensors_is_fine() -> None:
    assert unpack(pack({"a": [1, "x"]})) == {"a": [1, "x"]}


def test_what_cannot_be_stored_is_refused_rather_than_pickled() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        pack({"a": object()})
