"""Built-in tasks, chosen by name in `TASKS`: what a network learns, and from which data.

A task is a frozen configuration with `shape`, `outputs`, `classifies` and `load`, which returns the training and test
samples.  `prepare` finds or decodes a data set before the runs start, once for all of them; tasks that compute their
data have none.  The same seed gives the same samples in the same order on every machine.

Most tasks need no download (`digits`, `parity`, `teacher`, `identity`, `linear_quadratic`, `rhm`).  CIFAR-10 is read
from the official archive, from images or from Parquet, wherever `SONDE_DATA` or the cache folder has it; `sonde data
fetch` downloads it.  An `.npz` file with `x` and `y` is a task too.

To add a built-in task: a class that is validated when it is made, its line in `TASKS`, and its first options.
"""

from sonde.tasks.images import Cifar10, Digits
from sonde.tasks.synthetic import Identity, LinearQuadratic, Parity, RandomHierarchy, Teacher
from sonde.tasks.task import Data, Samples, Task

TASKS: dict[str, type[Task]] = {
    "identity": Identity,
    "linear_quadratic": LinearQuadratic,
    "teacher": Teacher,
    "digits": Digits,
    "parity": Parity,
    "rhm": RandomHierarchy,
    "cifar10": Cifar10,
}

__all__ = [
    "TASKS",
    "Cifar10",
    "Data",
    "Digits",
    "Identity",
    "LinearQuadratic",
    "Parity",
    "RandomHierarchy",
    "Samples",
    "Task",
    "Teacher",
]
