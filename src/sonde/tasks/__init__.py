"""Tasks, chosen by name."""

from sonde.tasks.data import Data, Task
from sonde.tasks.identity import Identity

TASKS: dict[str, type[Task]] = {
    "identity": Identity,
}

__all__ = ["TASKS", "Data", "Identity", "Task"]
