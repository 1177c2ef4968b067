"""Use the rule `halved`, which tests/contract/test_a_rule_is_added_in_three_files.py adds to a copy of the package."""

import sys
from pathlib import Path

import sonde
from sonde import plugins
from sonde.analysis.recompute import recompute
from sonde.analysis.recompute.stored import read_last_epoch
from sonde.config import Probing, RunConfig, label_of, parse, to_tree
from sonde.metrics.probes import PROBES
from sonde.rules import RULES
from sonde.show.figures.style import COLOR, LINE, MARKER
from sonde.store.run import open_run


def main(runs: Path) -> None:
    config = RunConfig(
        model=sonde.models.ResidualMLP(d=12, L=2, w2_std=0.3),
        rule=RULES["halved"](strength=0.25),  # type: ignore[call-arg]
        task=sonde.tasks.Teacher(inputs=16, samples=96, test_samples=64, d=8, classes=5),
        probes=Probing(names=tuple(PROBES), costly=(), size=6, directions=4),
        batch_size=32,
        epochs=1,
    )
    assert parse(to_tree(config)) == config
    sonde.train(config, runs=runs)
    (run,) = sonde.load(runs).runs
    assert run.about["rule_label"] == label_of("rule", config.rule) == "halved (strength=0.25)"
    found = recompute(read_last_epoch(open_run(runs / config.id)))
    assert not found.wrong
    compared = {line.metric for line in found.lines if line.verdict == "agrees"}
    assert {"credit_cosine", "credit_cosine/null", "rho", "rho/null"} <= compared, compared
    assert COLOR["halved"]
    assert MARKER["halved"]
    assert LINE["halved"]
    assert "halved" in plugins.names("rule")
    print(config.id)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
