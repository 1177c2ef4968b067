"""A function in a file of the user's: `train.py:make`."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sonde.errors import SondeError, nearest


def function_of(where: str, what: str) -> Callable[[], Any]:
    """The function that FILE.py:FUNCTION names; the file's folder is on the path while it is imported, and after."""
    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        raise SondeError(f"{what} {where!r}: write FILE.py:FUNCTION, for example train.py:make")
    path = Path(file)
    if not path.is_file():
        raise SondeError(f"{file} does not exist")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SondeError(f"{file} cannot be imported ({type(error).__name__}: {error})") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SondeError(f"{file} has no function {name!r}: {nearest(name, there)}")
    made: Callable[[], Any] = found
    return made
