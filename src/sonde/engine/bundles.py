"""Which runs are trained together: a bundle is what a worker is given."""

import itertools
import math
from collections.abc import Callable, Sequence

from sonde.config import RunConfig

Bundle = tuple[RunConfig, ...]
LIMIT = 16  # runs in a bundle: what is lost together, and in memory together


def bundle(
    configs: Sequence[RunConfig], *, jobs: int, pays: Callable[[RunConfig], bool], limit: int = LIMIT
) -> list[Bundle]:
    """Runs that differ only in their seed, together where it `pays`.

    There are as many bundles as keep all `jobs` workers busy to the end.
    Groups stand in the order in which their first runs appear, and so do the runs of a group.
    """
    groups: dict[object, list[RunConfig]] = {}
    for place, config in enumerate(configs):
        key = config.recipe if pays(config) else place
        groups.setdefault(key, []).append(config)
    members = list(groups.values())
    parts = [math.ceil(len(group) / limit) for group in members]

    def largest(group: int) -> int:
        return math.ceil(len(members[group]) / parts[group])

    wanted = math.ceil(sum(parts) / jobs) * jobs
    while sum(parts) < wanted:
        widest = max(range(len(members)), key=largest)
        if largest(widest) == 1:
            break
        parts[widest] += 1
    return [part for group, number in zip(members, parts, strict=True) for part in _split(group, number)]


def _split(group: Sequence[RunConfig], parts: int) -> list[Bundle]:
    """Neighbours together; sizes differ by one at most."""
    cuts = [len(group) * part // parts for part in range(parts + 1)]
    return [tuple(group[start:end]) for start, end in itertools.pairwise(cuts)]
