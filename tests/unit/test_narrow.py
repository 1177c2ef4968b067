import pytest

from conftest import tiny_config
from sonde.analysis.runs import choices
from sonde.config import RunConfig, whole_tree
from sonde.core.errors import SondeError
from sonde.core.run_ids import differences, flatten
from sonde.models import PlainMLP
from sonde.studies.residual import configs
from sonde.studies.study import narrowed, settings, swept


def changed(*words: str) -> list[RunConfig]:
    """The residual study after `--set`."""
    return swept(map(whole_tree, configs("full", [42])), settings(words))


def test_values_are_json_where_they_are_json() -> None:
    words = ["a=1", "b=1e-3", "c=text", "d=true", "e=[1,2]", "f=1/sqrt(L)", "g=x=y"]
    found = choices(words)
    assert found == {"a": 1, "b": 1e-3, "c": "text", "d": True, "e": [1, 2], "f": "1/sqrt(L)", "g": "x=y"}
    with pytest.raises(SondeError, match="write key=value"):
        choices(["epochs"])


def test_the_study_is_two_networks_by_two_variants_by_seeds() -> None:
    runs = configs("quick", [42, 123])
    assert len({run.id for run in runs}) == 8
    assert [run.id for run in runs] == [run.id for run in configs("full", [42, 123])]


def test_a_scaled_network_follows_its_depth() -> None:
    scaled = narrowed(changed("model.L=4"), {"variant": "scaled"})
    assert {run.model.init_scale for run in scaled} == {0.5}


def test_only_keeps_what_has_the_value() -> None:
    runs = narrowed(configs("full", [42, 7]), {"model": "plain_mlp", "seed": 7})
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
        narrowed(configs("full", [42]), choice)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.l=3", "unknown key 'model.l': did you mean 'model.L'"),
        ("seed=1", "choose seeds with --seeds"),
        ("epochs", "write key=value"),
        ("prboes.names+=rho", "did you mean 'probes.names'"),
        ("model.L=3,many", "model.L = 'many': input should be a valid integer"),
        ("probes.names=loss,growth", r"probes.names = 'loss': a list is written \[a,b\]"),
    ],
)
def test_set_refuses_keys_no_run_has_and_values_they_cannot_have(word: str, message: str) -> None:
    with pytest.raises(SondeError, match=message):
        changed(word)


def test_several_values_train_their_product() -> None:
    runs = changed("model.L=3,4", "optimiser.lr=1e-3,3e-3", "epochs=2")
    assert len(runs) == 4 * 2 * 2
    assert {(run.model.L, run.optimiser.lr) for run in runs} == {
        (3, 1e-3),
        (3, 3e-3),
        (4, 1e-3),
        (4, 3e-3),
    }


def test_what_stands_in_brackets_is_one_value() -> None:
    (etas,) = {run.probes.etas for run in changed("probes.etas=[0.01,0.1]")}
    assert etas == (0.01, 0.1)
    assert {run.probes.etas for run in changed("probes.etas=[0.01],[0.1,1]")} == {(0.01,), (0.1, 1.0)}
    assert {run.probes.names for run in changed("probes.names=[loss,rho]")} == {("loss", "rho")}


def test_plus_adds_to_a_list_and_beside_other_values() -> None:
    before = configs("full", [42])[0].probes.names
    assert {run.probes.names for run in changed("probes.names+=rho,loss", "probes.names+=drift")} == {
        (*before, "rho", "drift")
    }
    runs = changed("rule+=dfa")
    assert len(runs) == 8
    assert {run.id for run in configs("full", [42])} < {run.id for run in runs}


def test_an_option_is_set_where_the_chosen_part_has_it() -> None:
    runs = changed("rule=bp,credit_bridge", "rule.copies=2")
    assert {getattr(run.rule, "copies", None) for run in runs} == {None, 2}


def test_differences_name_keys_and_both_values_but_not_the_seed() -> None:
    from sonde.config import to_tree

    found = differences(*(flatten(to_tree(one)) for one in (tiny_config(epochs=3), tiny_config(epochs=5, seed=1))))
    assert found == ["epochs = 3 instead of 5"]
