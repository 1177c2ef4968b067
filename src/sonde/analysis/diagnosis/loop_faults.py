"""Faults of the training loop: parameters that do not learn, gradients that are not cleared, the wrong mode."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import RunEvidence
from sonde.core.formatting import listed, number

_TOLD = 16  # entries that are needed to recognise a distribution
_TOLD_BY_MOMENTS = 200  # entries whose fourth moment and singular values are known well enough
_SPECTRUM = 0.1  # relative difference of Σσ⁴ from that of independent entries
_ENOUGH = 3  # watched steps that must show it
_MANY_MODULES = 12  # a network with more learns without some of them


def looks_fresh(parameter: Mapping[str, Any]) -> bool:
    """Whether the values of a parameter look like those of a common initialisation, untrained.

    Uniform: its largest entry is √3 times its spread.  Normal, truncated or not: its kurtosis is 3 and its singular
    values are those of independent entries; orthogonal: they are equal.  A bias of zeros.
    """
    start, shape = parameter.get("start") or {}, parameter["shape"] or []
    mean, std, top = (start.get(key) for key in ("mean", "std", "max"))
    many = math.prod(shape)
    if mean is None or std is None or top is None or many < 2:
        return False
    if len(shape) == 1:
        return bool(top == 0)
    spread = 4 / math.sqrt(many)
    if many < _TOLD or abs(mean) >= spread * std:  # equal weights included
        return False
    return abs(top / (std * math.sqrt(3)) - 1) < 0.02 + spread / 2 or _is_normal(start, shape, spread)


def _is_normal(start: Mapping[str, Any], shape: list[int], spread: float) -> bool:
    """Of a run stored by an earlier version, only a standard normal distribution of a matrix is recognised."""
    kurtosis, spectrum = start.get("kurtosis"), start.get("spectrum")
    if kurtosis is None or spectrum is None:
        return len(shape) == 2 and abs(start["std"] - 1) < spread
    independent = abs(spectrum - 1) < _SPECTRUM
    return math.prod(shape) >= _TOLD_BY_MOMENTS and independent and 2.2 - 2 * spread < kurtosis < 3 + 5 * spread


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


def _without_optimiser(s: RunEvidence) -> Finding | None:
    """Parameters that get gradients but that no optimiser holds."""
    grads = s.series("weight_grad_norm")
    left = [
        p
        for p in s.parameters
        if p["requires_grad"] and p["in_optimiser"] is False and any(v > 0 for v in grads.get(p["name"], {}).values())
    ]
    left = [p for p in left if not s.moves(p["name"])]
    if not left:
        return None
    fresh = share_fresh(left) > 0.5
    level = "note" if not fresh else "certain" if s.failed else "likely"
    look = "look freshly drawn" if fresh else "do not look freshly drawn, so it may be meant"
    said = f"{len(left)} of {len(s.parameters)} parameters get a gradient and are in no optimiser; they {look}."
    return found(level, said, modules=_owners(s, left))


def _unregistered(s: RunEvidence) -> Finding | None:
    """Parameters that the output depends on, and that nobody holds."""
    unknown = (s.facts.get("unregistered") or []) if s.facts.get("optimisers") else []
    if not unknown:
        return None
    said = (
        f"The output depends on {len(unknown)} parameters that are neither the model's nor any optimiser's "
        f"(shapes {_first_names(str(tuple(shape)) for shape in unknown)}): modules kept in a plain list or dict."
    )
    return found("likely" if s.learned else "certain", said)


def _never_changing(s: RunEvidence) -> list[dict[str, Any]]:
    """Parameters that ask for no gradient, do not change, and are no copies of others."""
    still = [p for p in s.parameters if not p["requires_grad"] and p["shape"]]
    return [p for p in still if p["name"] not in s.copies and not s.moves(p["name"])]


def _are_fresh(parameters: list[dict[str, Any]]) -> bool:
    """Whether the weight matrices among these look freshly drawn."""
    return share_fresh([p for p in parameters if len(p["shape"]) > 1]) > 0.5


def _frozen(s: RunEvidence) -> Finding | None:
    """Parameters with requires_grad False that look untrained, and never change."""
    frozen = _never_changing(s)
    if not _are_fresh(frozen):
        return None
    may_do_without = s.learned and len(s.leaves) <= _MANY_MODULES
    level = "certain" if s.failed else "note" if may_do_without else "likely"
    said = f"{len(frozen)} of {len(s.parameters)} parameters have requires_grad False and look freshly drawn."
    return found(level, said, modules=_owners(s, frozen))


def _never_reached(s: RunEvidence) -> list[dict[str, Any]]:
    """Parameters that ask for a gradient and never get one, though their modules run."""
    called = {module["name"] for module in s.modules}
    never = [
        p
        for p in s.parameters
        if p["requires_grad"]
        and p["in_optimiser"] is not False
        and p["name"] in s.without_gradient
        and s.owner(p["name"]) in called
    ]
    return [] if len(never) == len(s.parameters) else never


def _unfelt(s: RunEvidence) -> Finding | None:
    """Parameters without a gradient that change the loss when they are changed."""
    felt = s.trial("unfelt") or []
    never = [p for p in _never_reached(s) if p["name"] in felt]
    if not never:
        return None
    names = _first_names(p["name"] for p in never)
    said = f"No gradient reaches {len(never)} parameters, but changing them changes the loss: {names}."
    return found("certain", said, modules=_owners(s, never))


def _cut(s: RunEvidence) -> Finding | None:
    """From rows: modules without a gradient that run before others with one."""
    if s.trial("unfelt") is not None:
        return None
    order = [module["name"] for module in s.modules]
    trained = [order.index(s.owner(name)) for name in s.series("weight_grad_norm") if s.owner(name) in order]
    before = [p for p in _never_reached(s) if trained and order.index(s.owner(p["name"])) < max(trained)]
    if not before:
        return None
    names = _first_names(p["name"] for p in before)
    said = f"No gradient reached {len(before)} parameters in any watched step: {names}."
    return found("likely", said, modules=_owners(s, before))


def _cut_everywhere(s: RunEvidence) -> Finding | None:
    """No parameter has a gradient in any watched step, and none moves, though an optimiser holds them."""
    held = [p for p in s.parameters if p["requires_grad"] and p["in_optimiser"]]
    if not held or s.moved != 0 or not {p["name"] for p in held} <= s.without_gradient:
        return None
    said = (
        f"None of {len(held)} parameters had a gradient in any watched step, and none moved: the loss does not lead "
        "back to the model, or backward() is not called."
    )
    return found("certain", said)


def _stale(s: RunEvidence) -> Finding | None:
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
    return found("certain", said, step=stale[0])


def _in_eval(s: RunEvidence) -> Finding | None:
    """Dropout or batch normalisation in eval mode in training steps."""
    share = s.of_run("eval_share")
    wrong = sorted(step for step, value in share.items() if value > 0.5)
    if len(wrong) < _ENOUGH or len(wrong) < 0.5 * sum(step >= wrong[0] for step in share):
        return None
    norms = any(kind == "norm" for kind in s.kinds.values())
    level = "certain" if wrong[0] > 0 or (norms and not s.learned) else "likely"
    said = f"Modules that act differently in training were in eval mode in {len(wrong)} of {len(share)} watched steps."
    return found(level, said, step=wrong[0])


def _frozen_on_purpose(s: RunEvidence) -> set[str]:
    """Modules that never change, unless they hold freshly drawn weights: then there are no statistics to keep."""
    still = _never_changing(s)
    learning = {s.owner(p["name"]) for p in s.parameters if p["requires_grad"]}
    return set() if _are_fresh(still) else {s.owner(p["name"]) for p in still} - learning


def _norms_unfrozen(s: RunEvidence) -> Finding | None:
    """Batch normalisation whose gain and bias are frozen, but that is in train mode: its running statistics move."""
    frozen = _frozen_on_purpose(s)
    other = s.facts.get("in_the_other_mode") or []
    moving = [
        name
        for name, kind in s.types.items()
        if "BatchNorm" in kind and name in frozen and s.facts.get("training") is not (name in other)
    ]
    if not moving or not any(s.moves(p["name"]) for p in s.parameters):
        return None
    said = (
        f"{len(moving)} layers of batch normalisation have a gain and a bias that ask for no gradient, but are in "
        "train mode: their running statistics follow the batches."
    )
    return found("likely", said, modules=moving, advice=_FREEZE)


def _norms_switched(s: RunEvidence) -> Finding | None:
    """Batch normalisation in eval mode in the first step, of a model in train mode, that is switched back later."""
    back = [name for name in s.facts.get("switched") or [] if "BatchNorm" in s.types.get(name, "")]
    if not back:
        return None
    said = f"{len(back)} layers of batch normalisation are in eval mode in the first step, and in train mode later."
    return found("likely", said, modules=back, advice=_FREEZE)


_FREEZE = "Call eval() of these layers again after each model.train(), as in a train() method of the model."


LOOP_FAULTS = (
    Diagnosis(
        name="detached_graph",
        signs=(_cut_everywhere, _unfelt, _cut),
        short="The path of the gradient is cut: detach, no_grad, or a conversion.",
        measured=(
            "Parameters that ask for a gradient and are in the optimiser never get one, though their "
            "module runs; with a batch, the loss changes when they are changed. Or no parameter ever gets one, and "
            "none moves."
        ),
        why="What lies below the cut keeps its random initial weights.",
        remedy="Take away the no_grad, detach, .item() or numpy conversion between these modules and the loss.",
        reference="Baydin et al. (2018), Automatic differentiation in machine learning: a survey, arXiv:1502.05767",
        hides_pace=True,
    ),
    Diagnosis(
        name="not_in_optimiser",
        signs=(_without_optimiser, _unregistered),
        short="Parameters that get gradients but that no optimiser holds.",
        measured=(
            "A gradient arrives at parameters that are in no optimiser; likely where they look as "
            "freshly drawn, a note where they look trained. Or the output depends on parameters that "
            "are neither the model's nor an optimiser's."
        ),
        why="They keep their initial values, so a part of the network never learns.",
        remedy="Give the optimiser all of model.parameters(), made after the last module was added.",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        consequences=frozenset({"frozen_parameters"}),
        hides_pace=True,
    ),
    Diagnosis(
        name="frozen_parameters",
        signs=(_frozen,),
        short="Parameters with requires_grad False that were meant to learn.",
        measured=(
            "They have requires_grad False, never change, are not copies of parameters that learn, and look "
            "freshly drawn: uniform, normal or orthogonal weights, biases of zero."
        ),
        why="Random features that never change limit what the layers above can learn.",
        remedy="Call requires_grad_(True) on these modules before making the optimiser.",
        reference="Yosinski et al. (2014), How transferable are features in deep neural networks?, arXiv:1411.1792",
        hides_pace=True,
    ),
    Diagnosis(
        name="stale_gradients",
        signs=(_stale,),
        short="Gradients that are not cleared between steps.",
        measured=(
            "When a step's first gradient arrives, the parameter still holds an old one, in every "
            "watched step after the first."
        ),
        why="Each step applies the sum of all gradients so far, like momentum without friction.",
        remedy="Call optimizer.zero_grad() before each backward pass.",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        hides_pace=True,
    ),
    Diagnosis(
        name="wrong_mode",
        signs=(_in_eval, _norms_switched, _norms_unfrozen),
        consequences=frozenset({"lr_too_high", "lr_too_low"}),
        short="Train or eval mode is wrong while training.",
        measured=(
            "Dropout or batch normalisation in a part that learns is in eval mode in a training step. Or batch "
            "normalisation that is frozen, or was in eval mode at first, is in train mode."
        ),
        why="Batch normalisation then uses statistics that no batch has updated, and dropout does nothing.",
        remedy="Call model.train() before the training loop, and again after each evaluation.",
        reference="Ioffe & Szegedy (2015), Batch normalization, arXiv:1502.03167",
        hides_pace=True,
    ),
)
"""Causes before their symptoms."""
