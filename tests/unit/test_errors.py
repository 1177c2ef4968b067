import pytest

from sonde.core.errors import SondeError, nearest, pick
from sonde.core.formatting import Thresholds, number, signed


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(SondeError, match=r"unknown model 'plain_mpl': did you mean 'plain_mlp'\?"):
        pick({"plain_mlp": 1, "res_mlp": 2}, "plain_mpl", "model")


def test_a_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(SondeError, match="there are: a, b"):
        pick({"b": 1, "a": 2}, "zzz", "rule")


def test_a_key_is_found_by_its_last_part() -> None:
    assert nearest("L", ["model.L", "model.d", "task"]) == "did you mean 'model.L'?"


def test_a_negative_number_has_the_minus_of_a_difference() -> None:
    assert number(-0.022).startswith("−")
    assert number(-2e5).startswith("−")
    assert signed(-0.022).startswith("−")
    assert "-" not in number(-0.5)


def test_a_threshold_of_the_audit_is_not_negative() -> None:
    with pytest.raises(SondeError, match="not negative"):
        Thresholds(growth=-1.0)
