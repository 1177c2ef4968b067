"""`sonde run`, `sonde train` and `sonde bench`: train a study, a network or combinations of values, or a benchmark.

The benchmark is `benchmarks/sonde_bench` of a checkout; it is in no wheel.
"""

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sonde.cli import options
from sonde.cli.names import print_studies
from sonde.cli.report import draw_figures, folder_of
from sonde.cli.store import print_runs, runs_as_json
from sonde.core.errors import SondeError, pick, print_notice, unicode
from sonde.core.formatting import Thresholds
from sonde.store import files

if TYPE_CHECKING:
    from sonde.analysis.conclusions import Conclusion
    from sonde.store.files import Place
    from sonde.studies import StudyFinding
    from sonde_bench import Row


def run_command(
    study: options.StudyName = None,
    scale: options.Scale = "quick",
    seeds: options.Seeds = None,
    set: options.Set = None,
    only: options.Only = None,
    jobs: options.Jobs = None,
    runs: options.RunsFolder = Path("runs"),
    out: options.OutFolder = Path("out"),
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    cpus_per_run: options.CpusPerRun = None,
    gpus_per_run: options.GpusPerRun = None,
    figures: Annotated[bool, typer.Option(help="Draw the study's figures at the end.")] = True,
    layout: options.FigureLayout = "study",
    details: options.Details = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train the runs of a study, measure every layer, draw the figures and print the conclusion.

    Without a study, the studies are listed. Runs that are already in the store are not trained again. An interrupted
    command resumes where it stopped.

    Example: [bold]sonde run residual --seeds 42,123,456[/bold]
    """
    if study is None:
        _list_studies()
    pick(dict.fromkeys(options.names_of("study"), study), study, "study")
    silent = quiet or json
    if not silent:
        _announce(study, scale, changed=bool(set), whole=not only)

    from sonde.engine import warm_up

    if engine == "local":
        warm_up()

    from sonde.cli.execute import execute, exit_code
    from sonde.cli.terminal import print_conclusion, print_json
    from sonde.store.load import load
    from sonde.studies import STUDIES
    from sonde.studies.study import NoRuns, gather

    selection = options.Selection(study, scale, options.seeds_of(seeds), set or (), only or ())
    groups = selection.configurations()
    additional = [] if set or only else selection.additional()
    configs = {config.id: config for group in (*groups.values(), additional) for config in group}
    files.make_folder(out)
    outcomes = execute(
        list(configs.values()),
        runs=runs,
        data_root=data_root,
        device=device,
        quiet=silent,
        engine=engine,
        study=study,
        jobs=jobs,
        address=address,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
    )
    stored = load(runs)
    findings: dict[str, list[StudyFinding]] = {}
    files_drawn: list[Path] = []
    not_drawn: dict[str, str] = {}
    for label, group in groups.items():
        try:
            gathered = gather(stored, group, unicode(str(runs)), beside=additional)
        except NoRuns as nothing:
            print_notice(str(nothing))
            continue
        findings[label] = STUDIES[study].findings(gathered)
        if figures:
            folder = out / folder_of(label)
            drawn = draw_figures(
                gathered.evidence, folder, study=study, layout=layout, quiet=silent, show_folder=details
            )
            files_drawn += drawn.files
            not_drawn |= {f"{name} {label}".strip(): why for name, why in drawn.skipped.items()}
        if details and not silent:
            _print_findings(label, findings[label])
    if findings and not silent:
        print_conclusion(_conclusion(study, findings, runs, files_drawn))
    if json:
        of = [(finding, {"of": label} if label else {}) for label, known in findings.items() for finding in known]
        print_json(
            {
                "runs": [vars(outcome) for outcome in outcomes],
                "findings": [vars(finding) | more for finding, more in of],
                "figures": [str(file) for file in files_drawn],
                "not_drawn": not_drawn,
            }
        )
    raise typer.Exit(exit_code(outcomes))


QUICK_TASKS = {"snapshots": "digits", "audit": "digits", "cifar10": "digits", "rules": "parity"}
QUICK_TASKS |= dict.fromkeys(("credit_at", "penalty", "trained_blocks", "depth"), "parity")
QUICK_TASKS["random_targets"] = "digits, random labels"
"""The task that a study of CIFAR-10 has at quick scale; studies on digits have parity as well.  It is stated here
because importing the studies takes seconds, and the command says it first."""


def _announce(study: str, scale: str, *, changed: bool, whole: bool) -> None:
    """Print a line before the slow imports: the study, and its task where quick scale replaces CIFAR-10."""
    other = QUICK_TASKS.get(study) if scale == "quick" and not changed else None
    other = "digits and parity" if other == "digits" and whole else other
    on = f", on {other} in place of CIFAR-10 (--scale full trains on CIFAR-10)" if other else ""
    if on or sys.stderr.isatty():
        print_notice(f"{study}, {scale} scale{on}")


def _list_studies() -> NoReturn:

    print_studies()
    raise SondeError("name a study, for example `sonde run residual`, which takes about a minute")


def _conclusion(
    study: str, findings: "Mapping[str, list[StudyFinding]]", runs: "Place", drawn: "Sequence[Path]"
) -> "Conclusion":
    """The conclusion of a study; of several groups of --set, a row for each."""
    from sonde.analysis.conclusions import Conclusion
    from sonde.studies import STUDIES

    found = {label: STUDIES[study].conclusion(of_group) for label, of_group in findings.items()}
    folders = " and ".join(sorted({str(file.parent) for file in drawn}))
    then = f"`sonde report --runs {runs}`; {f'figures in {folders}; ' if drawn else ''}--details."
    if len(found) == 1:
        return replace(*found.values(), next=then)
    rows = [[label, one.answer] for label, one in found.items()]
    answer = f"{study}: {len(found)} settings, never averaged together."
    return Conclusion(answer=answer, columns={"setting": "left", "answer": "left"}, rows=rows, next=then)


def _print_findings(label: str, findings: "list[StudyFinding]") -> None:
    from sonde.cli.terminal import print_table, print_text

    tabled = [finding.shown for finding in findings if finding.shown]
    texts = ("network", "variant", "rule")
    columns = {heading: "left" if heading in texts else "right" for heading in tabled[0]}
    print_text()
    print_table(f"Findings{label and f': {label}'}", columns, [list(shown.values()) for shown in tabled])
    print_text()
    if any(re.search(r"\bD[1-4]\b", cell) for shown in tabled for cell in shown.values()):
        for question, asked in Thresholds().words.items():
            print_text(f"{question}: {asked}", dim=True)
        print_text()
    for finding in findings:
        print_text(f"• {finding.sentence}")
        print_text(f"  {_source(finding)}", dim=True, wrap=False)


def _source(finding: "StudyFinding") -> str:
    """The seeds and runs behind a finding; there are more runs than seeds where it compares rules or networks."""
    seeds = ["not recorded" if seed is None else str(seed) for seed in finding.seeds]
    seeded = f"seed{'s' * (len(seeds) != 1)} {', '.join(seeds)}"
    more = f", {len(finding.runs)} runs" if len(finding.runs) > len(seeds) else ""
    return f"n = {len(seeds)} ({seeded}){more}; {', '.join(finding.runs)}"


def _part(kind: str, called: str, own: str) -> Any:
    words = f"The {called}: `sonde list {kind}s`, or your own: {own}."
    return typer.Option(help=words, autocompletion=options.complete(kind))


def train_command(
    model: Annotated[str, _part("model", "network", "file.py:make")] = "residual_mlp",
    task: Annotated[str, _part("task", "task", "file.py:Mine, data.npz")] = "digits",
    rule: Annotated[str, _part("rule", "learning rule", "file.py:Mine")] = "bp",
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The seed of all random numbers of the run (default: 42).")
    ] = None,
    seeds: options.Seeds = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Number of passes over the training samples.")] = 10,
    set: options.Set = None,
    jobs: options.Jobs = None,
    runs: options.RunsFolder = Path("runs"),
    data_root: options.DataRoot = None,
    device: options.Device = "auto",
    engine: options.EngineName = "local",
    address: options.Address = None,
    cpus_per_run: options.CpusPerRun = None,
    gpus_per_run: options.GpusPerRun = None,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train a network on a task with a rule and store the run; several seeds or values train every combination.

    Example: [bold]sonde train --set rule=bp,dfa --task digits --seeds 1,2,3[/bold]

    With your own rule and an added probe:
    [bold]sonde train --rule mine.py:Mine --set model.d=32,64 --set probes.names+=rho[/bold]

    A network, rule, task or probe of your own is one file; docs/own.md has one of each.
    """
    if sys.stderr.isatty() and not (quiet or json):
        print_notice(f"{model}, {rule}, on {task}")

    from sonde.engine import warm_up

    if engine == "local":
        warm_up()

    from sonde.cli.execute import execute, exit_code
    from sonde.cli.terminal import print_json
    from sonde.config import complete_and_load_plugins
    from sonde.store.load import load_some
    from sonde.studies.study import settings, swept

    if seed is not None and seeds is not None:
        raise SondeError("--seed and --seeds: give one of them")
    start = complete_and_load_plugins({"model": model, "task": task, "rule": rule, "epochs": epochs})
    chosen = options.seeds_of(seeds) or [42 if seed is None else seed]
    configs = swept([start | {"seed": one} for one in chosen], settings(set or []))
    outcomes = execute(
        configs,
        runs=runs,
        data_root=data_root,
        device=device,
        quiet=quiet or json,
        engine=engine,
        jobs=jobs,
        address=address,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
    )
    stored = load_some(runs, [config.id for config in configs])
    if json:
        described = runs_as_json(stored)
        print_json(described if len(configs) > 1 else described[0])
    elif not quiet:
        print_runs(stored, f"stored in {runs / configs[0].id if len(configs) == 1 else runs}")
    raise typer.Exit(exit_code(outcomes))


# ── benchmark ───────────────────────────────────────────────────────────────────────────────────────
def bench_command(
    names: Annotated[list[str] | None, typer.Argument(help="Run only these: `--list` names them.")] = None,
    list_names: Annotated[bool, typer.Option("--list", help="List the benchmarks without running them.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Run a tenth of the rounds: seconds, rough numbers.")] = False,
    data_root: options.DataRoot = None,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Write results.json and results.md there.")] = None,
    json: options.Json = False,
) -> None:
    """Time Sonde against bare PyTorch loops, JAX, torch.compile, BioTorch and the limit of the arithmetic.

    The variants of a ratio are interleaved in one process, and measured in process time on one thread.

    Example: [bold]sonde bench --quick[/bold]
    """
    import_benchmark()

    from sonde.cli.terminal import print_json, print_table, progress_bar
    from sonde.training.session import one_thread
    from sonde_bench import BENCHES, Options
    from sonde_bench import table as results
    from sonde_bench.loops import NO_BIOTORCH, has_biotorch

    chosen = {name: pick(BENCHES, name, "benchmark") for name in names or BENCHES}
    if list_names:
        named = [{"name": name, "about": entry.about} for name, entry in chosen.items()]
        if json:
            print_json(named)
        else:
            print_table("benchmarks", {"name": "left", "about": "left"}, [list(one.values()) for one in named], "about")
        return
    if not has_biotorch():
        print_notice(NO_BIOTORCH)
    if save is not None:
        files.make_folder(save)
    rows: list[Row] = []
    with one_thread():
        about = results.machine()
        for number, (name, entry) in enumerate(chosen.items(), start=1):
            print(f"[{number}/{len(chosen)}] {name}: {entry.about}", file=sys.stderr)
            with progress_bar(name, quiet=False) as on_round:
                rows += entry(Options(quick=quick, data_root=data_root, on_round=on_round))
        saved = [] if save is None else results.save(save, rows, about)
    if json:
        print_json([row.to_json() for row in rows])
    else:
        _print_benchmark(rows)
    for file in saved:
        print(file, file=sys.stderr)


def import_benchmark() -> None:
    """Import `sonde_bench` from the checkout that this package is run from, else from the current folder.

    It is imported by its file: the folder has programs with common names, which must not be on the path.
    """
    for checkout in (Path(__file__).parents[3], Path.cwd()):
        file = checkout / "benchmarks" / "sonde_bench" / "__init__.py"
        spec = importlib.util.spec_from_file_location("sonde_bench", file)
        if file.is_file() and spec is not None and spec.loader is not None:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return
    raise SondeError(
        "the benchmark is in a checkout of Sonde, not in an installed package: run `make bench` in a checkout"
    )


def _print_benchmark(rows: "list[Row]") -> None:
    from sonde.cli.terminal import print_table, print_text
    from sonde_bench import table as results

    print_table("Benchmark", results.COLUMNS, results.lines(rows))
    print_text()
    print_text(results.NOTE, dim=True)
    for line in results.profiles(rows):
        print_text(line, wrap=False)
