import pytest

from sonde.core.errors import SondeError, pick


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(SondeError, match=r"unknown model 'plain_mpl': did you mean 'plain_mlp'\?"):
        pick({"plain_mlp": 1, "res_mlp": 2}, "plain_mpl", "model")


def test_a_name_like_no_other_lists_them_all() -> None:
    with pytest.raises(SondeError, match="there are: a, b"):
        pick({"b": 1, "a": 2}, "zzz", "rule")
