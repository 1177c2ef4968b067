"""What looking costs: process time on one thread, on random images of CIFAR-10's shape.

A run of the full audit, by test set and probe; the default probes of every epoch against an epoch of training, rule by
rule; and the whole set with its 32 directions.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sonde.config import Probing, RunConfig, probe_of, whole_tree
from sonde.core.generators import generator
from sonde.metrics.probes import DRAWS, FEW_DRAWS, PROBES, Context, epochs_of, take
from sonde.models import ResidualMLP
from sonde.network import Signature, units
from sonde.network.losses import CROSS_ENTROPY
from sonde.rules import RULES
from sonde.store.datasets import SIDE
from sonde.store.datasets.decoded import PAD, Images
from sonde.studies import STUDIES
from sonde.studies.study import settings, swept
from sonde.tasks.images import Cifar10, Cifar10Data
from sonde.training.credit_assignment import CreditAssignment, OperationCounter
from sonde.training.program import Program

IMAGES = Signature(shape=(3, 32, 32), outputs=10, classifies=True)
STEPS_AN_EPOCH, BATCH = 391, 128
LOOKING = Path(__file__).parent / "looking.json"
AUDITED = ("bp", "fa", "dfa", "state_bridge", "credit_bridge", "frozen")


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


class FullRun:
    """A run of the full audit on random pixels: the steps of an epoch, the test set, and every look it takes."""

    def __init__(self, config: RunConfig) -> None:
        draw = np.random.default_rng(0)
        padded = SIDE + 2 * PAD
        images = Images(
            train_NCHW=draw.integers(256, size=(50_000, 3, padded, padded), dtype=np.uint8),
            train_label_N=draw.integers(10, size=50_000, dtype=np.uint8),
            test_NCHW=draw.integers(256, size=(10_000, 3, SIDE, SIDE), dtype=np.uint8),
            test_label_N=draw.integers(10, size=10_000, dtype=np.uint8),
            form="random",
            fingerprint="",
        )
        self.config, device = config, torch.device("cpu")
        self.program = Program(config, Cifar10Data(images, Cifar10(), device, torch.float32), device)

    def train(self, steps: int) -> None:
        program = self.program
        batches = program.data.batches(self.config.batch_size, program.order)
        with program.draws:
            for x, y in itertools.islice(batches, steps):
                program.backward(x, y)
                program.optimiser.step(self.config.optimiser.lr)

    def due(self, epoch: int) -> list[str]:
        """The probes that measure after this epoch."""
        return self.config.probes.due(epoch, self.config.epochs)

    def look(self, epoch: int) -> dict[str, float]:
        """Seconds of every probe that is due after an epoch, and of the snapshot they share."""
        spent: dict[str, float] = {}
        with self.program.draws:
            begin = time.process_time()
            snapshot = self.program.snapshot(epoch)
            spent["snapshot"] = time.process_time() - begin
            for name in self.due(epoch):
                spent[name] = seconds(lambda name=name: list(probe_of(name)(snapshot)), 1)  # type: ignore[misc]
        return spent


def product_rates() -> dict[torch.dtype, float]:
    """Multiplications and additions a second of the faster library, in each type."""
    rates = {}
    for dtype in (torch.float32, torch.float64):
        x, w = (torch.randn(rows, 256, dtype=dtype) for rows in (1024, 256))

        def product(x: torch.Tensor = x, w: torch.Tensor = w) -> None:
            with torch.no_grad(), units.ProductsByOneDNN():
                torch.nn.functional.linear(x, w)

        rates[dtype] = 2 * len(x) * w.numel() / seconds(product, 50)
    return rates


def least_seconds(run: FullRun, epoch: int) -> dict[str, float]:
    """Of every part of a look, the time of its matrix products alone, at the rate of the faster library."""
    rates, found = product_rates(), dict[str, float]()
    whole, units.has_onednn = units.has_onednn, lambda: False  # type: ignore[assignment]
    try:
        with run.program.draws:
            snapshot = run.program.snapshot(epoch)
            parts: dict[str, Callable[[], object]] = {
                name: partial(lambda probe: list(probe(snapshot)), probe_of(name)) for name in run.due(epoch)
            }
            parts |= {"test set": run.program.evaluate, "snapshot": partial(run.program.snapshot, epoch)}
            for name, part in parts.items():
                counter: Any = OperationCounter()  # type: ignore[no-untyped-call]
                with counter:
                    part()
                single = name in ("test set", "grad_norm")
                found[name] = counter.total / rates[torch.float32 if single else torch.float64]
    finally:
        units.has_onednn = whole
    return found


def looking(rule: str, rounds: int, words: Sequence[str]) -> dict[str, dict[str, float]]:
    """The share of a run that goes into looking, by what is looked at; of each the least of several rounds.

    Beside it the limit: the share if every part took no longer than its matrix products.
    """
    audited = next(config for config in STUDIES["audit"].configs("full", [42]) if config.rule == RULES[rule]())
    (config,) = swept([whole_tree(audited)], settings(words))
    run, epochs, probing = FullRun(config), config.epochs, config.probes
    costly = epochs_of(probing.costly_schedule, probing.costly_k, epochs)
    cheap = epochs_of(probing.schedule, probing.k, epochs) - costly
    tests = sum(probing.tests(epoch, epochs) for epoch in range(epochs + 1))
    times, least = {"test set": tests}, dict[str, float]()
    run.train(20)
    for _ in range(rounds):
        spent = {"20 steps": seconds(lambda: run.train(20), 1), "test set": seconds(run.program.evaluate, 1)}
        for when, looks in (("cheap", cheap), ("costly", costly)):
            found = {f"{name}, {when}": each for name, each in run.look(max(looks)).items()}
            spent, times = spent | found, times | dict.fromkeys(found, len(looks))
        least = {name: min(each, least.get(name, each)) for name, each in spent.items()}
    epoch = least.pop("20 steps") / 20 * run.program.steps_per_epoch
    whole = epochs * epoch + sum(each * times[name] for name, each in least.items())
    limits = least_seconds(run, epochs)
    limit = {name: min(each, limits[name.partition(",")[0]]) for name, each in least.items()}
    shortest = epochs * epoch + sum(each * times[name] for name, each in limit.items())
    print(f"{rule}, residual_mlp d=256 L=4, {epochs} epochs of {epoch:.2f} s: what looking costs")
    print(f"{'':<34}{'seconds':>9}{'limit':>9}{'times':>7}{'of the run':>12}{'limit':>9}")
    shares = {name: each * times[name] / whole for name, each in least.items()}
    limit_shares = {name: each * times[name] / shortest for name, each in limit.items()}
    for name, share in shares.items():
        if share > 1e-3:
            row = f"{name:<34}{least[name]:>9.3f}{limit[name]:>9.3f}{times[name]:>7}"
            print(f"{row}{share:>12.2%}{limit_shares[name]:>9.2%}")
    shares["all of it"], limit_shares["all of it"] = 1 - epochs * epoch / whole, 1 - epochs * epoch / shortest
    print(f"{'all of it':<59}{shares['all of it']:>12.2%}{limit_shares['all of it']:>9.2%}")
    return {"shares": shares, "limits": limit_shares}


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--looking", action="store_true", help="what a run of the full audit spends, and no more")
    parser.add_argument("--rule", default="bp", choices=AUDITED, help="of that run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of that run, as in `sonde run`"
    )
    parser.add_argument(
        "--save", action="store_true", help=f"measure it as it comes and as --set has it, into {LOOKING.name}"
    )
    parser.add_argument("--quick", action="store_true", help="leave out the largest network")
    chosen = parser.parse_args()
    rounds = 1 if chosen.quick else 5
    if chosen.save:
        schedules: tuple[list[str], ...] = ([], chosen.set)
        found = [{"set": words, **looking(chosen.rule, rounds, words)} for words in schedules]
        LOOKING.write_text(json.dumps(found, indent=1) + "\n")
        return
    looking(chosen.rule, rounds, chosen.set)
    if not chosen.looking:
        snapshots(chosen.quick)


def snapshots(quick: bool) -> None:
    """Rule by rule, and the whole set."""
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
    sizes = [(256, 4, 8)] if quick else [(256, 4, 8), (512, 12, 150)]
    for d, L, budget in sizes:
        bench = Bench("dfa", d, L, 1024)
        bench.train(10)
        spent = seconds(lambda bench=bench: bench.probe(everything), 1)  # type: ignore[misc]
        print(f"{'dfa':<15}{d:>5}{L:>4}{1024:>9}  {'all':<22}{spent:>9.3f}  {budget} s")


if __name__ == "__main__":
    main()
