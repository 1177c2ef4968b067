"""Engines: given configurations, bring every run to its end and report each outcome.

Which there are, and the options of each.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sonde.core.errors import SondeError, pick
from sonde.engine import cluster, local
from sonde.engine.messages import Event, Outcome

if TYPE_CHECKING:
    from sonde.config import RunConfig
    from sonde.store.files import Place


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
