"""How long short commands take against an idle interpreter, which is their limit.  Wall time: new processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from sonde_bench.measure import Options, Row, Variant, measure

GOAL = 0.3  # seconds, on an idle machine


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Seconds of `--help`, `list` and `explain`; the last two once before, to fill the cache of names."""

    rounds: int

    @property
    def about(self) -> str:
        return f"sonde --help, list, explain ÷ python -c pass, wall time; at most {GOAL:.1f} s on an idle machine"

    def __call__(self, options: Options) -> Iterator[Row]:
        commands = ("--help", "list", "explain bp")
        arguments = {words: ("-m", "sonde", *words.split()) for words in commands} | {"nothing": ("-c", "pass")}
        variants = {name: Variant(partial(_python, *given)) for name, given in arguments.items()}
        rounds = options.rounds(self.rounds)
        times = measure(variants, rounds, clock=time.perf_counter, on_round=options.on_round)
        for words in commands:
            yield times.row(
                f"sonde {words} ÷ python -c pass, all of it", words, "nothing", limit=times.median("nothing")
            )


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
