"""Definitions read from files of public repositories, and what programs made of them share.

Nothing of these repositories is part of this one: `SONDE_REPOSITORIES` names a folder of git directories,
`owner+name/repo`.  Classes and functions are taken from the file; its command line and downloads are not run.
"""

import ast
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from recipes import digits
from torch import Tensor, nn
from torch.nn import functional

REPOSITORIES = Path(os.environ.get("SONDE_REPOSITORIES", "repositories"))


def classes(repository: str, path: str, **known: Any) -> Any:
    """What a file defines: its imports, classes and functions, without the code that runs."""
    folder = REPOSITORIES / repository.replace("/", "+") / "repo"
    folder = folder / ".git" if (folder / ".git").is_dir() else folder
    source = subprocess.run(
        ["git", f"--git-dir={folder}", "show", f"HEAD:{path}"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, Any] = {"__name__": path, "torch": torch, "nn": nn, "F": functional, **known}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef):
            try:
                exec(compile(ast.Module([node], []), path, "exec"), found)
            except ImportError:
                continue  # of data sets and plots, which are not used
    return SimpleNamespace(**found)


def images(size: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    x, y = digits()
    x = functional.interpolate(x.view(-1, 1, 8, 8), size=(size, size), mode="bilinear").expand(-1, channels, -1, -1)
    return x.contiguous(), y


def sgd(model: nn.Module, rate: float, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), rate, **more)


def adam(model: nn.Module, rate: float, **more: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), rate, **more)
