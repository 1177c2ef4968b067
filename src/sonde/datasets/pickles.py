"""Read a pickle of NumPy arrays and plain containers, and refuse every other."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from sonde.errors import SondeError

RECONSTRUCT = np.empty(0).__reduce__()[0]  # NumPy's own, wherever this version keeps it


def load_arrays(content: bytes, name: Path | str) -> Any:
    """What the pickle holds, strings of Python 2 as bytes; nothing it names is imported or run.

    The only globals admitted are the four by which NumPy and Python 3 write arrays and bytes.
    """
    try:
        return _Arrays(content, name).load()
    except SondeError:
        raise
    except Exception as error:  # a broken pickle can raise anything
        raise SondeError(
            f"{name} cannot be read, it is cut short or damaged ({type(error).__name__}: {error}): fetch it again"
        ) from error


class _Arrays(pickle.Unpickler):
    def __init__(self, content: bytes, name: Path | str) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._name = name

        # Made anew for each file, since a pickle can set attributes of a function it is given.
        def dtype(description: Any, align: Any = False, copy: Any = False) -> Any:
            return np.dtype(description, align=bool(align), copy=bool(copy))  # old files hold 0 and 1

        def encode(text: str, encoding: str) -> bytes:
            if encoding not in ("latin1", b"latin1"):
                raise self._refused("_codecs", f"encode to {encoding}")
            return text.encode("latin1")

        self._admitted = {
            ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): dtype,
            ("_codecs", "encode"): encode,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._admitted:
            raise self._refused(module, name)
        return self._admitted[module, name]

    def _refused(self, module: str, name: str) -> SondeError:
        return SondeError(
            f"{self._name} asks for {module}.{name}, which a file of images has no need of, and was not read: "
            "fetch the data set from its own site with `sonde data fetch cifar10`"
        )
