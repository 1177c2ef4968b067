"""Tasks, chosen by name."""

from sonde.tasks.cifar10 import Cifar10
from sonde.tasks.digits import Digits
from sonde.tasks.synthetic import Identity, Parity, RandomHierarchy, Teacher
from sonde.tasks.task import Data, Samples, Task

TASKS: dict[str, type[Task]] = {
    "identity": Identity,
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
    "Parity",
    "RandomHierarchy",
    "Samples",
    "Task",
    "Teacher",
]
