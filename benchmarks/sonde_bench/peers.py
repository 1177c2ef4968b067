"""What somebody would take instead and wait for: JAX and `torch.compile`, as variants of a measurement."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from sonde_bench.jax_loops import NO_JAX, has_jax
from sonde_bench.loops import NO_COMPILER, NOT_QUICK, has_compiler
from sonde_bench.measure import Options, Row, Times, Variant

JAX, COMPILED = "JAX", "torch.compile"


class Peer(Protocol):
    """An epoch at every call; the first one compiles."""

    @property
    def seconds_to_compile(self) -> float | None: ...
    def __call__(self) -> object: ...


def why_not(options: Options) -> dict[str, str | None]:
    """What keeps each peer out, if anything does."""
    return {
        JAX: None if has_jax() else NO_JAX,
        COMPILED: NO_COMPILER if not has_compiler() else NOT_QUICK if options.quick else None,
    }


class Peers:
    """Those of the peers that can run here."""

    def __init__(self, makers: Mapping[str, Callable[[], Peer]], options: Options, steps: int) -> None:
        self._absent = why_not(options)
        self._there = {name: make() for name, make in makers.items() if self._absent[name] is None}
        self.variants = {name: Variant(peer, steps) for name, peer in self._there.items()}

    def rows(self, times: Times, row: Row, ours: str, bars: Mapping[str, float]) -> Iterator[Row]:
        """Ours against each, beside our row against the bare loop."""
        for name, reason in self._absent.items():
            called, bar = f"{row.name} ÷ {name}", bars.get(name)
            if reason is not None:
                yield Row(name=called, bar=bar, skipped=reason)
            else:
                seconds = self._there[name].seconds_to_compile
                yield times.row(called, ours, name, limit=row.limit, bar=bar, compiling=seconds)
