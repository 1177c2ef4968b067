"""Diagnoses, drawn from programs that were watched: a healthy one beside a faulty one."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl
from contrast import Case, Measure, draw_contrast
from matplotlib.figure import Figure

from sonde.analysis.diagnosis import diagnose
from sonde.analysis.diagnosis.run_evidence import evidence_of_watched
from sonde.metrics import WATCHED
from sonde.show.figures.series import Group
from sonde.store.load import load
from sonde.store.run import Run, Runs

EXAMPLES = Path(__file__).parents[1] / "examples" / "runs"


@dataclass(frozen=True)
class Watched:
    """One metric of a healthy program and of a faulty one: over the steps, or over modules at one of them."""

    metric: str
    good: str
    along: str = "step"
    module: str | None = None  # which one, over the steps
    at: int = -1  # which of the watched steps, over modules
    log: bool = False
    bad: str | None = None  # the program, where its name is not the diagnosis'

    @property
    def name(self) -> str:
        """On the y axis."""
        return WATCHED[self.metric].label


def _loss(good: str, *, log: bool = False, bad: str | None = None) -> Watched:
    return Watched("loss", good, log=log, bad=bad)


_PICTURES = {
    "nan_origin": _loss("regression"),
    "wrong_label_shape": _loss("regression"),
    "detached_graph": Watched("weight_grad_norm", "checkers", "place"),
    "not_in_optimiser": Watched("update_ratio", "plain", "place"),
    "frozen_parameters": Watched("update_ratio", "checkers", "place"),
    "stale_gradients": Watched("grad_left", "plain", module="0.bias"),
    "wrong_mode": Watched("eval_share", "in train mode"),
    "idle_branch": Watched("weight_grad_norm", "open branches", "place"),
    "missing_activation": _loss("checkers"),
    "unnormalised_input": Watched("saturated_share", "tanh", module="1"),
    "unnormalised_target": _loss("regression", log=True),
    "bad_init": Watched("effective_rank", "plain", "place", at=0),
    "masked_growth": Watched("norm_in_rms", "normalised residual", "place", log=True),
    "attention_collapse": Watched("attention_entropy", "attention"),
    "over_regularised": Watched("weight_norm", "plain", module="0.weight"),
    "lr_too_high": Watched("update_ratio", "plain", module="2.weight", log=True),
    "lr_too_low": Watched("update_ratio", "plain", module="2.weight", log=True),
    "saturated_units": Watched("saturated_share", "tanh", "place", at=0),
    "dead_units": Watched("dead_share", "plain", "place"),
    "vanishing_gradient": Watched("grad_rms", "ten layers", "place", at=0, log=True),
    "exploding_gradient": Watched("grad_rms", "ten layers", "place", at=0, log=True),
    "rank_collapse": Watched("effective_rank", "plain", "place"),
    "loss_spike": _loss("plain", log=True, bad="stale_gradients"),
    "gradient_noise": Watched("grad_noise", "plain", module="(model)", bad="vanishing_gradient"),
}
"""Pictures that are not the default: the loss of the faulty program beside that of the program `plain`."""


def _picture(diagnosis: str) -> Watched:
    return _PICTURES.get(diagnosis) or _loss("plain")


def has_picture(diagnosis: str) -> bool:
    """Whether docs/examples/runs holds the faulty program: the one chosen above, or that of the diagnosis' name."""
    faulty = _picture(diagnosis).bad or diagnosis
    return any(run.label == faulty for run in _examples().watched)


@dataclass(frozen=True)
class Programs:
    """Two watched runs as the lines of a figure."""

    runs: pl.DataFrame
    labels: dict[str, str]
    recipe: str
    source: str = "docs/examples/runs"
    by: str = "state"


def _run(label: str) -> Run:
    return next(run for run in _examples().watched if run.label == label)


def _places(run: Run, rows: pl.DataFrame) -> list[str]:
    """Modules in order of execution, or parameters in that of their modules."""
    order = [entry["name"] for part in ("modules", "parameters") for entry in run.facts[part]]
    present = set(rows["module"].drop_nulls()) - {"(model)"}
    return [name for name in order if name in present]


@cache
def _examples() -> Runs:
    return load(EXAMPLES)


def draw_watched(diagnosis: str) -> tuple[Figure, str]:
    what = _picture(diagnosis)
    runs = {"healthy": _run(what.good), "faulty": _run(what.bad or diagnosis)}
    stored = _examples().rows.filter(metric=what.metric).with_columns(seed=pl.lit(0, pl.Int64))
    parts, cases, moments = [], [], set()
    for state, run in runs.items():
        rows = stored.filter(run=run.id).with_columns(state=pl.lit(state))
        places: list[str] = []
        if what.along == "place":
            step = rows["step"].unique().sort()[what.at]
            moments.add(f"step {step}")
            rows, places = rows.filter(step=step), _places(run, rows)
            order = {name: at for at, name in enumerate(places)}
            rows = rows.filter(pl.col("module").is_in(places)).with_columns(
                place=pl.col("module").replace_strict(order, return_dtype=pl.Int64)
            )
        elif what.module is not None:
            rows = rows.filter(module=what.module)
        parts.append(rows)
        cases.append(Case(title=f"{state.capitalize()}: {run.label}", key=state, places=places))
    steps = ", ".join(f"{state} {run.manifest.step} steps" for state, run in runs.items())
    group: Group = Programs(
        pl.DataFrame({"run": [run.id for run in runs.values()], "state": list(runs), "seed": [0, 0]}),
        {state: state for state in runs},
        f"Programs of docs/examples/train.py, {steps}",
    )
    when = f", {' and '.join(sorted(moments))}" if moments else ""
    of = f" of {what.module}" if what.module else ""
    measure = Measure(name=what.name, along=what.along, log=what.log)
    figure, caption = draw_contrast(
        group,
        pl.concat(parts),
        cases,
        measure,
        title=f"{what.metric}{of}{when}",
        shown=f"`{what.metric}`{of}{when}: {what.name}.",
    )
    return (
        figure,
        f"{caption.strip()}. {_said(diagnosis, runs['faulty'])} Command: `python docs/examples/train.py`",
    )


def _said(diagnosis: str, run: Run) -> str:
    """What `sonde diagnose` says of the faulty one."""
    found = diagnose(evidence_of_watched(run, _examples().rows))
    finding = next(one for one in found if one.name == diagnosis)
    return f"`sonde diagnose` of the faulty one, {finding.level}: {' '.join(finding.evidence)}"
