"""A comparison as plain objects for a program: every number with its n, seeds and runs."""

from dataclasses import asdict
from typing import Any

from sonde.compare.comparison import Comparison


def objects(found: Comparison) -> dict[str, Any]:
    """The whole comparison; undefined numbers are NaN here."""
    return {
        "factor": found.factor,
        "metric": found.metric,
        "layer": found.layer,
        "config": found.shared,
        "matched": found.matched,
        "differing": found.differing,
        "levels": [
            {
                "level": group.level.label,
                "options": group.level.options,
                **asdict(group.summary),
                "seeds": list(group.values),
                "runs": [value.run for value in group.values.values()],
                "by_seed": {seed: asdict(value) for seed, value in group.values.items()},
            }
            for group in found.groups
        ],
        "differences": [
            {
                "level": difference.level,
                "baseline": difference.baseline,
                **asdict(difference.summary),
                "interval": asdict(difference.interval),
                "seeds": list(difference.by_seed),
                "by_seed": difference.by_seed,
                "without": difference.without,
            }
            for difference in found.differences
        ],
        "left_out": found.left_out,
        "made_with": found.made_with,
    }
