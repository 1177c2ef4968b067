"""What a command line asks of a study: its configurations after --scale, --seeds, --set and --only."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sonde.errors import SondeError, pick

if TYPE_CHECKING:
    from sonde.config import RunConfig


def seeds_of(text: str | None) -> list[int] | None:
    """`42,123` as numbers; None where no seeds were named."""
    if text is None:
        return None
    try:
        seeds = [int(word) for word in text.split(",")]
    except ValueError:
        raise SondeError(
            f"--seeds {text!r}: write whole numbers separated by commas, for example 42,123"
        ) from None
    if min(seeds) < 0:
        raise SondeError(f"--seeds {text!r}: a seed is 0 or more")
    return list(dict.fromkeys(seeds))


def configurations(
    study: str, *, scale: str, seeds: Sequence[int] | None, changes: Sequence[str], choices: Sequence[str]
) -> "dict[str, list[RunConfig]]":
    """The study's runs, changed and narrowed, by the values that are swept; one group without a name where none are."""
    from sonde.compare.configurations import assignments
    from sonde.config import whole_tree
    from sonde.studies import STUDIES
    from sonde.studies.narrow import only
    from sonde.studies.settings import in_groups, settings

    chosen = pick(STUDIES, study, "study")
    runs = chosen.configs(scale, chosen.seeds[scale] if seeds is None else seeds)
    runs = only(runs, assignments(choices, "--only"))
    return in_groups(map(whole_tree, runs), settings(changes)) if changes else {"": runs}


def together(groups: "dict[str, list[RunConfig]]") -> "list[RunConfig]":
    """The runs of all groups, each once."""
    return list({config.id: config for group in groups.values() for config in group}.values())
