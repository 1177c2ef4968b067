import pytest

from conftest import tiny_config
from sonde.compare.configurations import assignments
from sonde.errors import SondeError
from sonde.models import PlainMLP
from sonde.studies.narrow import differences, only, with_changes
from sonde.studies.residual import configs


def test_values_are_json_where_they_are_json() -> None:
    words = ["a=1", "b=1e-3", "c=text", "d=true", "e=[1,2]", "f=1/sqrt(L)", "g=x=y"]
    found = assignments(words, "--set")
    assert found == {"a": 1, "b": 1e-3, "c": "text", "d": True, "e": [1, 2], "f": "1/sqrt(L)", "g": "x=y"}
    with pytest.raises(SondeError, match="write key=value"):
        assignments(["epochs"], "--set")


def test_the_study_is_two_networks_by_two_variants_by_seeds() -> None:
    runs = configs("quick", [42, 123])
    assert len({run.id for run in runs}) == 8
    assert [run.id for run in runs] == [run.id for run in configs("full", [42, 123])]


def test_a_scaled_network_follows_its_depth() -> None:
    scaled = only(with_changes(configs("full", [42]), {"model.L": 4}), {"variant": "scaled"})
    assert {run.model.init_scale for run in scaled} == {0.5}


def test_only_keeps_what_has_the_value() -> None:
    runs = only(configs("full", [42, 7]), {"model": "plain_mlp", "seed": 7})
    assert {type(run.model) for run in runs} == {PlainMLP}
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"modle": "x"}, "unknown key 'modle': did you mean 'model'"),
        ({"seed": 9}, r"no run has that value; there are 42"),
    ],
)
def test_only_refuses_what_nothing_matches(choice: dict[str, object], message: str) -> None:
    with pytest.raises(SondeError, match=message):
        only(configs("full", [42]), choice)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model.l": 3}, "did you mean 'model.L'"), ({"seed": 1}, "choose seeds with --seeds")],
)
def test_set_refuses_keys_no_run_has(change: dict[str, object], message: str) -> None:
    with pytest.raises(SondeError, match=message):
        with_changes(configs("full", [42]), change)


def test_differences_name_keys_and_both_values_but_not_the_seed() -> None:
    from sonde.config import to_tree

    found = differences(to_tree(tiny_config(epochs=3)), to_tree(tiny_config(epochs=5, seed=1)))
    assert found == ["epochs = 3 instead of 5"]
