"""A training step through Sonde against the same step in a bare loop, on batches that lie ready."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sonde.config import RunConfig
from sonde.core.validated import Optimiser
from sonde.models import Model
from sonde.rules import RULES, Rule
from sonde.training.program import Program
from sonde_bench.arithmetic import Products, flops
from sonde_bench.jax_loops import JaxEpoch
from sonde_bench.loops import (
    BATCH,
    BIOTORCH_RULES,
    Batches,
    CompiledByTorch,
    Noise,
    bare_backprop,
    biotorch_loop,
    fresh,
    has_biotorch,
    program,
)
from sonde_bench.measure import Options, Row, Times, Variant, measure, operators
from sonde_bench.peers import COMPILED, JAX, Peers

OUTPUTS = 10


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One network and some rules with their bars, all of them timed in the same rounds."""

    label: str
    model: Model
    shape: tuple[int, ...]
    bars: dict[str, float]  # of rule ÷ bare loop
    rules: dict[str, Rule] = field(default_factory=dict)  # by the names in `bars`, where they are not as they come
    products_bar: float | None = None  # of backprop ÷ its matrix products
    peers: bool = False  # whether backprop is held against JAX and torch.compile, too
    steps: int
    rounds: int

    @property
    def about(self) -> str:
        others = f", {JAX}'s and {COMPILED}'s" if self.peers else ""
        return f"a step of {' and '.join(self.bars)} ÷ a bare loop's{others}: {self.label}, batch {BATCH}"

    def __call__(self, options: Options) -> Iterator[Row]:
        noise = Noise(shape=self.shape, steps=self.steps, outputs=OUTPUTS)
        chosen = {name: self.rules.get(name) or RULES[name]() for name in self.bars}
        programs = {name: program(self.model, rule, noise) for name, rule in chosen.items()}
        first = next(iter(programs.values()))
        batches = list(first.data.batches(BATCH, first.order))
        products = Products(first.net, BATCH)
        peers = self._peers(first, batches, options)
        variants = {
            "products": Variant(partial(products, self.steps), self.steps),
            **{name: Variant(run, self.steps) for name, run in self._loops(programs, batches).items()},
            **peers.variants,
        }
        times = measure(variants, options.rounds(self.rounds), on_round=options.on_round)
        for rule, trained in programs.items():
            limit = times.median("products") * flops(trained.net, trained.config.rule, batches[0][0]) / products.flops
            profile = partial(operators, variants[rule].run, self.steps)
            yield from self._rows(times, rule, limit, profile, peers)

    def _loops(self, programs: dict[str, Program], batches: Batches) -> dict[str, Callable[[], object]]:
        config = next(iter(programs.values())).config
        loops: dict[str, Callable[[], object]] = {"bare": bare_backprop(fresh(config), batches)}
        for rule, trained in programs.items():
            loops[rule] = partial(trained.train_epoch, 1)
            if rule == "bp":
                loops["default"] = bare_backprop(fresh(config), batches, fused=False)
            elif has_biotorch() and rule in BIOTORCH_RULES:
                loops[f"biotorch {rule}"] = biotorch_loop(fresh(config), rule, batches, OUTPUTS)
        return loops

    def _peers(self, program: Program, batches: Batches, options: Options) -> Peers:
        """Of backprop; the other rules have none."""
        if not self.peers:
            return Peers({}, options, self.steps)
        return Peers(
            {
                JAX: lambda: BatchesInJax(program.config, batches),
                COMPILED: lambda: CompiledByTorch(fresh(program.config), lambda net: bare_backprop(net, batches)),
            },
            options,
            self.steps,
        )

    def _rows(
        self, times: Times, rule: str, limit: float, profile: Callable[[], list[str]], peers: Peers
    ) -> Iterator[Row]:
        name = f"{rule}, {self.label}"
        row = times.row(name, rule, "bare", limit=limit, bar=self.bars[rule])
        yield row.explained(profile)
        if rule == "bp":
            if self.peers:
                yield from peers.rows(times, row, rule, {})
            yield times.row(f"{name} ÷ loop with PyTorch's default AdamW", rule, "default", limit=limit)
        if f"biotorch {rule}" in times.seconds:
            yield times.row(f"{name} ÷ BioTorch", rule, f"biotorch {rule}", limit=limit, biotorch_of=name)
        if rule == "bp" and self.products_bar is not None:
            row = times.row(f"{name} ÷ its matrix products", rule, "products", limit=limit, bar=self.products_bar)
            yield row.explained(profile)


class BatchesInJax:
    """Backprop in JAX, over all batches at every call."""

    def __init__(self, config: RunConfig, batches: Batches) -> None:
        assert isinstance(config.optimiser, Optimiser)
        x_SN, y_SN = (np.stack([part.numpy() for part in parts])[None] for parts in zip(*batches, strict=True))
        self.epoch = JaxEpoch(config.model, [fresh(config)], config.optimiser, x_SN, y_SN, classifies=True)
        self.all = np.arange(x_SN.shape[1], dtype=np.int32)[None]

    @property
    def seconds_to_compile(self) -> float | None:
        return self.epoch.seconds_to_compile

    def __call__(self) -> None:
        self.epoch(self.all)
