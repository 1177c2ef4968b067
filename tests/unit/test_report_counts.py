"""No page says that there are more runs than a study has, whichever studies share a store."""

import itertools
import re
from collections.abc import Collection
from dataclasses import replace

import polars as pl
import pytest

import sonde
from sonde.show.report import ReportContents, page_parts, report_contents, shown_runs
from sonde.show.report.sections import counted
from sonde.store.run import Runs
from sonde.studies import STUDIES
from stores import write_run

SHARES = re.compile(r"([\d,]+) of (?:its |the )?([\d,]+) (runs|seeds|networks|settings)")
RUNS_OF = {
    name: {config.id for config in (*study.configs("quick", [1, 2]), *study.beside("quick", [1, 2]))}
    for name, study in STUDIES.items()
}
SHARING = [pair for pair in itertools.combinations(STUDIES, 2) if RUNS_OF[pair[0]] & RUNS_OF[pair[1]]]
MIXTURES = [
    *itertools.combinations(STUDIES, 1),
    *(
        pair if pair in SHARING else pytest.param(pair, marks=pytest.mark.slow)
        for pair in itertools.combinations(STUDIES, 2)
    ),
    tuple(STUDIES),
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The runs of every study with those beside them, in one store."""
    root = tmp_path_factory.mktemp("counts") / "runs"
    for study in STUDIES.values():
        for config in (*study.configs("quick", [1, 2]), *study.beside("quick", [1, 2])):
            if not (root / config.id).exists():  # studies share runs
                write_run(root, config)
    return sonde.load(root)


def part_of(stored: Runs, ids: Collection[str]) -> ReportContents:
    runs = [run for run in stored.runs if run.id in ids]
    kept = replace(stored, rows=stored.rows.filter(pl.col("run").is_in(list(ids))), runs=runs)
    return report_contents(kept, source="runs", title="t")


def assert_possible(contents: ReportContents) -> None:
    parts = page_parts(contents, {}, shown_runs(contents))
    answers = [f"{one.answer.sentence} {one.answer.sure}" for one in contents.answered if one.answer]
    shares = [found for text in (*parts.values(), *answers) for found in SHARES.findall(text)]
    assert shares
    assert [share for share in shares if int(share[0].replace(",", "")) > int(share[1].replace(",", ""))] == []


@pytest.mark.parametrize("studies", MIXTURES, ids="+".join)
def test_no_share_is_larger_than_its_whole(stored: Runs, studies: tuple[str, ...]) -> None:
    assert_possible(part_of(stored, set().union(*(RUNS_OF[study] for study in studies))))


@pytest.mark.parametrize("study", STUDIES)
def test_no_share_is_larger_than_its_whole_where_runs_are_missing(stored: Runs, study: str) -> None:
    ids = sorted(RUNS_OF[study])
    for kept in (ids[::2], [run for run in ids if "-s2-" in run], ids[:1]):
        assert_possible(part_of(stored, kept))


def test_a_share_that_is_larger_than_its_whole_is_refused() -> None:
    assert counted(12, 12) == "12 of 12 runs"
    with pytest.raises(AssertionError, match="24 of 12"):
        counted(24, 12)
