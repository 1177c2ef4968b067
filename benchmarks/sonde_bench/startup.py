"""How long a command takes to begin: `sonde --help` against an idle interpreter.  Wall time: new processes."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from sonde_bench.measure import Options, Row, Variant, measure

GOAL = 0.4  # seconds, on an idle machine


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Seconds until the help is printed."""

    rounds: int

    @property
    def about(self) -> str:
        return f"sonde --help ÷ python -c pass, wall time; at most {GOAL:.1f} s on an idle machine"

    def __call__(self, options: Options) -> Iterator[Row]:
        arguments = {"help": ("-m", "sonde", "--help"), "nothing": ("-c", "pass")}
        variants = {name: Variant(partial(_python, *given)) for name, given in arguments.items()}
        rounds = options.rounds(self.rounds)
        times = measure(variants, rounds, clock=time.perf_counter, on_round=options.on_round)
        yield times.row("sonde --help ÷ python -c pass, all of it", "help", "nothing")


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
