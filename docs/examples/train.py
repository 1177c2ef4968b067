"""Train the examples that the site's pictures are drawn from, and store them in `runs` beside this file.

    python docs/examples/train.py

Faulty programs with one fault each and healthy ones to set beside them, all watched; and three rules on the digits.
A minute on one core.  Faulty programs are those that the tests diagnose; what only a picture needs is here.
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

import sonde  # noqa: E402
from faulty_programs import (  # noqa: E402
    FAULTY,
    HEALTHY,
    Program,
    checkers,
    layers,
    of_classes,
)
from sonde.store.folder import put_manifest, read_manifest  # noqa: E402
from sonde.store.listing import publish  # noqa: E402
from sonde.store.run import without_machine  # noqa: E402

STORE = HERE / "runs"
DIGITS = ("bp", "drtp", "frozen")
SEEDS = (1, 2, 3)
EPOCHS = 5


class Attending(nn.Module):
    """One head of attention; `sharpness` 1 is as it should be."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness
        self.embed, self.q, self.k = nn.Embedding(10, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        q, k = self.sharpness * self.q(h), self.sharpness * self.k(h)
        out: Tensor = self.head(functional.scaled_dot_product_attention(q, k, h))[:, 0]
        return out


def attending(sharpness: float = 1.0) -> Program:
    x = torch.rand(800, 10).argsort(1)[:, :6]  # six different tokens
    model = Attending(sharpness)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    return Program(model, functional.cross_entropy, optimiser, x, x[:, 0])


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = layers(8, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def on_checkers(model: nn.Module) -> Program:
    x, y = checkers()
    return Program(model, functional.cross_entropy, torch.optim.Adam(model.parameters(), 1e-2), x, y)


def rank_collapse() -> Program:
    program = of_classes(layers(10, 32, 32, 5, act=nn.Sigmoid))
    program.optimiser = torch.optim.AdamW(program.model.parameters(), 1e-2, weight_decay=30.0)
    return program


def he(*sizes: int) -> nn.Sequential:
    """Weights that keep the size of the signal."""
    made = layers(*sizes)
    for layer in made[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return made


BAD: dict[str, Callable[[], Program]] = FAULTY | {
    "attention_collapse": lambda: attending(20.0),
    "rank_collapse": rank_collapse,
}
GOOD: dict[str, Callable[[], Program]] = {name: HEALTHY[name] for name in ("plain", "regression")} | {
    "normalised residual": HEALTHY["normalised_residual"],
    "checkers": lambda: on_checkers(layers(2, 16, 16, 2)),
    "open branches": lambda: on_checkers(nn.Sequential(nn.Linear(2, 8), Branch(), Branch(), nn.Linear(8, 2))),
    "in train mode": lambda: of_classes(
        nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))
    ),
    "tanh": lambda: of_classes(layers(10, 32, 32, 5, act=nn.Tanh)),
    "ten layers": lambda: of_classes(he(10, *[24] * 9, 5), 1e-3),
    "attention": attending,
}


def watch(name: str, program: Callable[[], Program]) -> None:
    """Train it under a watch, with the experiments of a diagnosis, and keep nothing of the machine's owner."""
    torch.manual_seed(0)
    made = program()
    watch = made.watched(runs=STORE, name=name)
    found = watch.diagnose(batch=made.batches()[0])
    watch.close()
    folder = STORE / watch.id
    put_manifest(folder, without_machine(read_manifest(folder)))
    said = ", ".join(f"{one.name} ({one.level})" for one in found) or "nothing is wrong"
    print(f"{name}: {said}", flush=True)


def train() -> None:
    """The three rules, without their weights."""
    aside = STORE / "aside"
    ids = []
    for rule in DIGITS:
        for seed in SEEDS:
            config = sonde.RunConfig(
                model=sonde.models.ResidualMLP(d=64),
                rule=sonde.rules.RULES[rule](),
                task=sonde.tasks.Digits(),
                epochs=EPOCHS,
                seed=seed,
            )
            sonde.train(config, runs=aside, progress=False)
            ids.append(config.id)
    publish(aside, STORE, ids)
    shutil.rmtree(aside)


if __name__ == "__main__":
    torch.set_num_threads(1)
    shutil.rmtree(STORE, ignore_errors=True)
    for name, program in {**GOOD, **BAD}.items():
        watch(name, program)
    train()
