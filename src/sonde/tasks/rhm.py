"""Which class did it grow from?  The random hierarchy model.  N samples, K symbols of a level, s symbols of a tuple."""

from collections.abc import Callable
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from annotated_types import Ge, Le
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.core.validated import validated
from sonde.store.files import Place
from sonde.tasks.samples import Samples
from sonde.tasks.task import Data

MOST_TUPLES = 2**24


@validated
class RandomHierarchy:
    """X grown from its class Y: L times every symbol is replaced by one of m tuples of s symbols; cross entropy.

    Cagnetta, Petrini, Tomasini, Favero & Wyart (2024), arXiv:2307.02129.  There are `classes` labels and v symbols.
    At every level each symbol (at the first, each class) has m tuples of its own, its synonyms: classes·m or v·m
    different ones out of all v^s, drawn without replacement from the run's seed.  So no tuple has two parents, and
    s^L symbols have one class.  Y is uniform, and so is each choice among m synonyms.  X has, for each of the s^L
    symbols, v numbers: √(v−1) at the symbol and −1/√(v−1) elsewhere, mean 0 and variance 1 for a uniform symbol.
    A class is known by which tuples mean the same, level by level: depth is what is learned.  There are
    classes·m^((s^L−1)/(s−1)) different inputs; training and test samples are drawn independently of each other.
    """

    v: Annotated[int, Ge(2)] = 8
    m: Annotated[int, Ge(1)] = 4
    s: Annotated[int, Ge(2)] = 2
    L: Annotated[int, Ge(1), Le(30)] = 3
    classes: Annotated[int, Ge(2)] = 8
    samples: Annotated[int, Ge(1)] = 8_000
    test_samples: Annotated[int, Ge(1)] = 2_000

    label: ClassVar[str] = "random hierarchy"
    classifies: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.s**self.L * self.v,)

    @property
    def outputs(self) -> int:
        return self.classes

    def prepare(self, data_root: Place | None, on_progress: Callable[[int, int], None]) -> None:
        """Nothing to do: the samples are generated."""
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
        """From the classes down, of each symbol of a level its m tuples: symbols × m × s."""

        def level(symbols: int, number: int) -> Tensor:
            order = torch.randperm(self.v**self.s, generator=generator(seed, f"rhm/rules/{number}"))
            tuples = order[: symbols * self.m].view(symbols, self.m, 1)
            places_s = self.v ** torch.arange(self.s - 1, -1, -1)
            return tuples // places_s % self.v

        return [level(self.classes if number == 0 else self.v, number) for number in range(self.L)]

    def _refuse_nonsense(self) -> None:
        tuples, symbols = self.v**self.s, max(self.classes, self.v) if self.L > 1 else self.classes
        if tuples > MOST_TUPLES:
            raise SondeError(
                f"task.v = {self.v} and task.s = {self.s} make {tuples:,} tuples: choose fewer, at most {MOST_TUPLES:,}"
            )
        if symbols * self.m > tuples:
            raise SondeError(
                f"{symbols} symbols with task.m = {self.m} tuples each, but there are {tuples}: choose task.m at most "
                f"{tuples // symbols}, or a larger task.v or task.s"
            )
