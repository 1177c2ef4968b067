"""Tasks whose samples are generated from the run's seed.  N samples."""

import math
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, Le
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.network.losses import MEAN_SQUARED_ERROR
from sonde.store.files import Place
from sonde.tasks.task import Data, Samples, Task

_MOST_TUPLES = 2**24


class _VectorTask(Task):
    """Regression from d numbers to d numbers."""

    d: int
    classifies: ClassVar[bool] = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.d,)

    @property
    def outputs(self) -> int:
        return self.d


@validated
class Identity(_VectorTask):
    """Learn the identity: X ~ U(−1, 1), Y = X, mean squared error.

    Batches are drawn with replacement, so an epoch is `steps_per_epoch` batches rather than a pass over the
    samples.
    """

    d: Annotated[int, Ge(1)] = 64
    samples: Annotated[int, Ge(1)] = 1024
    test_samples: Annotated[int, Ge(1)] = 256
    steps_per_epoch: Annotated[int, Ge(1)] = 50

    label: ClassVar[str] = "identity"

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        def uniform_Nd(samples: int, name: str) -> Tensor:
            rng = generator(seed, f"identity/{name}")
            return (torch.rand(samples, self.d, generator=rng) * 2 - 1).to(device, dtype)

        train_Nd, test_Nd = uniform_Nd(self.samples, "train"), uniform_Nd(self.test_samples, "test")
        return IdentityData(train_Nd, test_Nd, self.steps_per_epoch)


class IdentityData(Samples):
    """Batches drawn with replacement; the target of an input is the input itself."""

    def __init__(self, train_Nd: Tensor, test_Nd: Tensor, steps: int) -> None:
        super().__init__((train_Nd, train_Nd), (test_Nd, test_Nd), MEAN_SQUARED_ERROR)
        self._steps = steps

    def steps(self, batch_size: int) -> int:
        return self._steps

    def batches(self, batch_size: int, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        drawn = torch.randint(self.train_samples, (self._steps, batch_size), generator=rng)
        for chosen in drawn.to(self.train_x.device):
            x_Nd = self.train_x[chosen]
            yield x_Nd, x_Nd


@validated
class LinearQuadratic(_VectorTask):
    """X and Y are independent, each N(0, 1) in d dimensions; mean squared error.

    On a linear network the loss is a quadratic function of every state: the linear–quadratic problem of control, whose
    costate is known.  With M_l the product of the matrices above h_l, it is g_l = M_lᵀ ∂ℓ/∂z.  Y cannot be predicted
    from X, so the output error is as large at the end as at the start.
    """

    d: Annotated[int, Ge(1)] = 64
    samples: Annotated[int, Ge(1)] = 25_600
    test_samples: Annotated[int, Ge(1)] = 1024

    label: ClassVar[str] = "linear–quadratic"

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        def split(samples: int, name: str) -> tuple[Tensor, Tensor]:
            rng = generator(seed, f"linear_quadratic/{name}")
            x_Nd, y_Nd = torch.randn(2, samples, self.d, generator=rng).to(device, dtype)
            return x_Nd, y_Nd

        return Samples(split(self.samples, "train"), split(self.test_samples, "test"), MEAN_SQUARED_ERROR)


@validated
class Teacher(Task):
    """Classify as a random network does: X ~ N(0, 1), Y = argmax of a random residual network, cross entropy.

    The teacher is a `student_net` with its own weights and no biases:  h_0 = W_e x,
    h_{l+1} = h_l + W_2 φ_α(W_1 h_l),  φ_α(z) = (1−α)z + α·tanh(z),  Y = argmax W_h h_L.
    Inputs and teacher are drawn from the run's seed.  With α = 0 the teacher is linear.
    """

    inputs: Annotated[int, Ge(1)] = 128
    classes: Annotated[int, Ge(2)] = 10
    samples: Annotated[int, Ge(1)] = 10_000
    test_samples: Annotated[int, Ge(1)] = 2_000
    alpha: Annotated[float, Ge(0), Le(1)] = 1.0
    L: Annotated[int, Ge(0)] = 4
    d: Annotated[int, Ge(1)] = 128

    label: ClassVar[str] = "teacher"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.inputs,)

    @property
    def outputs(self) -> int:
        return self.classes

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        def split(samples: int, name: str) -> tuple[Tensor, Tensor]:
            x_Ni = torch.randn(samples, self.inputs, generator=generator(seed, f"teacher/{name}"))
            return x_Ni.to(device, dtype), self.logits(x_Ni, seed).argmax(-1).to(device)

        return Samples(split(self.samples, "train"), split(self.test_samples, "test"))

    def logits(self, x_Ni: Tensor, seed: int) -> Tensor:
        """The teacher's outputs, in float64 so that labels are the same for every precision of a run."""

        def uniform(rows: int, columns: int, name: str) -> Tensor:
            rng = generator(seed, f"teacher/{name}")
            bound = columns**-0.5  # PyTorch's default for a linear layer
            return torch.empty(rows, columns, dtype=torch.float64).uniform_(-bound, bound, generator=rng)

        def normal_dd(std: float, name: str) -> Tensor:
            rng = generator(seed, f"teacher/{name}")
            return torch.randn(self.d, self.d, generator=rng, dtype=torch.float64) * std

        h_Nd = x_Ni.double() @ uniform(self.d, self.inputs, "embed").T
        for block in range(self.L):
            z_Nd = h_Nd @ normal_dd(self.d**-0.5, f"blocks.{block}.w1").T
            z_Nd = (1 - self.alpha) * z_Nd + self.alpha * z_Nd.tanh()
            h_Nd = h_Nd + z_Nd @ normal_dd((self.d * self.L) ** -0.5, f"blocks.{block}.w2").T
        return h_Nd @ uniform(self.classes, self.d, "head").T


@validated
class Parity(Task):
    """X uniform in {−1, 1}^bits; Y is 1 if an odd number of the first `relevant` bits is −1; cross entropy.

    No smaller set of bits tells anything about Y, so a network must combine all relevant bits.  A readout of random
    features cannot do this at this size: the blocks have to be trained.  If the number of bits is a square, an input
    is an image of one channel.
    """

    bits: Annotated[int, Ge(1)] = 16
    relevant: Annotated[int, Ge(1)] = 4
    samples: Annotated[int, Ge(1)] = 8_000
    test_samples: Annotated[int, Ge(1)] = 2_000

    label: ClassVar[str] = "parity"
    outputs: ClassVar[int] = 2

    @property
    def shape(self) -> tuple[int, ...]:
        side = math.isqrt(self.bits)
        return (1, side, side) if side * side == self.bits else (self.bits,)

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        self._refuse_nonsense()

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        self._refuse_nonsense()

        def split(samples: int, name: str) -> tuple[Tensor, Tensor]:
            rng = generator(seed, f"parity/{name}")
            bits_Nb = torch.randint(2, (samples, self.bits), generator=rng)
            x = (1 - 2 * bits_Nb).view(samples, *self.shape)
            return x.to(device, dtype), (bits_Nb[:, : self.relevant].sum(-1) % 2).to(device)

        return Samples(split(self.samples, "train"), split(self.test_samples, "test"))

    def _refuse_nonsense(self) -> None:
        if self.relevant > self.bits:
            raise SondeError(f"task.relevant = {self.relevant} of task.bits = {self.bits}: choose at most {self.bits}")


@validated
class RandomHierarchy(Task):
    """Random hierarchy model: X grows from its class Y; L times, one of m tuples of s symbols replaces every symbol.

    Cagnetta, Petrini, Tomasini, Favero & Wyart (2024), arXiv:2307.02129.  There are `classes` labels and v symbols.
    At every level each symbol (at the first, each class) has its own m tuples, its synonyms.  These are classes·m or
    v·m different ones of all v^s, drawn without replacement from the run's seed.  So every tuple has one parent, and
    every sequence of s^L symbols has one class.  Y is uniform, and so is each choice among m synonyms.  Each of the s^L
    symbols of X has v numbers: √(v−1) at the symbol and −1/√(v−1) elsewhere, with mean 0 and variance 1 for a uniform
    symbol.  To know the class, a network has to learn which tuples are synonyms, level by level: the blocks have to be
    trained.  The loss is cross entropy.  There are classes·m^((s^L−1)/(s−1)) different inputs; training and test
    samples are drawn independently of each other.
    """

    v: Annotated[int, Ge(2)] = 8
    m: Annotated[int, Ge(1)] = 4
    s: Annotated[int, Ge(2)] = 2
    L: Annotated[int, Ge(1), Le(30)] = 3
    classes: Annotated[int, Ge(2)] = 8
    samples: Annotated[int, Ge(1)] = 8_000
    test_samples: Annotated[int, Ge(1)] = 2_000

    label: ClassVar[str] = "random hierarchy"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.s**self.L * self.v,)

    @property
    def outputs(self) -> int:
        return self.classes

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        self._refuse_nonsense()

    def load(self, seed: int, data_root: Place | None, device: torch.device, dtype: torch.dtype) -> Data:
        self._refuse_nonsense()
        levels = self.rules(seed)

        def split(samples: int, name: str) -> tuple[Tensor, Tensor]:
            rng = generator(seed, f"rhm/{name}")
            y_N = torch.randint(self.classes, (samples,), generator=rng)
            symbols_NK = y_N[:, None]
            for rules_Kms in levels:
                chosen_NK = torch.randint(self.m, symbols_NK.shape, generator=rng)
                symbols_NK = rules_Kms[symbols_NK, chosen_NK].flatten(1)
            one_hot_NKv = F.one_hot(symbols_NK, self.v).double()
            x_NKv = (one_hot_NKv * self.v - 1) / (self.v - 1) ** 0.5
            return x_NKv.flatten(1).to(device, dtype), y_N.to(device)

        return Samples(split(self.samples, "train"), split(self.test_samples, "test"))

    def rules(self, seed: int) -> list[Tensor]:
        """The m tuples of each symbol, for every level from the classes down: symbols × m × s."""

        def level(symbols: int, number: int) -> Tensor:
            order = torch.randperm(self.v**self.s, generator=generator(seed, f"rhm/rules/{number}"))
            tuples = order[: symbols * self.m].view(symbols, self.m, 1)
            places_s = self.v ** torch.arange(self.s - 1, -1, -1)
            return tuples // places_s % self.v

        return [level(self.classes if number == 0 else self.v, number) for number in range(self.L)]

    def _refuse_nonsense(self) -> None:
        tuples, symbols = self.v**self.s, max(self.classes, self.v) if self.L > 1 else self.classes
        if tuples > _MOST_TUPLES:
            raise SondeError(
                f"task.v = {self.v} and task.s = {self.s} make {tuples:,} tuples: choose at most {_MOST_TUPLES:,}"
            )
        if symbols * self.m > tuples:
            raise SondeError(
                f"{symbols} symbols with task.m = {self.m} tuples each, but there are {tuples}: choose task.m at most "
                f"{tuples // symbols}, or a larger task.v or task.s"
            )
