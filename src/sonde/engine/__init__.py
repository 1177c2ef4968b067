"""Engines: train many configurations to their end and report each outcome.

`local` starts processes of this machine, one thread each, `--jobs` at a time.  A server process imports torch once, and
workers are forked from it.  `ray` submits tasks to a Ray cluster, which starts them again when a node dies.  Both hand
out bundles: one run, or several that are trained as a stack.  No bit depends on the engine.

A ledger keeps the state of every run.  A run whose process dies is resumed, once on this machine and up to three times
on a cluster, then marked failed.  A run that fails in a bundle is tried again alone.  Each run has a log.  A stop on
request lets every run finish its epoch and save it.

The table of engines and the options of each are below.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sonde.core.errors import SondeError, pick
from sonde.engine import cluster, local
from sonde.engine.messages import Event, Outcome

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.store.place import Place


class Engine(Protocol):
    """Submit configurations, and get of each its result or its failure."""

    def __call__(
        self,
        configs: "Sequence[RunConfig]",
        *,
        runs: "Place",
        data_root: "Place | None",
        device: str,
        on_event: Callable[[Event], None],
        on_notice: Callable[[str], None],
        on_stop: Callable[[int], None],
    ) -> list[Outcome]: ...


ENGINES: dict[str, Engine] = {"local": local.run_all, "ray": cluster.run_all}
OPTIONS = {"local": ("jobs",), "ray": ("address", "cpus_per_run", "gpus_per_run")}


def choose(name: str, options: Mapping[str, Any]) -> Engine:
    """An engine with the options that were given (not None); one of another engine is refused."""
    run_all = pick(ENGINES, name, "engine")
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in OPTIONS[name]:
            other = next(other for other, known in OPTIONS.items() if option in known)
            raise SondeError(f"--{option.replace('_', '-')} is an option of --engine {other}, not of {name}")
    return partial(run_all, **given)
