"""A training step through Sonde against the same step in a bare loop, on batches that lie ready."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from sonde.models import Model
from sonde.rules import RULES
from sonde.training.program import Program
from sonde_bench.arithmetic import Products, flops
from sonde_bench.loops import (
    BATCH,
    Batches,
    Noise,
    bare_backprop,
    biotorch_loop,
    fresh,
    has_biotorch,
    program,
)
from sonde_bench.measure import Options, Row, Times, Variant, measure, operators

OUTPUTS = 10


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One network and some rules with their bars, all of them timed in the same rounds."""

    label: str
    model: Model
    shape: tuple[int, ...]
    bars: dict[str, float]  # of rule ÷ bare loop
    products_bar: float | None = None  # of backprop ÷ its matrix products
    steps: int
    rounds: int

    @property
    def about(self) -> str:
        return f"a step of {' and '.join(self.bars)} ÷ a bare loop's: {self.label}, batch {BATCH}"

    def __call__(self, options: Options) -> Iterator[Row]:
        noise = Noise(shape=self.shape, steps=self.steps, outputs=OUTPUTS)
        programs = {rule: program(self.model, RULES[rule](), noise) for rule in self.bars}
        first = next(iter(programs.values()))
        batches = list(first.data.batches(BATCH, first.order))
        products = Products(first.net, BATCH)
        variants = {
            "products": Variant(partial(products, self.steps), self.steps),
            **{name: Variant(run, self.steps) for name, run in self._loops(programs, batches).items()},
        }
        times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
        for rule, trained in programs.items():
            limit = (
                times.median("products")
                * flops(trained.net, trained.config.rule, batches[0][0])
                / products.flops
            )
            yield from self._rows(times, rule, limit, partial(operators, variants[rule].run, self.steps))

    def _loops(self, programs: dict[str, Program], batches: Batches) -> dict[str, Callable[[], object]]:
        config = next(iter(programs.values())).config
        loops: dict[str, Callable[[], object]] = {"bare": bare_backprop(fresh(config), batches)}
        for rule, trained in programs.items():
            loops[rule] = partial(trained.train_epoch, 1)
            if rule == "bp":
                loops["default"] = bare_backprop(fresh(config), batches, fused=False)
            elif has_biotorch():
                loops[f"biotorch {rule}"] = biotorch_loop(fresh(config), rule, batches, OUTPUTS)
        return loops

    def _rows(self, times: Times, rule: str, limit: float, profile: Callable[[], list[str]]) -> Iterator[Row]:
        name = f"{rule}, {self.label}"
        yield times.row(name, rule, "bare", limit=limit, bar=self.bars[rule]).explained(profile)
        if rule == "bp":
            yield times.row(f"{name} ÷ loop with PyTorch's default AdamW", rule, "default", limit=limit)
        if f"biotorch {rule}" in times.seconds:
            yield times.row(f"{name} ÷ BioTorch", rule, f"biotorch {rule}", limit=limit, biotorch_of=name)
        if rule == "bp" and self.products_bar is not None:
            row = times.row(
                f"{name} ÷ its matrix products", rule, "products", limit=limit, bar=self.products_bar
            )
            yield row.explained(profile)
