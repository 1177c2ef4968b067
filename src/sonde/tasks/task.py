"""The interfaces of a task and of its samples, samples in memory, and tasks from a user's arrays.

N samples, C outputs.
"""

import dataclasses
import io
import math
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from numpy.typing import NDArray
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.validated import accepted_by, config_class, content_digest, function_options
from sonde.network.losses import CROSS_ENTROPY, MEAN_SQUARED_ERROR, Loss
from sonde.store.files import Place, place


class Data(Protocol):
    """Samples on a device: one epoch of training batches at a time, and a test set in a fixed order."""

    loss: Loss
    train_samples: int
    test_samples: int
    source: dict[str, str] | None  # what the samples were read from; None if the seed determines them

    def steps(self, batch_size: int) -> int:
        """Training batches in one epoch."""
        ...

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch; all its randomness comes from `rng`."""
        ...

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Test samples first … last−1, in file order, without augmentation."""
        ...


class Task(Protocol):
    """A task's configuration.  By default it classifies, and there is nothing to prepare."""

    @property
    def label(self) -> str:
        """The task's name in figures and tables."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        ...

    @property
    def outputs(self) -> int:
        """The size of the network's output: the number of classes, or the size of a target."""
        ...

    @property
    def classifies(self) -> bool:
        """Whether targets are labels 0 … C−1, trained with cross entropy; else the loss is the squared error."""
        return True

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Do what takes long or may fail, once, before any run starts; `on_progress` is told (done, total)."""
        return

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        """Load the samples onto the device; all their randomness comes from the seed."""
        ...


class Samples:
    """Samples in memory.  An epoch is a pass over all of them in a new order; the last batch may be smaller."""

    source: dict[str, str] | None = None

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], loss: Loss = CROSS_ENTROPY) -> None:
        self.loss = loss
        (self.train_x, self.train_y), (self.test_x, self.test_y) = train, test
        self.train_samples, self.test_samples = len(self.train_x), len(self.test_x)

    def steps(self, batch_size: int) -> int:
        return -(-self.train_samples // batch_size)

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        order_N = torch.randperm(self.train_samples, generator=rng).to(self.train_x.device)
        for first in range(0, self.train_samples, batch_size):
            chosen = order_N[first : first + batch_size]
            yield self.train_x[chosen], self.train_y[chosen]

    def test(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        return self.test_x[first:last], self.test_y[first:last]


_SPLIT, _WHOLE = ("x_train", "y_train", "x_test", "y_test"), ("x", "y")
_NEEDED = f"{', '.join(_SPLIT)}, or x and y; --set task.test=0.2 keeps a fifth for testing"


class Arrays(NamedTuple):
    """Validated arrays: as many targets as inputs, finite numbers, labels 0 … C−1 or targets N×C."""

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    outputs: int
    classifies: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArraysTask(ABC):
    """Integer targets are labels (cross entropy); float targets are regressed (mean squared error).

    `test` is the fraction of `x` and `y` that is kept for testing, the same samples for every seed.  `classes` gives
    the number of classes if some have no training sample.  `standardise` shifts and scales inputs to mean 0 and
    standard deviation 1 over the training samples.  `tokens` keeps integer inputs as integers, for networks that start
    with an embedding table.
    """

    test: Annotated[float, Gt(0), Lt(1)] = 0.2
    classes: Annotated[int, Ge(2)] | None = None
    standardise: bool = False
    tokens: bool = False

    title: ClassVar[str]

    @abstractmethod
    def read(self, seed: int) -> Arrays:
        """The arrays of a run with this seed."""

    @property
    def label(self) -> str:
        return self.title if self.classifies else f"{self.title}, regression"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.read(0).x_train.shape[1:]

    @property
    def outputs(self) -> int:
        return self.read(0).outputs

    @property
    def classifies(self) -> bool:
        return self.read(0).classifies

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        arrays = self.read(seed)
        if (arrays.x_train.shape[1:], arrays.outputs) != (self.shape, self.outputs):
            raise SondeError(f"{self.title}: shape and number of outputs must be the same for every seed")
        x_train, x_test = torch.from_numpy(arrays.x_train), torch.from_numpy(arrays.x_test)
        kind = torch.int64 if self.tokens else torch.float64
        x_train, x_test = x_train.to(kind), x_test.to(kind)
        if self.standardise:
            mean, std = x_train.mean(), x_train.std(correction=0)
            x_train, x_test = (x_train - mean) / std, (x_test - mean) / std

        def there(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else torch.int64)

        def samples(x: Tensor, y: NDArray[Any]) -> tuple[Tensor, Tensor]:
            return there(x), there(torch.from_numpy(y))

        loss = CROSS_ENTROPY if arrays.classifies else MEAN_SQUARED_ERROR
        return Samples(samples(x_train, arrays.y_train), samples(x_test, arrays.y_test), loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Npz(ArraysTask):
    """Arrays of an .npz file: x_train, y_train, x_test and y_test, or x and y."""

    file: ClassVar[str]
    stamp: ClassVar[str]  # of its content

    def read(self, seed: int) -> Arrays:
        """Read the file; the seed has no effect."""
        return _read_npz(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromFunction(ArraysTask):
    """Arrays that a function returns: four, or two that are split, or a mapping with their names.

    A parameter `seed` without a default gets the run's seed.
    """

    make: ClassVar[Callable[..., Any]]

    def read(self, seed: int) -> Arrays:
        """Call the function, with the seed where it takes one."""
        return _call(self, seed if "seed" in accepted_by(type(self).make, {"seed": 0}) else None)


def npz(name: str, file: str, stamp: str) -> type[Npz]:
    """The configuration class of an .npz file whose content has this stamp."""
    return type(name, (Npz,), {"file": file, "stamp": stamp, "title": name, "__doc__": Npz.__doc__})


def from_function(name: str, make: Callable[..., Any]) -> type[FromFunction]:
    """The configuration class of a function that returns arrays; its keyword parameters become options."""
    options = function_options(make, name, ("seed",))
    common = {field.name for field in dataclasses.fields(ArraysTask)}
    for option, *_ in options:
        if option in common:
            raise SondeError(f"{name}: {option} is an option of every task of arrays: rename the parameter")
    return config_class(name, options, FromFunction, make, make=staticmethod(make), title=name)


@lru_cache(maxsize=4)
def _read_npz(task: Npz) -> Arrays:
    content = read_npz(task.file)
    if content_digest(content) != task.stamp:
        raise SondeError(f"{task.file} has changed since this command began: run the command again")
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise SondeError(f"{task.file} is not an .npz file: write it with numpy.savez")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            found = {name: _array(stored, name, task.file) for name in stored.files if name in (*_SPLIT, *_WHOLE)}
            others = [name for name in stored.files if name not in found]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise SondeError(f"{task.file} is a damaged .npz file ({error}): write it again with numpy.savez") from None
    if not found:
        there = f"; there are: {', '.join(others)}" if others else ""
        raise SondeError(f"{task.file} has no x_train and no x: it needs {_NEEDED}{there}")
    return checked_arrays(found, task.file, task)


def read_npz(file: str) -> bytes:
    """Read an .npz file, local or below a URL."""
    try:
        return place(file).read_bytes()
    except FileNotFoundError:
        raise SondeError(f"{file} is not there: name an .npz file, on a cluster one that every node sees") from None
    except OSError as error:
        raise SondeError(f"{file}: {error.strerror or error}") from None


def _array(stored: Any, name: str, file: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = stored[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise SondeError(
            f"{file}: {name} holds Python objects, which are never unpickled: save an array of numbers"
        ) from None
    return array


@lru_cache(maxsize=4)
def _call(task: FromFunction, seed: int | None) -> Arrays:
    options = {
        field.name: getattr(task, field.name)
        for field in dataclasses.fields(task)
        if field.name not in ArraysTask.__dataclass_fields__
    }
    returned = type(task).make(**options, **({} if seed is None else {"seed": seed}))
    where = f"{task.title}()"
    if isinstance(returned, Mapping):
        return checked_arrays(returned, where, task)
    if isinstance(returned, Sequence) and len(returned) in (2, 4):
        names = _SPLIT if len(returned) == 4 else _WHOLE
        return checked_arrays(dict(zip(names, returned, strict=True)), where, task)
    raise SondeError(f"{where} returns a {type(returned).__name__}: return {_NEEDED}")


def checked_arrays(found: Mapping[str, Any], where: str, task: ArraysTask) -> Arrays:
    """Validate and split the arrays of a task; raise an error that tells what is wrong."""
    wanted = _SPLIT if set(found) & set(_SPLIT) else _WHOLE
    for name in wanted:
        if name not in found:
            raise SondeError(f"{where} has no {name}: it needs {_NEEDED}")
    arrays = {name: _numbers(found[name], name, where) for name in wanted}
    for x, y in zip(wanted[::2], wanted[1::2], strict=True):
        if len(arrays[x]) != len(arrays[y]):
            raise SondeError(
                f"{where}: {x} has {len(arrays[x]):,} samples, but {y} {len(arrays[y]):,}: there must be as many"
            )
    if wanted == _WHOLE:
        arrays = _split(arrays["x"], arrays["y"], task.test, where)
    x_train, y_train, x_test, y_test = (arrays[name] for name in _SPLIT)
    if x_train.ndim < 2:
        raise SondeError(f"{where}: an input is a single number: give x the shape samples × features")
    for name, a, b in (("x", x_train, x_test), ("y", y_train, y_test)):
        if a.shape[1:] != b.shape[1:] or (a.dtype.kind == "f") != (b.dtype.kind == "f"):
            raise SondeError(
                f"{where}: a sample of {name}_train is {a.dtype} of shape {a.shape[1:]}, one of {name}_test {b.dtype} "
                f"of shape {b.shape[1:]}: they must be alike"
            )
    if task.tokens and x_train.dtype.kind == "f":
        raise SondeError(f"{where}: x_train holds {x_train.dtype}, but task.tokens=true needs whole numbers")
    if y_train.dtype.kind == "f":
        y_train, y_test = (y if y.ndim > 1 else y[:, None] for y in (y_train, y_test))
        if y_train.ndim > 2:
            raise SondeError(f"{where}: a target has the shape {y_train.shape[1:]}: give y samples × outputs")
        return Arrays(x_train, y_train, x_test, y_test, y_train.shape[1], False)
    classes = _classes(y_train, y_test, where, task.classes)
    return Arrays(x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64), classes, True)


def _numbers(values: Any, name: str, where: str) -> NDArray[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise SondeError(f"{where}: {name} holds {array.dtype}: save an array of numbers")
    if array.ndim == 0 or len(array) == 0:
        raise SondeError(f"{where}: {name} is empty: there is nothing to learn from")
    if array.dtype.kind == "f":
        wrong_N = ~np.isfinite(array).reshape(len(array), -1).all(1)
        if wrong_N.any():
            raise SondeError(
                f"{where}: {name} has NaN or infinite numbers in {wrong_N.sum():,} of {len(array):,} samples, first in "
                f"sample {wrong_N.argmax()}: leave those out or fix them"
            )
    return np.ascontiguousarray(array.astype(np.uint8) if array.dtype.kind == "b" else array)


def _split(x: NDArray[Any], y: NDArray[Any], test: float, where: str) -> dict[str, NDArray[Any]]:
    """Split into training and test samples; the split does not depend on the run's seed."""
    held = round(test * len(x))
    if not 0 < held < len(x):
        raise SondeError(f"{where}: task.test = {test:g} of {len(x)} samples leaves none to train or to test with")
    order = torch.randperm(len(x), generator=generator(0, "arrays/split")).numpy()
    return dict(zip(_SPLIT, (x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]]), strict=True))


def _classes(y_train: NDArray[Any], y_test: NDArray[Any], where: str, wanted: int | None) -> int:
    if math.prod(y_train.shape[1:]) != 1 or y_train.ndim != 1:
        raise SondeError(f"{where}: y_train has the shape {y_train.shape}: labels are one whole number for each sample")
    highest = int(y_train.max())
    classes = max(highest + 1, 2) if wanted is None else wanted
    for name, label_N in (("y_train", y_train), ("y_test", y_test)):
        low, high = int(label_N.min()), int(label_N.max())
        if low < 0 or high >= classes:
            said = "task.classes says" if wanted is not None else "y_train has"
            raise SondeError(
                f"{where}: {name} has the label {low if low < 0 else high}, out of range: {said} 0 to {classes - 1}; "
                "number them from 0, or set task.classes"
            )
    return classes
