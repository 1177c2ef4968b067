"""`sonde train`: train one network, or every combination of several seeds and values."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli import options
from sonde.core.errors import SondeError


def train_command(
    model: Annotated[
        str, typer.Option(help="The network: `sonde list models`, or your own: file.py:make.")
    ] = "residual_mlp",
    task: Annotated[
        str, typer.Option(help="The task: `sonde list tasks`, or your own: file.py:Mine, data.npz.")
    ] = "digits",
    rule: Annotated[str, typer.Option(help="The learning rule: `sonde list rules`, or your own: file.py:Mine.")] = "bp",
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of every random draw of the run (default: 42).")
    ] = None,
    seeds: options.Seeds = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training samples.")] = 10,
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
    """Train a network on a task with a rule, and store it; with several seeds or values, every combination.

    [bold]sonde train --model residual_mlp --task cifar10 --rule dfa --epochs 2 --set rule.penalty=0.01[/bold]

    [bold]sonde train --rule mine.py:Mine --seeds 1,2,3 --set model.d=32,64 --set probes.names+=rho[/bold]

    A network, rule, task or probe of your own is one file; docs/own.md has one of each.
    """
    if sys.stderr.isatty() and not (quiet or json):
        print(f"sonde: {model}, {rule}, on {task}", file=sys.stderr, flush=True)

    from sonde.engine import local

    if engine == "local":
        local.warm_up()

    from sonde.cli.execute import execute, exit_code
    from sonde.cli.show import print_runs, runs_as_json
    from sonde.cli.terminal import print_json
    from sonde.config import complete_and_load_plugins
    from sonde.store.load import load_some
    from sonde.studies.settings import settings, swept

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
