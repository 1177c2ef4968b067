"""Faults of how a run is set up: inputs, classes, padding, copies of weights, optimisers, weight decay, warm-up."""

import math
import statistics
from typing import Any

import polars as pl

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import FAILED, FEWEST_STEPS, FIT_STEPS, LEARNED, RunEvidence
from sonde.core.formatting import listed, number

FEWEST_SAMPLES = 16  # of a batch in which equal inputs are a fault
SAMPLES_PER_CLASS = 10  # of a batch in which every class should occur
PADDING = 0.3  # share of targets
GAINS_SHRUNK = 1 / 3  # of the initial norm
_ENOUGH = 3  # watched steps that must show it
_MOST_MISSING = 4  # classes that are named


def _inputs_alike(s: RunEvidence) -> Finding | None:
    """Every sample of a batch has the same input."""
    known = s.trial("inputs") or s.facts.get("inputs") or []
    samples = next((one["shape"][0] for one in known if one.get("shape")), 0)
    only_first = s.model_calls > 1 and s.trials is None  # facts are of the first of several calls
    if samples < FEWEST_SAMPLES or not known or only_first or not all(map(_is_constant, known)):
        return None
    said = f"All {samples} inputs of a batch are equal."
    return found("certain" if not s.learned else "likely", said)


def _is_constant(one: dict[str, Any]) -> bool:
    """Whether an input is the same for all samples: measured by the experiments, and for vectors in the first step."""
    alike = one.get("alike")
    if alike is not None:
        return bool(alike)
    return len(one.get("shape") or []) == 2 and one.get("feature_std_max") == 0


def _never_answered(s: RunEvidence) -> Finding | None:
    """Classes without a sample in a batch that is large enough to have some of each, unless they are rare."""
    known = s.trial("classes") or {}
    many, samples, missing = known.get("outputs", 0), known.get("samples", 0), known.get("missing") or []
    if not missing or samples < SAMPLES_PER_CLASS * many or len(missing) == many - 1:
        return None
    names = listed(missing, _MOST_MISSING, last=", ")
    said = f"None of {samples} targets is of class {names}, and the output has {many} classes."
    return found("note", said)


def _padding_counted(s: RunEvidence) -> Finding | None:
    """Targets that pad sequences to one length, and that the loss counts."""
    known = s.trial("padding") or {}
    if known.get("share", 0.0) < PADDING or not known.get("counted"):
        return None
    share, value = number(100 * known["share"]), f"{known['value']:g}"
    said = f"{share} % of targets are {value} at the ends of sequences of different lengths, and the loss counts them."
    return found("likely", said, advice=f"Leave padding out of the loss: cross_entropy(…, ignore_index={value}).")


def _untied(s: RunEvidence) -> Finding | None:
    """An output layer that begins as a copy of an embedding, and then changes by itself."""
    kinds, norms = s.kinds, s.series("weight_norm")
    weights = [p for p in _drawn_matrices(s) if len(p["shape"]) == 2 and p["requires_grad"]]
    tables = {s.look(p): p["name"] for p in weights if kinds.get(s.owner(p["name"])) == "embedding"}
    for p in weights:
        table = tables.get(s.look(p))
        if table in (None, p["name"]) or kinds.get(s.owner(p["name"])) != "linear":
            continue
        if norms.get(p["name"]) != norms.get(table):
            said = f"{table} and {p['name']} begin with the same values, and are two parameters that change apart."
            return found("likely", said, modules=[s.owner(str(table)), s.owner(p["name"])])
    return None


def _drawn_matrices(s: RunEvidence) -> list[dict[str, Any]]:
    """Weights whose first values are known and differ from each other, so that equal ones are copies."""
    return [p for p in s.parameters if len(p["shape"] or []) > 1 and (p.get("start") or {}).get("std")]


def _never_updated(s: RunEvidence) -> Finding | None:
    """Copies of layers that learn which stay as they began."""
    still = [p for p in _drawn_matrices(s) if p["name"] in s.copies and not s.moves(p["name"])]
    if not still or not s.moved or s.steps < FEWEST_STEPS:
        return None
    said = (
        f"{len(still)} weight matrices begin as copies of others that learn, and are the same after {s.steps} steps: "
        "a reference that is fixed on purpose, or a moving average or target network that was not updated."
    )
    return found("note", said, modules=[s.owner(p["name"]) for p in still])


def _stepped_twice(s: RunEvidence) -> Finding | None:
    """Parameters that two optimisers change in one step."""
    if len(s.facts.get("optimisers") or []) < 2:
        return None
    steps = s.rows.filter(pl.col("defined") & (pl.col("metric") == "update_ratio")).group_by("module", "step").len()
    often = steps.filter(pl.col("len") > 1).group_by("module").len()
    twice = {name for name, many in often.iter_rows() if many >= _ENOUGH}
    if not twice:
        return None
    kinds = " and ".join(one["type"] for one in s.facts["optimisers"])
    said = f"{len(twice)} parameters are changed by more than one optimiser ({kinds}) in the same step."
    order = [p["name"] for p in s.parameters if p["name"] in twice]
    return found("likely" if s.learned else "certain", said, modules=map(s.owner, order))


def _gains_decay(s: RunEvidence) -> Finding | None:
    """Gains of normalisation layers that weight decay shrinks."""
    ends, matrices = _ends(s, _gains(s)), _ends(s, {p["name"] for p in s.parameters if len(p["shape"] or []) > 1})
    shrunk = {name: ratio for name, ratio in ends.items() if ratio < GAINS_SHRUNK}
    decay = max(s.decays, default=0.0)
    if (
        decay == 0
        or s.has_large_steps
        or len(shrunk) <= len(ends) / 2
        or statistics.median([*matrices.values()] or [1.0]) < GAINS_SHRUNK
    ):
        return None
    said = (
        f"The gains of {len(shrunk)} normalisation layers shrink to {number(min(shrunk.values()))} of their initial "
        f"norm; the largest weight decay of a parameter group is {number(decay)}."
    )
    return found("note" if s.learned else "likely", said, modules=map(s.owner, shrunk))


def _ends(s: RunEvidence, names: set[str]) -> dict[str, float]:
    """Parameter → its last norm relative to its first."""
    known = {name: steps for name, steps in s.series("weight_norm").items() if name in names and len(steps) > 1}
    return {name: steps[max(steps)] / steps[min(steps)] for name, steps in known.items() if steps[min(steps)] > 0}


def _gains(s: RunEvidence) -> set[str]:
    return {p["name"] for p in s.parameters if s.kinds.get(s.owner(p["name"])) == "norm" and _is_gain(p)}


def _is_gain(parameter: dict[str, Any]) -> bool:
    start = parameter.get("start") or {}
    return len(parameter["shape"] or []) == 1 and start.get("mean") == 1 and start.get("std") == 0


def _lost_in_evaluation(s: RunEvidence) -> Finding | None:
    """A model that learned, and in eval mode answers its batch no better than a constant."""
    trained, evaluated = s.score_of(s.trial("loss_now")), s.score_of(s.trial("loss_eval"))
    if trained is None or evaluated is None or not s.learned or trained < LEARNED or evaluated >= FAILED:
        return None
    norms = [name for name, kind in s.types.items() if "BatchNorm" in kind]
    if not norms:
        return None
    said = (
        f"On one batch the model is {number(trained)} of the way from a constant answer to the lowest loss in train "
        f"mode, and {number(evaluated)} in eval mode."
    )
    return found("likely", said, modules=norms)


def _warm_up_learns(s: RunEvidence) -> Finding | None:
    """A copy whose rate rises to the run's own learns one batch, and no lower rate is needed."""
    warm, low = (
        s.fit("warm-up"),
        max((known for name in ("0.1", "0.01") if (known := s.fit(name)) is not None), default=-math.inf),
    )
    if s.helps("warm-up") is None or warm is None or warm < low or s.learned:
        return None
    if s.fit_steps("warm-up") <= FIT_STEPS / 2:  # the rate did not rise to the run's own
        return None
    return found("likely", s.compared("warm-up", "if the rate rises from zero to the run's own"))


SETUP_FAULTS = (
    Diagnosis(
        name="constant_input",
        of_degree=True,
        signs=(_inputs_alike,),
        short="Every sample has the same input.",
        measured=f"All inputs of a batch of {FEWEST_SAMPLES} samples or more are equal.",
        why="The answer cannot depend on the sample, so the best answer is one constant.",
        remedy="Look at a few inputs as they enter the model; check indexing, scaling and augmentation.",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        hides_pace=True,
    ),
    Diagnosis(
        name="class_missing",
        signs=(_never_answered,),
        short="The output has classes that no target of a batch names.",
        measured=(
            f"With a batch of {SAMPLES_PER_CLASS} samples or more per class: a class has no sample. It is a note, as "
            "the class may be rare, or the output larger than the task."
        ),
        why="If the data have no sample of a class, the network learns never to answer with it.",
        remedy="Check the mapping from names to class numbers, and that the split of the data kept every class.",
        reference="Buda, Maki & Mazurowski (2018), Class imbalance problem in CNNs, arXiv:1710.05381",
    ),
    Diagnosis(
        name="loss_over_padding",
        signs=(_padding_counted,),
        short="The loss is averaged over padding.",
        measured=(
            "With a batch: targets of sequences end in runs of one value that occurs nowhere else, and the loss has a "
            f"gradient there. These are {PADDING:g} or more of all places."
        ),
        why="Padding is easy to predict: it lowers the loss, and takes a share of each step.",
        remedy="Leave padding out of the loss, with ignore_index or a mask.",
        reference="PyTorch documentation, torch.nn.CrossEntropyLoss, argument ignore_index",
    ),
    Diagnosis(
        name="untied_weights",
        signs=(_untied,),
        short="An embedding and an output layer begin with the same weights, but are not tied.",
        measured="Weights of one shape begin with the same values and have different norms later.",
        why="Each of the two learns from a part of the gradient only, and the model has more parameters than meant.",
        remedy="Assign the parameter itself after all layers are made: head.weight = embedding.weight.",
        reference="Press & Wolf (2017), Using the output embedding to improve language models, arXiv:1608.05859",
    ),
    Diagnosis(
        name="stale_copy",
        signs=(_never_updated,),
        short="A copy of layers that learn keeps its first values.",
        measured=(
            f"Parameters that ask for no gradient begin with the values of others that learn, and have not changed "
            f"after {FEWEST_STEPS} steps or more."
        ),
        why="A moving average or target network that is not updated is the untrained network.",
        remedy=(
            "If the copy is not meant to stay, update it after each step: copy.lerp_(parameter, 1 - decay) under "
            "torch.no_grad()."
        ),
        reference="He et al. (2020), Momentum contrast for unsupervised representation learning, arXiv:1911.05722",
    ),
    Diagnosis(
        name="two_optimisers",
        signs=(_stepped_twice,),
        short="Two optimisers change the same parameters.",
        measured=f"In {_ENOUGH} watched steps or more a parameter is changed by more than one of the optimisers.",
        why="Each step is the sum of two, and the momentum of each optimiser does not include what the other does.",
        remedy="Give each parameter to one optimiser; use parameter groups for different rates.",
        reference="PyTorch documentation, torch.optim, per-parameter options",
        consequences=frozenset({"lr_too_high", "lr_too_low"}),
        hides_pace=True,
    ),
    Diagnosis(
        name="decayed_gains",
        signs=(_gains_decay,),
        short="Weight decay shrinks the gains of normalisation layers.",
        measured=(
            f"With weight decay, most gains that begin at 1 end below {GAINS_SHRUNK:.2g} of it; weight matrices do "
            "not. It is a note if the run learned."
        ),
        why="What a normalisation layer passes on shrinks towards zero, whatever the data are.",
        remedy="Put gains and biases (p.ndim == 1) into a parameter group with weight_decay=0.",
        reference="He et al. (2019), Bag of tricks for image classification, arXiv:1812.01187",
    ),
    Diagnosis(
        name="eval_mismatch",
        signs=(_lost_in_evaluation,),
        short="The model learned in train mode, and fails in eval mode.",
        measured=(
            f"With a batch: the score of the model is at least {LEARNED:g} in train mode and below {FAILED:g} in eval "
            "mode, on the same samples."
        ),
        why="In eval mode batch normalisation uses running statistics, which are unlike those of the batches.",
        remedy="Raise the momentum of batch normalisation (default 0.1), use larger batches, or use GroupNorm.",
        reference="Ioffe (2017), Batch renormalization, arXiv:1702.03275",
    ),
    Diagnosis(
        name="missing_warmup",
        of_degree=True,
        signs=(_warm_up_learns,),
        fits=("warm-up",),
        role="pace",
        consequences=frozenset({"lr_too_high", "loss_spike"}),
        short="The first steps are too large for a network with attention.",
        measured=(
            "With a batch, in networks with attention: fifty steps learn the batch only if the rate rises from zero to "
            "the run's own. A lower rate learns no more."
        ),
        why="Gradients near the output are large at the start, and steps of the full rate destroy the first layers.",
        remedy="Raise the rate linearly over the first steps, as with torch.optim.lr_scheduler.LinearLR.",
        reference="Xiong et al. (2020), On layer normalization in the transformer architecture, arXiv:2002.04745",
    ),
)
"""Causes before their symptoms."""
