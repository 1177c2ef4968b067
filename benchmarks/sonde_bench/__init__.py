"""Sonde against loops written without it: `sonde bench`."""

from collections.abc import Iterator
from typing import Protocol

from sonde.models import PlainMLP, ResidualMLP
from sonde.rules import CreditBridge, StateBridge
from sonde_bench.cifar10 import Jobs, WholeEpoch
from sonde_bench.measure import Options, Row
from sonde_bench.stacking import Stacked, Stacking
from sonde_bench.startup import StartUp
from sonde_bench.steps import Steps

IMAGE = (3, 32, 32)


class Bench(Protocol):
    """Some rows measured together."""

    @property
    def about(self) -> str: ...
    def __call__(self, options: Options) -> Iterator[Row]: ...


BENCHES: dict[str, Bench] = {
    "residual_256": Steps(
        label="residual_mlp d=256 L=4",
        model=ResidualMLP(d=256, L=4),
        shape=IMAGE,
        bars={"bp": 0.97},
        peers=True,
        steps=4,
        rounds=100,
    ),
    "residual_512": Steps(
        label="residual_mlp d=512 L=12",
        model=ResidualMLP(d=512, L=12),
        shape=IMAGE,
        bars={"bp": 0.97},
        peers=True,
        products_bar=1.25,
        steps=2,
        rounds=50,
    ),
    "rules_256": Steps(
        label="residual_mlp d=256 L=4, among rules",
        model=ResidualMLP(d=256, L=4),
        shape=IMAGE,
        bars={
            "bp": 0.97,
            **dict.fromkeys(("usf", "frsf", "brsf", "kp", "mirror"), 1.10),
            **dict.fromkeys(("dfa", "drtp"), 1.03),
            "dkp": 1.15,
            **dict.fromkeys(("fdfa", "forward_gradient"), 1.8),
            "predsim": 1.6,
            "ddtp": 1.6,
            "pc": 3.2,
            "ep": 5.6,
            "dualprop": 1.3,
            "pepita": 1.6,
            "ff": 7.0,
            "state_bridge, hidden_layers=1, every=4": 1.5,
        },
        rules={"state_bridge, hidden_layers=1, every=4": StateBridge(hidden_layers=1, every=4)},
        steps=4,
        rounds=50,
    ),
    "bridges_256": Steps(
        label="residual_mlp d=256 L=4, bridges",
        model=ResidualMLP(d=256, L=4),
        shape=IMAGE,
        bars={"bp": 0.97, "state_bridge": 1.4, "credit_bridge": 2.0},
        rules={"credit_bridge": CreditBridge(warmup=0.0)},  # the step after the warm-up
        steps=4,
        rounds=50,
    ),
    # An embedding without and L layers with ReLU: four and eight hidden layers.
    "mlp_512": Steps(
        label="784-512×4-10",
        model=PlainMLP(d=512, L=3),
        shape=(784,),
        bars={"dfa": 0.80, "fa": 1.05},
        steps=4,
        rounds=100,
    ),
    "mlp_1024": Steps(
        label="784-1024×8-10",
        model=PlainMLP(d=1024, L=7),
        shape=(784,),
        bars={"dfa": 0.76, "fa": 1.05},
        steps=2,
        rounds=50,
    ),
    "epoch": WholeEpoch(bar=1.20, rounds=8),
    "stacked": Stacked(seeds=8, bar=0.26, jax_bar=1.0, rounds=30),
    "stacked_one": Stacked(seeds=1, bar=0.60, rounds=60),
    "stacking": Stacking(widths=(32, 64, 128, 256), runs=(2, 8), rounds=20),
    "jobs": Jobs(bar=0.60, rounds=8),
    "startup": StartUp(rounds=20),
}

__all__ = ["BENCHES", "Bench", "Options", "Row"]
