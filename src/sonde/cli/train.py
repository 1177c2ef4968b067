"""`sonde train`."""

from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import (
    Address,
    CpusPerRun,
    DataRoot,
    Device,
    Engine,
    GpusPerRun,
    Json,
    Quiet,
    RunsFolder,
    Set,
)


def train(
    model: Annotated[str, typer.Option(help="Which network: `sonde list models`.")] = "residual_mlp",
    task: Annotated[str, typer.Option(help="Which task: `sonde list tasks`.")] = "digits",
    rule: Annotated[str, typer.Option(help="Which learning rule: `sonde list rules`.")] = "bp",
    seed: Annotated[int, typer.Option(min=0, help="Every random draw of the run follows from it.")] = 42,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training samples.")] = 10,
    set: Set = None,
    runs: RunsFolder = Path("runs"),
    data_root: DataRoot = None,
    device: Device = "auto",
    engine: Engine = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train one network on one task with one rule, into the store.

    [bold]sonde train --model residual_mlp --task cifar10 --rule dfa --epochs 2 --set rule.penalty=0.01[/bold]
    """
    from sonde.engine import local

    if engine == "local":
        local.warm_up()

    from sonde.cli.execute import execute
    from sonde.cli.show import describe, print_runs
    from sonde.compare.configurations import assignments
    from sonde.config import parse
    from sonde.store.load import load_one
    from sonde.studies.narrow import with_changes

    start = parse({"model": model, "task": task, "rule": rule, "seed": seed, "epochs": epochs})
    (config,) = with_changes([start], assignments(set or [], "--set"))
    execute(
        [config],
        runs=runs,
        data_root=data_root,
        device=device,
        quiet=quiet or json,
        engine=engine,
        address=address,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
    )
    stored = load_one(runs, config.id)
    if json:
        from sonde.cli.output import print_json

        print_json(describe(stored)[0])
    elif not quiet:
        print_runs(stored, f"stored in {runs / config.id}")
