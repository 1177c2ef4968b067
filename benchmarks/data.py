"""What cropping, mirroring and batching CIFAR-10 cost beside the training step they feed.

    python benchmarks/data.py DATA_ROOT

One thread, process time, whole epochs; the step is backprop on residual_mlp d=256 L=4, batch 128.
"""

import statistics
import sys
import time
from pathlib import Path

import torch

from sonde.config import Probing, RunConfig
from sonde.models import ResidualMLP
from sonde.rules import Backprop
from sonde.tasks import Cifar10
from sonde.training.program import Program

EPOCHS = 3


def main() -> None:
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    config = RunConfig(model=ResidualMLP(), rule=Backprop(), task=Cifar10(), probes=Probing(names=("loss",)))
    program = Program(config, config.task.load(config.seed, Path(sys.argv[1]), cpu, torch.float32), cpu)
    print("epoch   data, ms a batch   step, ms   data ÷ step")
    for epoch in range(EPOCHS):
        data, steps = [], []
        mark = time.process_time()
        for x, y in program.data.batches(config.batch_size, program.order):
            data.append(time.process_time() - mark)
            mark = time.process_time()
            program.optimiser.zero_grad()
            program.credit.backward(x, y)
            program.optimiser.step()
            steps.append(time.process_time() - mark)
            mark = time.process_time()
        ratio = sum(data) / sum(steps)
        print(
            f"{epoch:5}{1e3 * statistics.median(data):19.2f}{1e3 * statistics.median(steps):11.2f}{ratio:14.3f}"
        )


if __name__ == "__main__":
    main()
