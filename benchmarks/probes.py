"""What a snapshot costs: process time on one thread, on random images of CIFAR-10's shape.

The default probes of every epoch against an epoch of training, and the whole set with its 32 directions.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch

from sonde.config import Probing
from sonde.generators import generator
from sonde.losses import CROSS_ENTROPY
from sonde.models import ResidualMLP
from sonde.network import Signature
from sonde.probes import DRAWS, FEW_DRAWS, PROBES, Context, take
from sonde.rules import RULES
from sonde.training.assign import CreditAssignment

IMAGES = Signature(shape=(3, 32, 32), outputs=10, classifies=True)
STEPS_AN_EPOCH, BATCH = 391, 128


def seconds(what: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        what()
        times.append(time.process_time() - begin)
    return statistics.median(times)


class Bench:
    """A network of some size with its rule and random samples."""

    def __init__(self, rule: str, d: int, L: int, samples: int) -> None:
        rng = generator(0, "bench")
        self.x = torch.randn(max(samples, 1024), *IMAGES.shape, generator=rng)
        self.y = torch.randint(10, (len(self.x),), generator=rng)
        self.samples = samples
        self.net = ResidualMLP(d=d, L=L).build(IMAGES, generator(0, "init"))
        self.optimiser = torch.optim.AdamW(self.net.parameters(), fused=True)
        self.credit = CreditAssignment(self.net, RULES[rule](), sample=self.x, steps=1000)
        self.initial = {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def train(self, steps: int) -> None:
        for step in range(steps):
            first = step * BATCH % (len(self.x) - BATCH + 1)
            self.optimiser.zero_grad()
            self.credit.backward(self.x[first : first + BATCH], self.y[first : first + BATCH])
            self.optimiser.step()

    def probe(self, names: tuple[str, ...]) -> int:
        context = Context(
            credits=self.credit.credits,
            redrawn=self.credit.redrawn,
            draws=DRAWS if "rho" in names else FEW_DRAWS,
            initial=self.initial,
            test=lambda first, last: (self.x[first:last], self.y[first:last]),
            test_samples=len(self.x),
        )
        snapshot = take(self.net, self.x[: self.samples], self.y[: self.samples], CROSS_ENTROPY, context)
        return sum(1 for name in names for _ in PROBES[name](snapshot))


def main() -> None:
    torch.set_num_threads(1)
    probing = Probing()
    everything = (*probing.names, *probing.costly)
    print(f"{'rule':<15}{'d':>5}{'L':>4}{'samples':>9}  {'probes':<22}{'seconds':>9}  budget")
    for rule in ("bp", "fa", "dfa", "state_bridge", "credit_bridge"):
        bench = Bench(rule, 256, 4, 128)
        bench.train(10)
        epoch = seconds(lambda bench=bench: bench.train(10), 5) / 10 * STEPS_AN_EPOCH  # type: ignore[misc]
        cheap = seconds(lambda bench=bench: bench.probe(probing.names), 5)  # type: ignore[misc]
        share = f"{cheap / epoch:.2%} of an epoch of {epoch:.1f} s; 3 %"
        print(f"{rule:<15}{256:>5}{4:>4}{128:>9}  {'every epoch':<22}{cheap:>9.3f}  {share}")
        costly = seconds(lambda bench=bench: bench.probe(probing.costly), 1)  # type: ignore[misc]
        print(f"{rule:<15}{256:>5}{4:>4}{128:>9}  {'costly':<22}{costly:>9.3f}")
    sizes = [(256, 4, 8)] if "--quick" in sys.argv else [(256, 4, 8), (512, 12, 150)]
    for d, L, budget in sizes:
        bench = Bench("dfa", d, L, 1024)
        bench.train(10)
        spent = seconds(lambda bench=bench: bench.probe(everything), 1)  # type: ignore[misc]
        print(f"{'dfa':<15}{d:>5}{L:>4}{1024:>9}  {'all':<22}{spent:>9.3f}  {budget} s")


if __name__ == "__main__":
    main()
