"""`sonde run`."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli import options
from sonde.core.errors import unicode

if TYPE_CHECKING:
    from sonde.studies import StudyFinding


def run(
    study: options.Study,
    scale: options.Scale = "quick",
    seeds: options.Seeds = None,
    set: options.Set = None,
    only: options.Only = None,
    jobs: options.Jobs = None,
    runs: options.RunsFolder = Path("runs"),
    out: options.OutFolder = Path("out"),
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    engine: options.Engine = "local",
    address: options.Address = None,
    cpus_per_run: options.CpusPerRun = None,
    gpus_per_run: options.GpusPerRun = None,
    figures: Annotated[bool, typer.Option(help="Draw the study's figures at the end.")] = True,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train a study's runs, measure them, draw its figures and say what was found.

    What is already in the store is not trained again; a command that was interrupted resumes where it was.
    """
    silent = quiet or json
    if not silent:
        _say_first(study, scale, changed=bool(set), whole=not only)

    from sonde.engine import local

    if engine == "local":
        local.warm_up()

    from sonde.cli.execute import execute
    from sonde.cli.figures import draw, folder_of
    from sonde.cli.terminal import print_json
    from sonde.store import files
    from sonde.store.load import load
    from sonde.studies import STUDIES
    from sonde.studies.study import NoRuns, gather

    narrowing = {"changes": set or [], "choices": only or []}
    groups = options.configurations(study, scale=scale, seeds=options.seeds_of(seeds), **narrowing)
    beside = options.beside(study, scale=scale, seeds=options.seeds_of(seeds), **narrowing)
    files.make_folder(out)
    outcomes = execute(
        options.together({**groups, "beside": beside}),
        runs=runs,
        data_root=data_root,
        device=device,
        quiet=silent,
        engine=engine,
        jobs=jobs,
        address=address,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
    )
    stored = load(runs)
    findings: dict[str, list[StudyFinding]] = {}
    files_drawn: list[Path] = []
    not_drawn: dict[str, str] = {}
    for label, wanted in groups.items():
        try:
            gathered = gather(stored, wanted, unicode(str(runs)), beside=beside)
        except NoRuns as nothing:
            print(f"sonde: {nothing}", file=sys.stderr)
            continue
        findings[label] = STUDIES[study].findings(gathered)
        if figures:
            drawn = draw(gathered.evidence, out / folder_of(label), study=study, quiet=silent)
            files_drawn += drawn.files
            not_drawn |= {f"{name} {label}".strip(): why for name, why in drawn.skipped.items()}
        if not silent:
            _print_findings(label, findings[label])
    if json:
        print_json(
            {
                "runs": [vars(outcome) for outcome in outcomes],
                "findings": [
                    vars(finding) | ({"of": label} if label else {})
                    for label, found in findings.items()
                    for finding in found
                ],
                "figures": [str(file) for file in files_drawn],
                "not_drawn": not_drawn,
            }
        )
    if any(outcome.state in ("failed", "diverged") for outcome in outcomes):
        raise typer.Exit(1)


QUICK = {"snapshots": "digits", "audit": "digits", "cifar10": "digits", "rules": "parity"}
"""What studies of CIFAR-10 train on at quick scale, those of digits on parity, too; here, because reading the studies
takes seconds."""


def _say_first(study: str, scale: str, *, changed: bool, whole: bool) -> None:
    """A line before anything is imported: to a person that it begins, to all on what where that is another task."""
    other = QUICK.get(study) if scale == "quick" and not changed else None
    other = "digits and parity" if other == "digits" and whole else other
    on = f", on {other} in place of CIFAR-10 (--scale full trains on CIFAR-10)" if other else ""
    if on or sys.stderr.isatty():
        print(f"sonde: {study}, {scale} scale{on}", file=sys.stderr, flush=True)


def _print_findings(label: str, findings: "list[StudyFinding]") -> None:
    from sonde.analysis.questions import Thresholds
    from sonde.cli.terminal import console, print_table

    to = console()
    words = ("network", "variant", "rule")
    tabled = [finding for finding in findings if finding.shown]
    columns = {heading: "left" if heading in words else "right" for heading in tabled[0].shown}
    to.print()
    title = f"Findings{label and f': {label}'}"
    print_table(title, columns, [list(finding.shown.values()) for finding in tabled])
    to.print()
    if any(re.search(r"\bD[1-4]\b", cell) for finding in tabled for cell in finding.shown.values()):
        for question, asked in Thresholds().words.items():
            to.print(f"{question}: {asked}", style="dim", soft_wrap=not to.is_terminal)
        to.print()
    for finding in findings:
        to.print(f"• {finding.sentence}", soft_wrap=not to.is_terminal)
        to.print(f"  {_source(finding)}", style="dim", soft_wrap=True)


def _source(finding: "StudyFinding") -> str:
    """How many seeds it stands on, and its runs: as many, or more where it compares rules or networks."""
    seeds = ["not recorded" if seed is None else str(seed) for seed in finding.seeds]
    seeded = f"seed{'s' * (len(seeds) != 1)} {', '.join(seeds)}"
    more = f", {len(finding.runs)} runs" if len(finding.runs) > len(seeds) else ""
    return f"n = {len(seeds)} ({seeded}){more}; {', '.join(finding.runs)}"
