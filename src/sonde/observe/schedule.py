"""Which steps are looked at: always the same ones, so that two runs are comparable."""

FIRST = 10  # steps that are all looked at: most failures show there
RARELY = 1024  # watched steps between two costly ones, at most


def is_watched(step: int, every: int) -> bool:
    """Steps 0–9, then every 25th or whatever `every` says."""
    return step < FIRST or step % every == 0


def next_watched(step: int, every: int) -> int:
    """The first watched step after this one."""
    return step + 1 if step + 1 < FIRST else step // every * every + every


def is_costly(step: int, every: int) -> bool:
    """Step 0, and the watched steps number 1, 4, 16, 64, … after it: 25, 100, 400, 1600, …; never very far apart."""
    number, rest = divmod(step, every)
    if rest:
        return False
    power_of_four = number > 0 and number & (number - 1) == 0 and number.bit_length() % 2 == 1
    return number % RARELY == 0 or power_of_four
