"""SGD by name, and any class of torch.optim as a plugin: the same steps, and the same state after a resume."""

from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import tiny_config
from sonde.config import Optimiser, RunConfig, change, parse, to_tree
from sonde.core.errors import SondeError
from sonde.training.program import Program, pack, unpack
from sonde.training.train import stackable

CPU = torch.device("cpu")


class Remembering(torch.optim.Optimizer):
    """Steps along the sum of all gradients, which it keeps in float64 beside a count."""

    def __init__(self, params: Any, lr: float = 1e-3, power: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "power": power})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["sum"] = state.get("sum", torch.zeros_like(p, dtype=torch.float64)) + p.grad.double()
                p -= (group["lr"] * state["sum"] / state["count"] ** group["power"]).to(p.dtype)


OPTIMISERS: dict[str, Any] = {
    "sgd": {"name": "sgd", "lr": 0.01},
    "momentum": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    "nesterov": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True, "schedule": "constant"},
    "rmsprop": {"name": "torch.optim:RMSprop", "alpha": 0.9, "centered": True},
    "adamax": "torch.optim:Adamax",
    "own": {"name": f"{__file__}:Remembering", "power": 0.5},
}


def config_of(optimiser: Any, **changes: Any) -> RunConfig:
    tree = to_tree(tiny_config(epochs=2, **changes)) | {"optimiser": optimiser}
    return parse(tree)


def program_of(config: RunConfig) -> Program:
    return Program(config, config.task.load(config.seed, None, CPU, torch.float32), CPU)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_resumed_run_ends_bit_identical(name: str) -> None:
    config = config_of(OPTIMISERS[name])
    assert parse(to_tree(config)) == config
    whole, first, second = (program_of(config) for _ in range(3))
    for epoch in (1, 2):
        whole.train_epoch(epoch)
    first.train_epoch(1)
    second.restore(first.weights(), unpack(pack(first.state())))
    second.train_epoch(2)
    for key, value in whole.weights().items():
        assert torch.equal(value, second.weights()[key]), key
    assert pack(whole.state()) == pack(second.state())


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "rmsprop", "adamax"])
def test_the_steps_are_those_of_torch(name: str) -> None:
    config = config_of(OPTIMISERS[name])
    program, twin = program_of(config), program_of(config)
    chosen = OPTIMISERS[name] if isinstance(OPTIMISERS[name], dict) else {"name": OPTIMISERS[name]}
    options = {key: value for key, value in chosen.items() if key not in ("name", "schedule", "lr")}
    kind = torch.optim.SGD if "sgd" in chosen["name"] else getattr(torch.optim, chosen["name"].split(":")[1])
    if kind is torch.optim.SGD:
        options["weight_decay"] = 0.01
    plain = kind(twin.net.parameters(), lr=chosen.get("lr", 1e-3), **options)
    program.train_epoch(1)
    for x, y in twin.data.batches(config.batch_size, twin.order):
        plain.zero_grad()
        twin.credit.backward(x, y)
        plain.step()
    weights: dict[str, Tensor] = twin.weights()
    for key, value in program.weights().items():
        assert torch.equal(value, weights[key]), key


def test_only_what_is_known_to_be_right_is_stacked() -> None:
    wide = change(tiny_config(), {"model.d": 16, "task.d": 16})
    assert stackable(wide)
    for optimiser in OPTIMISERS.values():
        assert not stackable(parse(to_tree(wide) | {"optimiser": optimiser}))


def test_an_optimiser_is_part_of_the_id() -> None:
    ids = [config_of(optimiser).id for optimiser in (*OPTIMISERS.values(), "adamw", {"name": "adam"})]
    assert len(set(ids)) == len(ids)
    assert to_tree(config_of("torch.optim:RMSprop"))["optimiser"] == {
        "name": "RMSprop",
        "source": "torch.optim:RMSprop",
        "lr": 1e-3,
        "schedule": "cosine",
        "weight_decay": 0,
    }


@pytest.mark.parametrize(
    ("optimiser", "message"),
    [
        ({"name": "adam", "momentum": 0.9}, r"optimiser\.momentum is an option of sgd, not of adam"),
        ({"name": "sgd", "nesterov": True}, r"optimiser\.nesterov needs a momentum"),
        ({"name": "torch.optim:RMSprp"}, r"torch\.optim has no 'RMSprp': did you mean 'RMSprop'"),
        (
            {"name": "torch.optim:RMSprop", "aplha": 1},
            r"unknown key 'optimiser\.aplha': did you mean 'optimiser\.alpha'",
        ),
        ({"name": "torch.optim:LBFGS"}, "LBFGS needs the loss several times per step"),
        ({"name": "sdg"}, r"optimiser\.name = 'sdg': input should be 'adam', 'adamw' or 'sgd'"),
    ],
)
def test_an_optimiser_that_cannot_be_is_told_why(optimiser: dict[str, Any], message: str) -> None:
    with pytest.raises(SondeError, match=message):
        config_of(optimiser)


def test_a_value_that_its_class_refuses_is_one_line() -> None:
    with pytest.raises(SondeError, match="optimiser RMSprop: Invalid alpha value: -3"):
        program_of(config_of({"name": "torch.optim:RMSprop", "alpha": -3}))


class Forgetful(Remembering):
    """Keeps what cannot be stored."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for p in self.param_groups[0]["params"]:
            self.state[p]["when"] = object()


def test_a_state_that_cannot_be_stored_is_named() -> None:
    program = program_of(config_of(f"{__file__}:Forgetful"))
    program.train_epoch(1)
    with pytest.raises(SondeError, match="Forgetful remembers 'when' as a object, which cannot be stored"):
        program.state()


def test_adam_says_nothing_of_momentum() -> None:
    assert to_tree(tiny_config(optimiser=Optimiser()))["optimiser"].keys() == {
        "name",
        "lr",
        "weight_decay",
        "schedule",
    }
