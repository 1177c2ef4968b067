"""Faults of the training loop: parameters that do not learn, gradients that are not cleared, the wrong mode."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import FLOW, Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.core.formatting import listed, number

_TOLD = 16  # entries that are needed to recognise a distribution
_ENOUGH = 3  # watched steps that must show it


def looks_fresh(parameter: Mapping[str, Any]) -> bool:
    """Whether the values of a parameter look like those of a common initialisation, untrained.

    Uniform: its largest entry is √3 times its spread.  Standard normal, as of embeddings.  A bias of zeros.
    """
    start, shape = parameter.get("start") or {}, parameter["shape"] or []
    many = math.prod(shape)
    mean, std, top = (start.get(key) for key in ("mean", "std", "max"))
    if mean is None or std is None or top is None or many < 2:
        return False
    if len(shape) == 1:
        return bool(top == 0)
    if std == 0 or many < _TOLD:
        return False
    spread = 4 / math.sqrt(many)
    uniform = abs(top / (std * math.sqrt(3)) - 1) < 0.02 + spread / 2 and abs(mean) < spread * std
    normal = abs(std - 1) < spread and abs(mean) < spread and len(shape) == 2
    return uniform or normal


def share_fresh(parameters: list[dict[str, Any]]) -> float:
    """The share of entries of these parameters that look freshly initialised."""
    weights = [p for p in parameters if len(p["shape"] or []) > 1] or parameters
    total = sum(math.prod(p["shape"] or [0]) for p in weights)
    return sum(math.prod(p["shape"]) for p in weights if looks_fresh(p)) / total if total else 0.0


def is_tiny(parameters: list[dict[str, Any]]) -> bool:
    """Whether every weight matrix is too small to recognise an initialisation."""
    return all(math.prod(p["shape"] or [0]) < _TOLD for p in parameters if len(p["shape"] or []) > 1)


def _first_names(names: Iterable[str]) -> str:
    return listed(names, 4, last=", ")


def _owners(s: RunEvidence, parameters: list[dict[str, Any]]) -> list[str]:
    return [s.owner(p["name"]) for p in parameters]


def not_in_optimiser(s: RunEvidence) -> Finding | None:
    """Parameters that get gradients but that no optimiser holds."""
    grads = s.series("weight_grad_norm")
    left = [
        p
        for p in s.parameters
        if p["requires_grad"] and p["in_optimiser"] is False and any(v > 0 for v in grads.get(p["name"], {}).values())
    ]
    unknown = (s.facts.get("unregistered") or []) if s.facts.get("optimisers") else []
    if unknown and not left:
        said = (
            f"The output depends on {len(unknown)} parameters that are neither the model's nor any optimiser's "
            f"(shapes {_first_names(str(tuple(shape)) for shape in unknown)}): modules kept in a plain list or dict."
        )
        return found("not_in_optimiser", "likely" if s.learned else "certain", said)
    if not left:
        return None
    fresh = share_fresh(left) > 0.5
    level = "note" if not fresh else "certain" if s.failed else "likely"
    look = "look as freshly drawn" if fresh else "do not look freshly drawn, so it may be meant"
    said = f"{len(left)} of {len(s.parameters)} parameters get a gradient and are in no optimiser; they {look}."
    return found("not_in_optimiser", level, said, modules=_owners(s, left))


def frozen_parameters(s: RunEvidence) -> Finding | None:
    """Parameters with requires_grad False that look untrained."""
    frozen = [p for p in s.parameters if not p["requires_grad"] and math.prod(p["shape"] or [0]) > 0]
    fresh = [p for p in frozen if looks_fresh(p) or len(p["shape"]) == 1]
    weights = [p for p in fresh if len(p["shape"]) > 1]
    if not weights or share_fresh(frozen) <= 0.5:
        return None
    level = "note" if s.learned else "certain" if s.failed else "likely"
    said = f"{len(frozen)} of {len(s.parameters)} parameters ask for no gradient, and look as freshly drawn."
    return found("frozen_parameters", level, said, modules=_owners(s, frozen))


def detached_graph(s: RunEvidence) -> Finding | None:
    """Parameters with requires_grad True that never get a gradient, though their modules run."""
    grads, called = s.series("weight_grad_norm"), {module["name"] for module in s.modules}
    never = [
        p
        for p in s.parameters
        if p["requires_grad"]
        and p["in_optimiser"] is not False
        and p["name"] in s.without_gradient
        and s.owner(p["name"]) in called
    ]
    if not never or len(never) == len(s.parameters):
        return None
    felt = s.trial("unfelt")
    if felt is not None:
        never = [p for p in never if p["name"] in felt]
        if not never:
            return None
        names = _first_names(p["name"] for p in never)
        said = f"No gradient reaches {len(never)} parameters, but changing them changes the loss: {names}."
        return found("detached_graph", "certain", said, modules=_owners(s, never))
    order = [module["name"] for module in s.modules]
    trained = [order.index(s.owner(name)) for name in grads if s.owner(name) in order]
    before = [p for p in never if trained and order.index(s.owner(p["name"])) < max(trained)]
    if not before:
        return None
    said = (
        f"No gradient reached {len(before)} parameters in any watched step: {_first_names(p['name'] for p in before)}."
    )
    return found("detached_graph", "likely", said, modules=_owners(s, before))


def stale_gradients(s: RunEvidence) -> Finding | None:
    """Gradients that are added to old ones, which were not cleared."""
    by_step: dict[int, float] = {}
    for steps in s.series("grad_left").values():
        for step, value in steps.items():
            by_step[step] = max(by_step.get(step, 0.0), value)
    stale = sorted(step for step, value in by_step.items() if value > 0)
    if len(stale) < _ENOUGH or len(stale) < 0.9 * len(by_step):
        return None
    said = (
        f"In {len(stale)} of {len(by_step)} watched steps a gradient arrived on top of an old "
        f"one, up to {number(max(by_step.values()))} times its size."
    )
    return found("stale_gradients", "certain", said, step=stale[0])


def wrong_mode(s: RunEvidence) -> Finding | None:
    """Dropout or batch normalisation in eval mode in training steps."""
    share = s.of_run("eval_share")
    wrong = sorted(step for step, value in share.items() if value > 0.5)
    if len(wrong) < _ENOUGH or len(wrong) < 0.5 * sum(step >= wrong[0] for step in share):
        return None
    norms = any(kind == "norm" for kind in s.kinds.values())
    level = "certain" if wrong[0] > 0 or (norms and not s.learned) else "likely"
    said = f"Modules that act differently in training were in eval mode in {len(wrong)} of {len(share)} watched steps."
    return found("wrong_mode", level, said, step=wrong[0])


LOOP_FAULTS = (
    Diagnosis(
        detached_graph,
        short="The path of the gradient is cut: detach, no_grad, or a conversion.",
        measured=(
            "Parameters that ask for a gradient and are in the optimiser never get one, though their "
            "module runs; with a batch, the loss changes when they are changed."
        ),
        why="What lies below the cut keeps its random initial weights.",
        remedy="Take away the no_grad, detach, .item() or numpy conversion between these modules and the loss.",
        reference="Baydin et al. (2018), Automatic differentiation in machine learning: a survey, arXiv:1502.05767",
        explains=FLOW,
        hides_pace=True,
    ),
    Diagnosis(
        not_in_optimiser,
        short="Parameters that get gradients but that no optimiser holds.",
        measured=(
            "A gradient arrives at parameters that are in no optimiser; likely where they look as "
            "freshly drawn, a note where they look trained. Or the output depends on parameters that "
            "are neither the model's nor an optimiser's."
        ),
        why="They keep their initial values, so a part of the network never learns.",
        remedy="Give the optimiser all of model.parameters(), made after the last module was added.",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        explains=frozenset({"frozen_parameters"}),
        hides_pace=True,
    ),
    Diagnosis(
        frozen_parameters,
        short="Parameters with requires_grad False that were meant to learn.",
        measured=(
            "They ask for no gradient, and look as freshly drawn: a uniform or standard normal distribution, "
            "biases of zero."
        ),
        why="Random features that never change limit what the layers above can learn.",
        remedy="Call requires_grad_(True) on these modules before making the optimiser.",
        reference="Yosinski et al. (2014), How transferable are features in deep neural networks?, arXiv:1411.1792",
        explains=FLOW,
        hides_pace=True,
    ),
    Diagnosis(
        stale_gradients,
        short="Gradients that are not cleared between steps.",
        measured=(
            "When a step's first gradient arrives, the parameter still holds an old one, in every "
            "watched step after the first."
        ),
        why="Each step applies the sum of all gradients so far, like momentum without friction.",
        remedy="Call optimizer.zero_grad() before each backward pass.",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        explains=FLOW | {"nan_origin", "loss_spike", "masked_growth"},
        hides_pace=True,
    ),
    Diagnosis(
        wrong_mode,
        short="Train or eval mode is wrong while training.",
        measured="Dropout or batch normalisation in a part that learns is in eval mode in a training step.",
        why="Batch normalisation then uses statistics that no batch has updated, and dropout does nothing.",
        remedy="Call model.train() before the training loop, and again after each evaluation.",
        reference="Ioffe & Szegedy (2015), Batch normalization, arXiv:1502.03167",
        explains=FLOW,
        hides_pace=True,
    ),
)
"""Causes before their symptoms."""
