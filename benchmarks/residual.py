"""Sonde's training loop against a bare PyTorch loop doing the same steps: a ratio, in one process, interleaved.

Both draw the same batches, run the same network and take Adam steps.  "As anyone writes it" uses Adam's default
implementation, "tuned by hand" the fused one that Sonde uses: the second ratio is the cost of Sonde's own code.
"""

import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from sonde.generators import generator
from sonde.studies.residual import configs
from sonde.training.program import Program

ROUNDS = 40
STEPS = 50


def bare_epoch(residual: bool, fused: bool) -> Callable[[], object]:
    """The loop a researcher would write for the residual study, one epoch of it at a time."""
    x_all = torch.rand(1024, 64) * 2 - 1
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(20))
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        layer.weight.data.mul_(20**-0.5)  # type: ignore[operator]
    optimiser = torch.optim.Adam(layers.parameters(), lr=1e-3, fused=fused)
    rng = generator(0, "bench")

    def epoch() -> None:
        losses = []
        for _ in range(STEPS):
            x = x_all[torch.randint(len(x_all), (64,), generator=rng)]
            h = x
            for layer in layers:
                branch = torch.relu(layer(h))
                h = h + branch if residual else branch
            loss = nn.functional.mse_loss(h, x)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.detach())
        torch.stack(losses).tolist()

    return epoch


def sonde_epoch(residual: bool) -> Callable[[], object]:
    name = "ResMLP" if residual else "PlainMLP"
    config = next(
        config
        for config in configs("full", [42])
        if type(config.model).__name__ == name and config.model.variant == "scaled"
    )
    cpu = torch.device("cpu")
    program = Program(config, config.task.load(config.seed, None, cpu, torch.float32), cpu)
    return lambda: program.train_epoch(1)


def measure(variants: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Process time of an epoch of each variant, in shuffled order, round after round."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for name in variants:
        variants[name]()
    for _ in range(ROUNDS):
        for name in random.sample(list(variants), len(variants)):
            begin = time.process_time()
            variants[name]()
            times[name].append(time.process_time() - begin)
    return times


def main() -> None:
    torch.set_num_threads(1)
    print(f"residual study, one thread, {ROUNDS} interleaved rounds of {STEPS} steps: Sonde ÷ bare loop")
    print(f"{'network':<14}{'bare loop':<22}{'ms a step':>10}{'ratio':>8}{'10 %':>8}{'90 %':>8}")
    for residual in (False, True):
        variants = {
            "sonde": sonde_epoch(residual),
            "as anyone writes it": bare_epoch(residual, fused=False),
            "tuned by hand": bare_epoch(residual, fused=True),
        }
        times = measure(variants)
        for name in list(variants)[1:]:
            ratios = sorted(a / b for a, b in zip(times["sonde"], times[name], strict=True))
            low, high = ratios[ROUNDS // 10], ratios[-1 - ROUNDS // 10]
            step = statistics.median(times[name]) / STEPS * 1e3
            network = "residual" if residual else "plain"
            print(
                f"{network:<14}{name:<22}{step:>10.2f}{statistics.median(ratios):>8.3f}{low:>8.3f}{high:>8.3f}"
            )


if __name__ == "__main__":
    main()
