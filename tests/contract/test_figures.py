"""What every figure must do, for each of the studies it belongs to."""

from importlib import import_module
from pathlib import PurePosixPath

import polars as pl
import pytest

from evidence import (
    RULES,
    residual_evidence,
    rules_evidence,
    snapshot_evidence,
    undefined_where,
    with_parity,
    with_rows,
    with_runs,
)
from sonde.show.figures import FIGURES, Evidence, NoData, figures_of
from sonde.studies import STUDIES
from sonde.studies.controls import CONTROL_STUDIES

SEEDS = (42, 123)
AUDIT = rules_evidence(seeds=SEEDS, epochs=4, rules=tuple(RULES), depth=4)
OF_CONV_NET = pl.format("conv-{}", "run").alias("run")
CONV = Evidence(
    AUDIT.rows.with_columns(OF_CONV_NET),
    AUDIT.runs.with_columns(OF_CONV_NET, model=pl.lit("conv_net"), label=pl.lit("ConvNet")),
    AUDIT.source,
)
BY_FA = pl.col("run").str.starts_with("fa-") & (pl.col("layer") < 4)
BACKWARD = [
    AUDIT.rows.filter(BY_FA, metric="credit_cosine").with_columns(metric=pl.lit(name))
    for name in ("weight_alignment", "weight_ratio")
]
EVIDENCE: dict[str, Evidence] = {
    "residual": residual_evidence(seeds=SEEDS, depth=4, width=4, steps=6),
    "snapshots": with_parity(snapshot_evidence(seeds=SEEDS, epochs=4)),
    "cifar10": with_parity(rules_evidence(seeds=SEEDS, epochs=4)),
    "audit": with_parity(AUDIT),
    "rules": Evidence(pl.concat([AUDIT.rows, *BACKWARD, CONV.rows]), pl.concat([AUDIT.runs, CONV.runs]), AUDIT.source),
}
EVIDENCE |= dict.fromkeys(CONTROL_STUDIES, AUDIT)
ENTRIES = [(name, study) for name, spec in FIGURES.items() for study in spec.paths]


def test_every_study_has_figures_and_every_figure_is_of_a_study() -> None:
    assert {study for _, study in ENTRIES} == STUDIES.keys() == EVIDENCE.keys()


def test_no_two_figures_of_a_study_have_one_name_and_no_two_files_one_path() -> None:
    paths = [FIGURES[name].paths[study] for name, study in ENTRIES]
    assert len(set(paths)) == len(paths) == sum(len(figures_of(study)) for study in EVIDENCE)


@pytest.mark.parametrize("name", FIGURES)
def test_an_entry_says_what_it_shows_who_draws_it_and_where_its_files_go(name: str) -> None:
    spec = FIGURES[name]
    assert spec.title[0].isupper()
    module, _, function = spec.drawn_by.partition(".")
    assert callable(getattr(import_module(f"sonde.show.figures.{module}"), function or f"draw_{name}"))
    assert spec.paper.keys() <= set(spec.studies)
    for study, path in spec.paths.items():
        assert figures_of(study)[PurePosixPath(path).name] is spec
        assert PurePosixPath(path).parts == (study, spec.name)
        assert not PurePosixPath(path).is_absolute()
        assert not PurePosixPath(path).suffix


@pytest.mark.parametrize(("name", "study"), ENTRIES)
def test_a_figure_is_drawn_and_its_caption_says_n_seeds_recipe_and_runs(name: str, study: str) -> None:
    spec, evidence = FIGURES[name], EVIDENCE[study]
    figure, caption = spec.draw(evidence)
    n = "n = 1 seed (42)" if name == "one_input" else "n = 2 seeds (42, 123)"
    assert n.split(" (")[0] in figure.get_suptitle().replace("\n", " ")
    assert n in caption
    assert "learning rate 0.001" in caption
    assert any(run in caption for run in evidence.runs["run"]) or f"their ids are in {evidence.source}" in caption
    assert caption.count("\n") == 1 == caption.index("\n") - len(caption) + 2
    drawn = [artist for ax in figure.axes for artist in (*ax.lines, *ax.patches, *ax.images)]
    assert drawn


@pytest.mark.parametrize(("name", "study"), ENTRIES)
def test_a_figure_without_rows_runs_or_values_says_which_are_missing(name: str, study: str) -> None:
    spec, evidence = FIGURES[name], EVIDENCE[study]
    for lacking in (
        with_rows(evidence, evidence.rows.clear()),
        with_runs(evidence, evidence.runs.clear()),
        undefined_where(evidence, evidence.rows["defined"]),
    ):
        with pytest.raises(NoData, match=r"\w") as missing:
            spec.draw(lacking)
        assert evidence.source in str(missing.value)
        assert "None" not in str(missing.value)
