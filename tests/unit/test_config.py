from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_config
from sonde.config import Optimiser, RunConfig, change, keys, parse, to_tree
from sonde.core.errors import SondeError
from sonde.models import PlainMLP, ResidualMLP, ResMLP
from sonde.tasks import Identity


@given(
    d=st.integers(1, 512),
    L=st.integers(1, 64),
    weight_scale=st.one_of(st.just("1/sqrt(L)"), st.floats(0.01, 10)),
    model=st.sampled_from([PlainMLP, ResMLP]),
    seed=st.integers(0, 2**40),
    epochs=st.integers(1, 1000),
)
def test_a_configuration_survives_json_with_its_id(
    d: int, L: int, weight_scale: object, model: type, seed: int, epochs: int
) -> None:
    config = tiny_config(model=model(d=d, L=L, weight_scale=weight_scale), task=Identity(d=d), seed=seed, epochs=epochs)
    again = parse(to_tree(config))
    assert again == config
    assert again.id == config.id


def test_every_key_changes_the_id() -> None:
    sgd = Optimiser(name="sgd", momentum=0.5)
    config = tiny_config(model=ResidualMLP(d=8, L=3), optimiser=sgd)
    words = {
        "model": "student_net",
        "model.trained_blocks": 2,
        "rule": "dfa",
        "rule.credit_scale": "rms",
        "task": "teacher",
        "optimiser.name": "adam",
        "optimiser.momentum": 0.9,
        "optimiser.schedule": "constant",
        "probes.names": ["loss"],
        "probes.schedule": "final",
        "probes.costly": ["rho"],
        "probes.costly_schedule": "final",
        "probes.epsilon": 1e-3,
        "probes.etas": [0.5],
        "precision": "float64",
        "log": "epoch",
        "scale": "quick",
    }
    ids = {config.id}
    for key, value in keys(config).items():
        other = words[key] if key in words else not value if isinstance(value, bool) else value * 2 + 1
        if key == "optimiser.name":
            ids.add(replace(config, optimiser=Optimiser(name="adam")).id)
        else:
            ids.add(change(config, {key: other}).id)
    assert len(ids) == 1 + len(keys(config))


def test_a_number_written_as_an_integer_is_the_same_run() -> None:
    assert tiny_config(model=ResMLP(d=8, L=3, weight_scale=1)).id == tiny_config(model=ResMLP(d=8, L=3)).id


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model.weight_sclae", 3, "unknown key 'model.weight_sclae': did you mean 'model.weight_scale'"),
        ("modle.L", 3, r"unknown key 'modle.L': did you mean 'model.L'"),
        ("model.L", 0, "model.L = 0: input should be greater than or equal to 1"),
        ("model.L", "many", "model.L = 'many': input should be a valid integer"),
        ("optimiser.lr", -1, "optimiser.lr = -1: input should be greater than or equal to 0"),
        ("optimiser.nmae", "adam", "unknown key 'optimiser.nmae': did you mean 'optimiser.name'"),
        ("optimiser.name", "sgdd", "optimiser.name = 'sgdd': input should be 'adam', 'adamw' or 'sgd'"),
        ("probes.names", ["hidden_nrom"], "unknown probe 'hidden_nrom': did you mean 'hidden_norm'"),
        ("epochs", 0, "epochs = 0"),
        ("epoch", 3, "unknown key 'epoch': did you mean 'epochs'"),
        ("model", "res_mpl", "unknown model 'res_mpl': did you mean 'res_mlp'"),
        ("model", 3, "model: expected"),
        ("optimiser", 3, "optimiser: expected"),
    ],
)
def test_bad_keys_and_values_are_refused_by_name(tiny: RunConfig, key: str, value: object, message: str) -> None:
    with pytest.raises(SondeError, match=message):
        change(tiny, {key: value})


def test_a_missing_part_names_the_choices(tiny: RunConfig) -> None:
    tree = to_tree(tiny)
    del tree["model"]
    with pytest.raises(SondeError, match="model is missing: choose one of plain_mlp, res_mlp, residual_mlp"):
        parse(tree)


def test_the_id_names_model_rule_task_and_seed(tiny: RunConfig) -> None:
    assert replace(tiny, seed=7).id.startswith("res_mlp-bp-identity-s7-")
