"""What every entry of every table must do."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from conftest import tiny_config
from sonde.config import CHOICES, label_of, parse, to_tree
from sonde.metrics.probes import PROBES
from sonde.models import ResidualMLP
from sonde.plugins import load_plugin
from sonde.show.figures import figures_of
from sonde.studies import STUDIES
from sonde.tasks import Digits

FILES = Path(__file__).parents[1] / "plugin_files"
PLUGINS = [("rule", "signs", "Signs"), ("model", "funnel", "funnel"), ("task", "moons", "moons")]
ENTRIES = [(part, name, kind) for part, table in CHOICES.items() for name, kind in table.items()]
ENTRIES += [(part, name, load_plugin(part, f"{FILES / file}.py:{name}").kind) for part, file, name in PLUGINS]


@pytest.mark.parametrize(("part", "name", "kind"), ENTRIES, ids=[f"{p}-{n}" for p, n, _ in ENTRIES])
def test_an_entry_is_a_documented_frozen_configuration_with_defaults(part: str, name: str, kind: type[Any]) -> None:
    entry = kind()
    assert inspect.getdoc(kind)
    assert label_of(part, entry)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(entry, next((f.name for f in dataclasses.fields(entry)), "anything"), 1)
    partners = {"model": ResidualMLP(d=8, L=2), "task": Digits()}
    config = tiny_config(**(partners | {part: entry}))
    assert parse(to_tree(config)) == config
    assert to_tree(config)[part]["name"] == name


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_documented(name: str) -> None:
    assert inspect.getdoc(PROBES[name])


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_a_study_is_a_function_of_scale_and_seeds_to_distinct_complete_runs(name: str, scale: str) -> None:
    study = STUDIES[name]
    configs = study.configs(scale, study.seeds[scale])
    assert len({config.id for config in configs}) == len(configs) > 0
    assert {config.seed for config in configs} == set(study.seeds[scale])
    assert all(parse(to_tree(config)) == config for config in configs)
    assert figures_of(name)
