"""At which epochs probes look."""

from typing import Literal, assert_never

Schedule = Literal["every_epoch", "every_k", "log_spaced", "final"]


def epochs_of(schedule: Schedule, k: int, epochs: int) -> set[int]:
    """The epochs of a run at which to look; 0 is the initialisation.

    `every_k` takes the multiples of k, `log_spaced` the powers of k; both also the first and the last epoch, 0 and
    `epochs`.  `final` takes the last alone.
    """
    match schedule:
        case "every_epoch":
            return set(range(epochs + 1))
        case "every_k":
            return {*range(0, epochs + 1, k), epochs}
        case "log_spaced":
            powers = {k**n for n in range(epochs.bit_length()) if k**n <= epochs}
            return {0, *powers, epochs}
        case "final":
            return {epochs}
        case _:
            assert_never(schedule)
