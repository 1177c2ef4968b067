"""The tables of docs/rules.md and the pages of rules, against the code, stored runs and measured times."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from sonde.cli.train import import_benchmark
from sonde.config import RunConfig
from sonde.core.errors import SondeError
from sonde.models import ConvNet, ResidualMLP
from sonde.network import Signature
from sonde.rules import RULES, FeedbackAlignment, Rule
from sonde.store.load import load, verify
from sonde.store.run import Runs
from sonde.tasks import Parity
from sonde.training.credit_assignment import CreditAssignment
from sonde.training.train import stackable

import_benchmark()

from sonde_bench.arithmetic import flops  # noqa: E402

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^\| rule \| needs \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)
BY_LAYER = "`fa` with `level=layer`"


def table(page: Path) -> str:
    found = TABLE.search(page.read_text())
    assert found is not None, page
    return found.group()


def lines() -> dict[str, tuple[Rule, str, str, str]]:
    """By the table's words for a rule: the rule, its arithmetic, whether states may change shape, whether it stacks."""
    known: dict[str, tuple[Rule, str, str, str]] = {}
    for line in table(ROOT / "docs" / "rules.md").splitlines()[2:]:
        called, _, arithmetic, shapes, stacked = (cell.strip() for cell in line.strip("|").split("|"))
        if called == BY_LAYER:
            known[called] = FeedbackAlignment(level="layer"), arithmetic, shapes, stacked
        else:
            for name in re.findall(r"`(\w+)`", called):
                known[name] = RULES[name](), arithmetic, shapes, stacked
    return known


LINES = lines()


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_described_in_plain_words(name: str) -> None:
    """The site appends figure, definition, options and results; the words are written by hand."""
    path = ROOT / "docs" / "rules" / f"{name}.md"
    assert path.exists(), f"write docs/rules/{name}.md: a title, what the rule does in plain words, and the line below"
    text = path.read_text()
    assert text.rstrip().endswith(f"<!-- facts of {name} -->"), f"docs/rules/{name}.md ends <!-- facts of {name} -->"
    assert len(text.split()) > 40, f"docs/rules/{name}.md: say what the rule does and when to use it"


def test_every_rule_has_its_line_and_its_section() -> None:
    assert LINES.keys() == RULES.keys() | {BY_LAYER}
    page = (ROOT / "docs" / "rules.md").read_text()
    for name, kind in RULES.items():
        section = re.split(r"\n###? ", page.partition(f"\n### `{name}`: {kind().label}\n")[2])[0]
        assert section.split() == (kind.__doc__ or "").split(), name


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_differs_from_its_paper_says_so(name: str) -> None:
    """Item 7: in its docstring, which `sonde explain` prints, and on the page where it differs in more than scale."""
    rule, said = RULES[name](), " ".join((RULES[name].__doc__ or "").split())
    has_paper = any(word in said for word in ("arXiv", "doi", "openreview"))
    moving = ("pc", "ep", "dualprop", "pepita", "ff")
    assert (rule.credit_scale == "none") == (name in ("bp", "frozen", *moving))
    assert ("`credit_scale`" in said) == (has_paper and rule.credit_scale == "rms")
    page = (ROOT / "docs" / "rules.md").read_text()
    differences = page.partition("## Where they differ from their papers")[2].partition("\n## ")[0]
    assert "`credit_scale: rms`" in differences
    differing = ("fa", "mirror", "ddtp", "dkp", "predsim", "brsf", "kp", *moving)
    assert (f"- `{name}`:" in differences) == (name in differing)


@pytest.mark.parametrize("name", list(LINES))
def test_what_the_table_says_of_stacks_is_what_the_code_does(name: str) -> None:
    rule, _, _, stacked = LINES[name]
    config = RunConfig(model=ResidualMLP(d=64, L=4), rule=rule, task=Parity(), epochs=1)
    assert stacked == ("yes" if stackable(config) else "no")


@pytest.mark.parametrize("name", list(LINES))
def test_what_the_table_says_of_shapes_is_what_the_code_does(name: str) -> None:
    rule, _, shapes, _ = LINES[name]
    net = ConvNet(channels=(4, 6), d=8).build(
        Signature(shape=(1, 4, 4), outputs=2, classifies=True), torch.Generator().manual_seed(0)
    )
    try:
        CreditAssignment(net, rule, sample=torch.randn(4, 1, 4, 4))
    except SondeError:
        assert shapes == "no"
    else:
        assert shapes == "yes"


@pytest.mark.parametrize("name", [name for name, line in LINES.items() if line[1] != "–"])
def test_the_arithmetic_of_the_table_is_what_is_counted(name: str) -> None:
    rule, arithmetic, _, _ = LINES[name]
    assert f"{ratio(rule):.2f}" == f"{float(arithmetic):.2f}"


def ratio(rule: Rule) -> float:
    torch.manual_seed(0)
    signature = Signature(shape=(3, 32, 32), outputs=10, classifies=True)
    net = ResidualMLP(d=256, L=4).build(signature, torch.Generator().manual_seed(0))
    x = torch.randn(128, 3, 32, 32)
    return flops(net, rule, x) / flops(net, RULES["bp"](), x)


@pytest.fixture(scope="module")
def writer() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "write_rules.py"))


@pytest.fixture(scope="module")
def stores(writer: dict[str, Any]) -> list[Runs]:
    return [load(store) for store in writer["STORES"]]


@pytest.fixture
def times(writer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(writer["TIMES"].read_text())
    return found


def test_the_page_is_the_one_of_the_stored_runs_and_times(
    writer: dict[str, Any], stores: list[Runs], times: dict[str, Any]
) -> None:
    message = "python docs/write_rules.py writes it anew"
    assert (ROOT / "docs" / "rules.md").read_text() == writer["page"](stores, times), message


def test_an_edited_time_changes_the_page(writer: dict[str, Any], stores: list[Runs], times: dict[str, Any]) -> None:
    before = writer["page"](stores, times)
    for row in times["rows"]:
        row["ratio"] = 9.87
    after = writer["page"](stores, times)
    assert "9.87" not in before
    assert after.count("| 9.87\\* |") == sum(row["bar"] is not None for row in times["rows"])


def test_an_edited_row_of_a_run_changes_the_page(
    writer: dict[str, Any], stores: list[Runs], times: dict[str, Any]
) -> None:
    accurate = pl.col("metric") == "test_acc"
    worse = [
        Runs(runs.rows.with_columns(value=pl.when(accurate).then(0.1234).otherwise("value")), runs.runs)
        for runs in stores[:1]
    ]
    changed = writer["page"]([*worse, *stores[1:]], times)
    assert changed.count("12.3 %") > (ROOT / "docs" / "rules.md").read_text().count("12.3 %")


def test_a_run_that_is_not_there_is_asked_for_by_its_name(writer: dict[str, Any], times: dict[str, Any]) -> None:
    with pytest.raises(LookupError, match="train it"):
        writer["page"]([], times)


def test_the_store_of_the_page_is_whole_and_without_weights(writer: dict[str, Any]) -> None:
    store = writer["STORES"][0]
    assert not verify(store).wrong
    assert {path.suffix for path in store.rglob("*") if path.is_file()} == {".json", ".parquet"}
