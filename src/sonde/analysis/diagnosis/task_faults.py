"""Faults of the task: targets, loss and output that do not fit each other."""

import math
from collections.abc import Callable

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, Sign, found
from sonde.analysis.diagnosis.flow_symptoms import flows
from sonde.analysis.diagnosis.run_evidence import DONE, FAILED, FEWEST_STEPS, POLICY_OPS, RunEvidence
from sonde.analysis.diagnosis.run_record import (
    BINARY_LOSSES,
    CLASS_LOSSES,
    DISTANCE_LOSSES,
    EARLY,
    LINEAR_OPS,
    SHAPE_OPS,
)
from sonde.core.formatting import number

SEVERAL_SAMPLES = 16  # samples of a batch in which equal targets are a fault
OUT_OF_REACH = 0.1  # score that the range of the output may cost
OUT_OF_BOUNDS = 4.0  # the largest squared distance of numbers between −1 and 1
BELOW_ZERO = -2.0  # a cross-entropy below this is wrong
AWAY = 5.0  # times its first value that a loss falls below zero
STAYS = 0.2  # share by which a loss that stays may rise or fall
USUAL_STEP = 0.1  # ‖ΔW‖/‖W‖ of the first steps, at most
FAR_MOVED = 0.5  # how far the weights moved, in their norms
_DISTANCE_OPS = frozenset({"Sub", "Rsub", "Pow", "Abs", "Mul", "Mean", "Sum", "Expand", "Squeeze"}) | DISTANCE_LOSSES
"""Operations of a distance; losses that compare samples on purpose have others, such as Transpose."""
_REMEDIES = ("0.1", "0.01", "no decay", "fresh", "standardised", "scaled targets", "warm-up")
MEMORISED = 0.4  # score of fifty steps on one batch
MAJORITY = 0.8  # share of one class
_SMOOTHING = frozenset({"Sum", "Neg", "MaskedFill"})  # operations of label smoothing, beside the log-softmax
_SQUASHED = ("Softmax", "Sigmoid", "Tanh")
_BOUNDED = (*_SQUASHED, "Relu", "LogSoftmax", "Softplus", "Threshold")
_RANGES = {"Softmax": (0, 1), "Sigmoid": (0, 1), "Tanh": (-1, 1), "Relu": (0, math.inf), "Softplus": (0, math.inf)}
ASK_A_BATCH = (
    "Call watch.diagnose(batch=(x, y)): short fits to one batch tell rate, labels, loss and network apart. Look at a "
    "few samples beside their labels as they enter the loss."
)
AMONG_CLASSES = ("classes", "one-hot", "labels", "binary")


def _ignores_pairing(s: RunEvidence) -> Finding | None:
    """Targets that broadcast against the output."""
    if not s.trial("loss", "ignores_pairing") or (s.learned and s.beats_a_constant):
        return None
    shapes = f"{tuple(s.trial('output', 'shape'))} against {tuple(s.trial('targets', 'shape'))}"
    said = f"The loss is the same whichever target belongs to which sample; output and target have the shapes {shapes}."
    return found("certain", said)


def _broadcasts(s: RunEvidence) -> Finding | None:
    """From the operations of the loss: N outputs became N×N numbers."""
    shape, largest = s.facts.get("output_shape") or [], s.facts.get("loss_shape") or []
    if s.loss_ops - _DISTANCE_OPS:
        return None
    if len(shape) != 2 or shape[1] != 1 or shape[0] < 2 or largest != [shape[0], shape[0]]:
        return None
    said = f"Outputs of shape {tuple(shape)} become {tuple(largest)} in the loss: each is compared with every target."
    return found("certain" if s.failed else "likely", said)


def _over_the_batch(s: RunEvidence) -> Finding | None:
    by_graph = s.facts.get("loss_axis") == [0, 2] and "NllLoss" in s.loss_ops
    if not (by_graph or s.trial("loss", "over_the_batch")):
        return None
    said = "Raising one class for all samples changes nothing: the softmax runs over the batch, not over the classes."
    return found("certain", said)


def _pushes_away(s: RunEvidence) -> Finding | None:
    away = s.trial("loss", "pushes_away")
    fits = _last_operation(s) in (*LINEAR_OPS, *_BOUNDED)  # else 1 may stand for a small output, such as a distance
    is_wrong = s.failed and (fits or s.broke is None)
    if away is None or away <= 0.9 or not (is_wrong or (s.last_loss or 0.0) < 0):
        return None
    said = f"Its gradient moves {number(100 * away)} % of outputs away from their targets: the sign is wrong."
    return found("certain", said)


def _unbounded(s: RunEvidence) -> Finding | None:
    if not s.trial("loss", "unbounded"):
        return None
    said = "It falls without end as the right output grows: raw scores where it expects log-probabilities."
    return found("certain", said)


def _breaks_on_outputs(s: RunEvidence) -> Finding | None:
    broken = s.trial("traced_start", "first_broken")
    if broken is None or broken["module"] != "the loss" or (broken["smallest_input"] or 0.0) >= 0:
        return None
    if broken["operation"] not in ("log", "log1p", "sqrt", "pow"):
        return None
    lowest = number(broken["smallest_input"])
    said = f"It takes the {broken['operation']} of outputs as low as {lowest}, which it is not made for."
    return found("likely", said)


def _improper(s: RunEvidence) -> Finding | None:
    if not s.failed or not s.trial("loss", "is_improper"):
        return None
    said = (
        "Where three targets in ten are 1 it asks for an answer that is neither 0.3 nor its logit, and for the same "
        "one where four are: an absolute error on yes and no."
    )
    return found("likely", said)


def _squared_on_classes(s: RunEvidence) -> Finding | None:
    many = (s.trial("output", "shape") or [0])[-1]
    of_classes = s.trial("targets", "kind") in ("classes", "one-hot", "labels")
    if not s.failed or not s.trial("loss", "is_quadratic") or not of_classes or many < 2:
        return None
    return found("likely", f"It is a squared error, on targets that name classes ({many} outputs).")


def _below_zero(s: RunEvidence) -> Finding | None:
    """From rows: a cross-entropy far below zero has the wrong sign, or gets no log-probabilities; a mean distance below
    zero has the wrong sign.
    """
    ops, last = s.loss_ops, s.last_loss or 0.0
    if ops & (CLASS_LOSSES | BINARY_LOSSES) and last <= BELOW_ZERO and s.trial("loss", "pushes_away") is None:
        logs = {"LogSoftmax", "Log"}
        raw = "NllLoss" in ops and not logs & {*ops, s.facts.get("output_op")}
        why = "it takes raw scores for log-probabilities" if raw else "its sign is wrong"
        return found("certain", f"A cross-entropy ends at {number(last)}: {why}.")
    if last < 0 and ops & DISTANCE_LOSSES and not ops - DISTANCE_LOSSES - SHAPE_OPS - {"Neg", "Mul"}:
        return found("certain", f"A distance ends at {number(last)}: its sign is wrong.")
    return None


def _runs_away(s: RunEvidence) -> Finding | None:
    """From rows: a loss that falls far below zero while linear outputs grow without end."""
    sizes = s.series("out_rms").get("(model)", {})
    first, last = s.first_loss or 0.0, s.last_loss or 0.0
    if s.trials is not None or s.model_calls > 1 or s.loss_ops & {*POLICY_OPS, *LINEAR_OPS}:
        return None
    if -last <= AWAY * abs(first):
        return None
    if _last_operation(s) not in LINEAR_OPS or len(sizes) < 2 or sizes[max(sizes)] < 10 * sizes[min(sizes)]:
        return None
    grown = number(sizes[max(sizes)] / sizes[min(sizes)])
    return found("likely", f"It falls from {number(first)} to {number(last)}, while outputs grow {grown} times.")


def _has_no_head_after(s: RunEvidence) -> bool:
    """Whether nothing with weights follows the model: then its last operation is that of the output."""
    return not (s.loss_ops | {*(s.trial("output", "operations_after") or [])}) & {*LINEAR_OPS}


def _last_operation(s: RunEvidence) -> str:
    return str(s.trial("output", "operation") or s.facts.get("output_op") or "")


def _last_activation(s: RunEvidence) -> list[str]:
    return [m["name"] for m in s.leaves[-1:] if m.get("kind") == "activation"]


def _out_of_reach(s: RunEvidence) -> Finding | None:
    """Outputs of its own choice have a lower loss than any that the last activation can give."""
    floor, trivial, reach = (s.trial("loss", key) for key in ("floor", "trivial", "floor_in_range"))
    bounded = _last_operation(s) in _BOUNDED and (_last_operation(s) != "LogSoftmax" or s.is_distance)
    if not bounded or None in (floor, trivial, reach):  # a likelihood is made for logarithms of probabilities
        return None
    if s.leaves_nothing or trivial <= floor or reach - floor <= OUT_OF_REACH * (trivial - floor):
        return None
    said = (
        f"With any outputs the loss falls to {number(floor)}, with those of the last activation "
        f"({_last_operation(s).lower()}) to no less than {number(reach)}; a constant gives {number(trivial)}."
    )
    return found("certain", said, modules=_last_activation(s))


def _out_of_bounds(s: RunEvidence) -> Finding | None:
    """From rows: targets of a distance outside the range of the last activation, or a distance that it cannot have."""
    operation = _last_operation(s)
    if not s.is_distance or s.trials is not None or operation not in _RANGES:
        return None
    low, high = _RANGES[operation]
    least, most = s.targets.get("min", low), s.targets.get("max", high)
    if min(least - low, high - most) < -OUT_OF_REACH:
        where = f"targets reach from {number(least)} to {number(most)}"
    elif not s.learned and high - low < math.inf and (s.last_loss or 0.0) > OUT_OF_BOUNDS:
        where = f"the loss is {number(s.last_loss or 0.0)}"
    else:
        return None
    said = f"The last activation ({operation.lower()}) stays between {low:g} and {high:g}, and {where}."
    return found("likely" if s.learned else "certain", said, modules=_last_activation(s))


def _of_activation(level: str, said: str, shows: Callable[[RunEvidence], object]) -> Sign:
    """A sign of the last activation, said in one sentence."""
    return lambda s: found(level, said, modules=_last_activation(s)) if shows(s) else None


_SOFTMAX_OVER_SAMPLES = _of_activation(
    "certain",
    "The softmax runs over the samples of the batch, not over the outputs of a sample.",
    lambda s: s.trial("output", "sums_over_batch"),
)
_SOFTMAX_OVER_ONE = _of_activation(
    "certain",
    "A softmax over one unit is 1 whatever it is given.",
    lambda s: _last_operation(s) == "Softmax" and (s.facts.get("output_shape") or [0])[-1] == 1,
)
_COMPETING_LABELS = _of_activation(
    "likely",
    "A softmax makes the outputs of a sample compete, and the loss scores each by itself.",
    lambda s: _last_operation(s) == "Softmax" and "BinaryCrossEntropy" in s.loss_ops and s.failed and s.trials is None,
)
_SCORES_END_IN_RELU = _of_activation(
    "likely",
    "Class scores end in ReLU: a class below zero gets no gradient.",
    lambda s: (
        _last_operation(s) in ("Relu", "Threshold")
        and (s.loss_ops & {"LogSoftmax", "NllLoss"} or s.trial("targets", "kind") in ("classes", "one-hot"))
    ),
)


def _activated_twice(s: RunEvidence) -> Finding | None:
    """The model, or the loop after it, applies the softmax or sigmoid that the loss applies, too."""
    last, modules = _last_operation(s), _last_activation(s)
    for own, before in (("LogSoftmax", _SQUASHED), ("BinaryCrossEntropyWithLogits", ("Sigmoid",))):
        between = _operation_before(s, own)
        first = between or last
        if own in s.loss_ops and first in before:
            where = "The loop applies" if between else "The model ends in"
            said = (
                f"{where} {first.lower()}, and the loss applies {'a softmax' if own == 'LogSoftmax' else 'a sigmoid'}."
            )
            advice = f"Hand raw outputs to the loss: remove the {first.lower()} before it."
            return found("certain", said, modules=[] if between else modules, advice=advice)
    return None


def _operation_before(s: RunEvidence, own: str) -> str:
    """The operation of the loop, if there is one, that computes what this operation of the loss gets."""
    known = [kind for kind in s.facts.get("loss_ops") or [] if kind not in SHAPE_OPS | _SMOOTHING]
    place = known.index(own) + 1 if own in known else len(known)
    return known[place] if place < len(known) else ""


def _all_the_same(s: RunEvidence) -> Finding | None:
    """Targets that are all equal, in the batch and in all steps that were seen."""
    targets = s.targets
    samples = s.trial("samples") or next(iter(targets.get("shape") or [0]), 0)
    outputs = s.trial("output", "shape") or s.facts.get("output_shape") or []
    if samples < SEVERAL_SAMPLES or targets.get("std") != 0 or _varies(s) or _jumps(s) or _is_on_purpose(s):
        return None
    several = f", where there are {outputs[-1]} outputs" if len(outputs) > 1 and outputs[-1] > 1 else ""
    return found("certain", f"All targets of a batch of {samples} are {number(targets['mean'])}{several}.")


def _is_on_purpose(s: RunEvidence) -> bool:
    """Whether targets may be constant on purpose: outputs are compared, and have not come near a constant answer."""
    return s.compares and (s.fell or 0.0) < DONE


def _varies(s: RunEvidence) -> bool:
    """Whether other calls of the loss, or of the model, have other targets: a discriminator's, or sorted samples."""
    means = {one.get("mean") for one in s.facts.get("targets") or []} | {*s.of_run("target_mean").values()}
    spreads = [one.get("std") for one in s.facts.get("targets") or []]
    return len(means) > 1 or any(spreads) or s.plays


def _memorised(s: RunEvidence) -> float | None:
    """How far one batch is learned in fifty steps, if the run itself, after 100 steps, is no better than a constant."""
    alone = max((known for known in (s.fit("1"), s.fit("10")) if known is not None), default=None)
    if alone is None or alone <= MEMORISED or s.score is None or s.score >= FAILED or s.steps < FEWEST_STEPS:
        return None
    return None if abs(s.fell or 0.0) >= STAYS or s.is_unmoved else alone


def _unrelated(s: RunEvidence) -> Finding | None:
    """Targets that inputs do not tell of, in a run that learns nothing although it could."""
    told, said = _relation(s)
    could = None if told else _could(s)
    if could is None:
        return None
    advice = ASK_A_BATCH if told is None and s.trials is None else ""
    return found("likely", could, said, advice=advice, is_rest=True)


def _relation(s: RunEvidence) -> tuple[bool | None, str]:
    """Whether inputs tell of their targets, and a sentence that they do not; None where they cannot be compared."""
    classes, numbers, kind = s.of_pairs("nearest") or {}, s.of_pairs("relation") or {}, _kind(s)
    if classes and kind in ("classes", "one-hot", "binary") and classes["by_chance"] < 1:
        agree, chance = classes["agree"], classes["by_chance"]
        noise = 2 * (max(chance, 0.25) / classes["n"]) ** 0.5
        said = f"Nearest inputs share a label in {number(100 * agree)} % of cases, any two in {number(100 * chance)} %."
        return max(agree, classes.get("line", 0.0)) >= chance + noise, said
    if "n" in numbers and kind == "real":
        near, line = numbers["nearest"], numbers["line"]
        said = (
            f"Targets of nearest inputs correlate by {number(near)}, and a line through the others predicts a target "
            f"with a correlation of {number(line)} (n = {numbers['n']})."
        )
        return max(near, line) >= 2 / numbers["n"] ** 0.5, said
    compared = "n" in (classes or numbers) or kind == "none"
    return True if compared else None, "What is learned from one batch does not help with the next."


def _kind(s: RunEvidence) -> str | None:
    """The kind of the targets; None where they were not seen."""
    kind: str | None = s.of_pairs("kind") if s.trials is None else s.targets.get("kind")
    return kind


def _could(s: RunEvidence) -> str | None:
    """That the run learns nothing although it could, as a sentence: it memorises one batch; without experiments, its
    weights moved far in steps of a usual size, and signal and gradient reach all layers.
    """
    if s.beats_a_constant and (s.trials is None or (s.score or 0.0) > 0):  # else labels are memorised by and by
        return None
    if s.trials is None:
        return _moved_for_nothing(s)
    alone = _memorised(s)
    if alone is None:  # a batch may be too hard for so few steps; then no other remedy may help
        return None if s.helps(*_REMEDIES) else _moved_for_nothing(s)
    return (
        f"One batch is memorised in {s.fit_steps()} steps (to {number(alone)} of the way), the run is at "
        f"{number(s.score or 0.0)}."
    )


def _moved_for_nothing(s: RunEvidence) -> str | None:
    stays = s.failed and s.broke is None and abs(s.fell or 0.0) < STAYS
    known = s.constant_loss is not None or s.targets  # else targets may move, or be those of a player
    if s.steps < FEWEST_STEPS or not (known and stays and _moved_far(s) and flows(s)):
        return None
    return (
        f"All {s.steps} steps together move weights by {number(s.moved or 0.0)} of their norm, signal and gradient "
        f"reach every layer, and the loss stays at {number(s.last_loss or 0.0, 3)}."
    )


def _moved_far(s: RunEvidence) -> bool:
    return (s.moved or 0.0) >= FAR_MOVED and (s.step_size or 0.0) < USUAL_STEP


def _one_class_a_batch(s: RunEvidence) -> Finding | None:
    """Batches that each hold one class, and not the same one: samples sorted by class."""
    spreads, means = s.of_run("target_spread"), s.of_run("target_mean")
    single = [step for step, spread in spreads.items() if spread == 0]
    if len(spreads) < EARLY or len(single) < 0.8 * len(spreads):
        return None
    if len({means[step] for step in single}) < 2:
        return None
    if s.model_calls > 1 or _kind(s) == "real" or math.prod(s.targets.get("shape") or [0]) < SEVERAL_SAMPLES:
        return None
    said = (
        f"In {len(single)} of {len(spreads)} watched steps all targets of a batch are equal, and not always the same."
    )
    return found("likely", said)


def _jumps_between_classes(s: RunEvidence) -> Finding | None:
    """A batch of one class, and a loss that falls to nothing and jumps up again: samples sorted by class."""
    targets = s.trial("targets") or {}
    samples = s.trial("samples") or 0
    if samples < SEVERAL_SAMPLES or targets.get("std") != 0 or targets.get("kind") not in AMONG_CLASSES:
        return None
    if not _jumps(s) or s.plays:
        return None
    top = number(max(s.losses.values()))
    said = (
        f"All {samples} targets of the batch are equal, and the loss falls below a tenth and jumps up to {top} again."
    )
    return found("likely", said)


def _jumps(s: RunEvidence) -> bool:
    """Whether the loss, after it fell below a tenth of the first, rises above the first."""
    first, low = s.first_loss or 0.0, False
    for loss in s.losses.values():
        low = low or loss < first / 10
        if low and loss > first > 0:
            return True
    return False


def _majority(s: RunEvidence) -> Finding | None:
    """A run that ends no better than a constant, on targets that are mostly one class."""
    share = s.targets.get("top_share")
    if share is None or share < MAJORITY or share == 1 or s.beats_a_constant is not False:
        return None
    if s.targets.get("kind", "classes") not in ("classes", "binary"):
        return None
    said = f"{number(100 * share)} % of targets are of one class, and the run is no better than that answer."
    return found("likely", said)


def _leaks(s: RunEvidence) -> Finding | None:
    """A feature of the input that equals the target."""
    known = s.of_pairs("leak")
    if not known or not s.learned:
        return None
    said = f"Feature {known['feature']} of the inputs predicts the target alone (n = {known['n']})."
    return found("likely", said)


TASK_FAULTS = (
    Diagnosis(
        name="wrong_label_shape",
        signs=(_ignores_pairing, _broadcasts),
        short="The target's shape or encoding broadcasts against the output, or is misread.",
        measured=(
            "Permuting the targets over the samples does not change the loss of random outputs (to 1e-5), but "
            "other targets change it. Without a batch: N outputs of one number each become N×N numbers in the loss."
        ),
        why="Every output is compared with every target, so the best answer is one constant.",
        remedy="Give the target the shape of the output: y.view_as(output).",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        hides_pace=True,
    ),
    Diagnosis(
        name="wrong_output_activation",
        signs=(
            _out_of_reach,
            _out_of_bounds,
            _SOFTMAX_OVER_SAMPLES,
            _SOFTMAX_OVER_ONE,
            _activated_twice,
            _COMPETING_LABELS,
            _SCORES_END_IN_RELU,
        ),
        asked=_has_no_head_after,
        consequences=frozenset({"lr_too_low"}),
        short="The last activation does not fit the targets' range or the loss.",
        measured=(
            "With free outputs the loss falls to a floor. With outputs in the range of the last activation it stays "
            f"above the floor by more than {100 * OUT_OF_REACH:g} % of the way to the loss of a constant answer. "
            "Without a batch: softmax or "
            "sigmoid before a loss that applies its own, softmax over one unit, or a mean distance above "
            f"{OUT_OF_BOUNDS:g} from outputs between −1 and 1."
        ),
        why="The best outputs lie outside the range of the last activation, or where its slope is almost 0.",
        remedy=(
            "Pass raw outputs to a loss that applies its own softmax or sigmoid; leave the output "
            "linear for unbounded targets."
        ),
        reference="Bishop (2006), Pattern recognition and machine learning, section 4.3.6",
        hides_pace=True,
    ),
    Diagnosis(
        name="wrong_loss",
        signs=(
            _over_the_batch,
            _pushes_away,
            _unbounded,
            _breaks_on_outputs,
            _improper,
            _squared_on_classes,
            _below_zero,
            _runs_away,
        ),
        asked=lambda s: not s.trial("loss", "ignores_pairing") and not s.has_broken_inputs,
        short="The loss does not fit the task or the output: wrong kind, wrong axis, wrong sign.",
        measured=(
            "The loss function alone, on free outputs: raising the score of a class for all samples does not change "
            "it (softmax over the batch); its gradient leads away from the targets; the best answer for 30 % "
            "of ones is neither 0.3 nor its logit, and is the same for 40 %; it is a squared error on classes and the "
            f"run failed. Without a batch: a cross-entropy that ends below −{-BELOW_ZERO:g}; a loss that ends {AWAY:g} "
            "times its first value below zero while linear outputs grow tenfold; a log-softmax over the first of two "
            "axes."
        ),
        why="The network learns other answers than those that are scored.",
        remedy=(
            "Use the negative log-likelihood of the targets: cross-entropy on raw scores for classes, binary "
            "cross-entropy with logits for yes or no, squared error for numbers."
        ),
        reference="Gneiting & Raftery (2007), Strictly proper scoring rules, prediction, and estimation, JASA 102",
    ),
    Diagnosis(
        name="wrong_labels",
        signs=(_all_the_same, _unrelated),
        role="pace",
        consequences=frozenset({"not_learning"}),
        short="Labels that do not belong to the inputs: permuted, constant, or destroyed by preprocessing.",
        measured=(
            f"All targets of a batch of {SEVERAL_SAMPLES} or more are the same, and outputs are not products or "
            "distances that a constant answer cannot reach. Or the network memorises one batch "
            "at the run's own rate or ten times it, but after 100 steps the run is no better than a constant, and "
            "the nearest inputs share a label no more often than any two inputs (for numbers: neither the nearest "
            "input nor a linear fit predicts a target). Without a batch, or if no other remedy helps: weights moved by "
            f"{FAR_MOVED:g} of their norm in steps below {USUAL_STEP:g} of it, signal and gradient reach every layer, "
            f"and the loss changed by less than {100 * STAYS:g} %."
        ),
        why="Labels that do not depend on the input can only be memorised.",
        remedy=(
            "Look at a few samples beside their labels as they enter the loss; shuffle inputs and "
            "labels with one permutation, and scale inputs only."
        ),
        reference=(
            "Zhang et al. (2017), Understanding deep learning requires rethinking generalization, arXiv:1611.03530"
        ),
    ),
    Diagnosis(
        name="data_order",
        signs=(_one_class_a_batch, _jumps_between_classes),
        short="Batches of one class each: samples are sorted.",
        measured=(
            f"In 80 % of the watched steps all targets of a batch of {SEVERAL_SAMPLES} or more are equal, though they "
            "differ between steps. Targets are seen where the loss is a module. Otherwise all targets of the batch are "
            "equal, and the loss falls below a tenth of the first loss and rises above the first again."
        ),
        why="Each step teaches the network to answer with the class of its batch, and to forget the others.",
        remedy="Shuffle the training set: DataLoader(…, shuffle=True).",
        reference="Bengio (2012), Practical recommendations for gradient-based training, arXiv:1206.5533",
    ),
    Diagnosis(
        name="class_imbalance",
        signs=(_majority,),
        asked=lambda s: s.failed and s.steps >= FEWEST_STEPS,
        short="Most targets are of one class, and the network always answers with it.",
        measured=(
            f"{100 * MAJORITY:g} % of targets or more are of one class, and the loss ends no lower than that of the "
            "best constant answer."
        ),
        why="The majority's answer has a low loss, and the gradient of rare classes is small.",
        remedy="Weigh the classes in the loss by the inverse of their shares, or sample batches with equal shares.",
        reference="Buda, Maki & Mazurowski (2018), Class imbalance problem in CNNs, arXiv:1710.05381",
    ),
    Diagnosis(
        name="target_leakage",
        signs=(_leaks,),
        short="A feature of the inputs equals the target.",
        measured=(
            "One input feature gives the target exactly, in a batch or in the first step, and the run learned. For "
            "classes chance is excluded: the product over classes of n samples of Σ pⁿ, p the shares of the feature's "
            "values, times the number of features, is below 0.01."
        ),
        why="The network copies the feature, and fails where the feature is not known.",
        remedy="Remove the feature from the inputs.",
        reference="Kaufman et al. (2012), Leakage in data mining, ACM TKDD 6",
    ),
)
"""Causes before their symptoms."""
