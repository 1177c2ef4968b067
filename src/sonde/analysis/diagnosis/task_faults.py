"""Faults of the task: targets, loss and output that do not fit each other."""

from sonde.analysis.diagnosis.finding import FLOW, Diagnosis, Finding, found
from sonde.analysis.diagnosis.run_evidence import BINARY_LOSSES, CLASS_LOSSES, LINEAR_OPS, RunEvidence
from sonde.core.formatting import number

SEVERAL_SAMPLES = 16  # samples of a batch in which equal targets are a fault
OUT_OF_REACH = 0.1  # score that the range of the output may cost
OUT_OF_BOUNDS = 4.0  # the largest squared distance of numbers between −1 and 1
BELOW_ZERO = -2.0  # a cross-entropy below this is wrong
_PAIRWISE_OPS = frozenset(
    {"T", "Transpose", "Mm", "Bmm", "Cdist"}
)  # operations of losses that compare samples on purpose
AMONG_CLASSES = ("classes", "one-hot", "labels", "binary")


def wrong_label_shape(s: RunEvidence) -> Finding | None:
    """Targets that broadcast against the output."""
    if s.trials is None:
        return _broadcasts(s)
    if not s.trial("loss", "ignores_pairing"):
        return None
    shapes = f"{tuple(s.trial('output', 'shape'))} against {tuple(s.trial('targets', 'shape'))}"
    said = f"The loss is the same whichever target belongs to which sample; output and target have the shapes {shapes}."
    return found("wrong_label_shape", "certain", said)


def _broadcasts(s: RunEvidence) -> Finding | None:
    """From the operations of the loss: N outputs became N×N numbers."""
    shape, largest = s.facts.get("output_shape") or [], s.facts.get("loss_shape") or []
    ops = s.loss_ops
    if len(shape) != 2 or shape[1] != 1 or shape[0] < 2 or s.learned or ops & _PAIRWISE_OPS:
        return None
    if largest != [shape[0], shape[0]]:
        return None
    said = f"Outputs of shape {tuple(shape)} become {tuple(largest)} in the loss: each is compared with every target."
    return found("wrong_label_shape", "certain" if s.failed else "likely", said)


def wrong_loss(s: RunEvidence) -> Finding | None:
    """A loss whose minimum is not at the targets."""
    kind = s.trial("targets", "kind")
    if s.trials is None:
        return _below_zero(s)
    if s.trial("loss", "ignores_pairing"):
        return None
    if s.trial("loss", "over_the_batch"):
        said = (
            "Raising one class for all samples changes nothing: the softmax runs over the batch, not over the classes."
        )
        return found("wrong_loss", "certain", said)
    away = s.trial("loss", "pushes_away")
    if away is not None and away > 0.9 and (s.failed or kind in AMONG_CLASSES):
        said = f"Its gradient moves {number(100 * away)} % of outputs away from their targets: the sign is wrong."
        return found("wrong_loss", "certain", said)
    if s.trial("loss", "unbounded"):
        said = "It falls without end as the right output grows: raw scores where it expects log-probabilities."
        return found("wrong_loss", "certain", said)
    broken = s.trial("traced_start", "first_broken")
    if (
        broken is not None
        and broken["module"] == "the loss"
        and broken["operation"] in ("log", "log1p", "sqrt", "pow")
        and (broken["smallest_input"] or 0.0) < 0
    ):
        said = (
            f"It takes the {broken['operation']} of outputs as low as {number(broken['smallest_input'])}, "
            "which it is not made for."
        )
        return found("wrong_loss", "likely", said)
    if not s.failed:
        return None
    if s.trial("loss", "is_improper"):
        said = (
            "Where three targets in ten are 1 it asks for an answer that is neither 0.3 nor its logit: "
            "an absolute error on yes and no."
        )
        return found("wrong_loss", "likely", said)
    if s.trial("loss", "is_quadratic") and kind in ("classes", "one-hot", "labels"):
        many = (s.trial("output", "shape") or [0])[-1]
        if many > 1:
            return found(
                "wrong_loss", "likely", f"It is a squared error, on targets that name classes ({many} outputs)."
            )
    return None


def _below_zero(s: RunEvidence) -> Finding | None:
    """From rows: a cross-entropy far below zero has the wrong sign, or gets no log-probabilities."""
    ops = s.loss_ops
    if not ops & (CLASS_LOSSES | BINARY_LOSSES) or s.last_loss is None or s.last_loss > BELOW_ZERO:
        return None
    raw = "NllLoss" in ops and not ops & {"LogSoftmax", "Log"} and s.facts.get("output_op") not in ("LogSoftmax", "Log")
    why = "it takes raw scores for log-probabilities" if raw else "its sign is wrong"
    return found("wrong_loss", "certain", f"A cross-entropy ends at {number(s.last_loss)}: {why}.")


def wrong_output_activation(s: RunEvidence) -> Finding | None:
    """A last activation that cannot reach the minimum of the loss.  A model that a linear head follows is not asked."""
    if (s.loss_ops | {*(s.trial("output", "operations_after") or [])}) & {*LINEAR_OPS}:
        return None
    operation = str(s.trial("output", "operation") or s.facts.get("output_op") or "")
    floor, trivial, reach = (s.trial("loss", key) for key in ("floor", "trivial", "floor_in_range"))
    modules = [m["name"] for m in s.leaves[-1:] if m.get("kind") == "activation"]
    bounded = operation in ("Softmax", "Sigmoid", "Tanh", "Relu", "LogSoftmax", "Softplus", "Threshold")
    known = None not in (floor, trivial, reach)
    if bounded and known and trivial > floor and reach - floor > OUT_OF_REACH * (trivial - floor):
        said = (
            f"With any outputs the loss falls to {number(floor)}, with those of the last activation "
            f"({operation.lower()}) to no less than {number(reach)}; a constant gives {number(trivial)}."
        )
        return found("wrong_output_activation", "certain", said, modules=modules)
    beyond = _out_of_bounds(s, operation)
    if beyond:
        return found("wrong_output_activation", "certain", beyond, modules=modules)
    shape, after = s.facts.get("output_shape") or [], s.loss_ops
    own = "LogSoftmax" in after
    said = ""
    if s.trial("output", "sums_over_batch"):
        said = "The softmax runs over the samples of the batch, not over the outputs of a sample."
    elif operation == "Softmax" and shape and shape[-1] == 1:
        said = "A softmax over one unit is 1 whatever it is given."
    elif operation in ("Softmax", "Sigmoid", "Tanh") and own:
        said = f"The model ends in {operation.lower()}, and the loss applies a softmax of its own."
    elif operation == "Sigmoid" and "BinaryCrossEntropyWithLogits" in after:
        said = "The model ends in a sigmoid, and the loss applies another."
    if said:
        return found("wrong_output_activation", "certain", said, modules=modules)
    if operation == "Softmax" and "BinaryCrossEntropy" in after and s.failed and s.trials is None:
        said = "A softmax makes the outputs of a sample compete, and the loss scores each by itself."
        return found("wrong_output_activation", "likely", said, modules=modules)
    if operation in ("Relu", "Threshold") and (
        own or "NllLoss" in after or s.trial("targets", "kind") in ("classes", "one-hot")
    ):
        said = "Class scores end in ReLU: a class below zero gets no gradient."
        return found("wrong_output_activation", "likely", said, modules=modules)
    return None


def _out_of_bounds(s: RunEvidence, operation: str) -> str:
    """A sentence, if the loss is a distance that outputs and targets between −1 and 1 cannot have."""
    if operation not in ("Softmax", "Sigmoid", "Tanh") or not s.is_distance or s.trials is not None:
        return ""
    if s.last_loss is None or s.last_loss <= OUT_OF_BOUNDS:
        return ""
    return (
        f"The last activation ({operation.lower()}) stays between −1 and 1, and the loss, a distance, at "
        f"{number(s.last_loss)}: the targets lie outside."
    )


def wrong_labels(s: RunEvidence) -> Finding | None:
    """Targets that are constant, or unrelated to the inputs."""
    targets = s.targets
    samples = s.trial("samples") or next(iter(targets.get("shape") or [0]), 0)
    outputs = s.trial("output", "shape") or s.facts.get("output_shape") or []
    if samples >= SEVERAL_SAMPLES and targets.get("std") == 0:
        several = f", where there are {outputs[-1]} outputs" if len(outputs) > 1 and outputs[-1] > 1 else ""
        said = f"All targets of a batch of {samples} are {number(targets['mean'])}{several}."
        return found("wrong_labels", "certain", said)
    near, score = s.trial("neighbours"), s.score
    if targets.get("kind") == "real":
        return _unrelated_numbers(s)
    alone = max((known for known in (s.fit("1"), s.fit("10")) if known is not None), default=None)
    of_classes = targets.get("kind") in ("classes", "one-hot", "binary")
    if near is None or not of_classes or alone is None or score is None or s.steps < 100:
        return None
    noise = 2 * (max(near["by_chance"], 0.25) / near["n"]) ** 0.5
    if alone > 0.5 and score < 0.1 and abs(s.fell or 0.0) < 0.2 and near["agree"] < near["by_chance"] + noise:
        said = (
            f"One batch is memorised in fifty steps (to {number(alone)} of the way), the run "
            f"is at {number(score)}; nearest inputs share a label in {number(100 * near['agree'])} "
            f"% of cases, any two in {number(100 * near['by_chance'])} %."
        )
        return found("wrong_labels", "likely", said)
    return None


def _unrelated_numbers(s: RunEvidence) -> Finding | None:
    """Numeric targets that the batch memorises, but that neither the nearest input nor a linear fit predicts."""
    near = s.trial("relation")
    alone = max((known for known in (s.fit("1"), s.fit("10")) if known is not None), default=None)
    if not near or "n" not in near or alone is None or s.score is None or s.steps < 100:
        return None
    noise = 2 / near["n"] ** 0.5
    unrelated = max(near["nearest"], near["line"]) < noise
    if alone > 0.5 and s.score < 0.1 and abs(s.fell or 0.0) < 0.2 and unrelated:
        said = (
            f"One batch is memorised in fifty steps (to {number(alone)} of the way), the run is at "
            f"{number(s.score)}; targets of nearest inputs correlate by {number(near['nearest'])}, and a line through "
            f"the others foretells a target with a correlation of {number(near['line'])} (n = {near['n']})."
        )
        return found("wrong_labels", "likely", said)
    return None


TASK_FAULTS = (
    Diagnosis(
        wrong_label_shape,
        short="The target's shape or encoding broadcasts against the output, or is misread.",
        measured=(
            "The loss of random outputs stays the same (to 1e-5) when targets are handed to other "
            "samples, though it changes with the targets themselves. Without a batch: N outputs of one "
            "number each become N×N numbers in the loss."
        ),
        why="Every output is compared with every target, so the best answer is one constant.",
        remedy="Give the target the shape of the output: y.view_as(output).",
        reference="Humbatova et al. (2020), Taxonomy of real faults in deep learning systems, arXiv:1910.11015",
        hides_pace=True,
    ),
    Diagnosis(
        wrong_output_activation,
        short="The last activation does not fit the targets' range or the loss.",
        measured=(
            "With outputs of its own choice the loss falls to a floor; with outputs that the last activation can "
            f"give it stays at least {100 * OUT_OF_REACH:g} % of the way above it. Without a batch: softmax or "
            "sigmoid before a loss that applies its own, softmax over one unit, or a mean distance above "
            f"{OUT_OF_BOUNDS:g} from outputs between −1 and 1."
        ),
        why="The answers that the loss asks for lie outside the range of the output, or where its slope is almost 0.",
        remedy=(
            "Hand raw outputs to a loss that applies its own softmax or sigmoid; leave the output "
            "linear for unbounded targets."
        ),
        reference="Bishop (2006), Pattern recognition and machine learning, section 4.3.6",
        explains=FLOW | {"lr_too_low"},
        hides_pace=True,
    ),
    Diagnosis(
        wrong_loss,
        short="The loss does not fit the task or the output: wrong kind, wrong axis, wrong sign.",
        measured=(
            "The loss by itself, on free outputs: raising a class for all samples changes nothing "
            "(softmax over the batch); its gradient leads away from the targets; three ones in ten "
            "ask for an answer other than 0.3; it is squared or absolute error on classes and the "
            f"run failed. Without a batch: a cross-entropy that ends below −{-BELOW_ZERO:g}."
        ),
        why="The network is driven to answers that are not the ones that are scored.",
        remedy=(
            "Take the likelihood of the targets: cross-entropy on raw scores for classes, binary "
            "cross-entropy with logits for yes or no, squared error for numbers."
        ),
        reference="Gneiting & Raftery (2007), Strictly proper scoring rules, prediction, and estimation, JASA 102",
        explains=frozenset({"nan_origin"}),
    ),
    Diagnosis(
        wrong_labels,
        short="Labels that do not belong to the inputs: permuted, constant, or destroyed by preprocessing.",
        measured=(
            f"All targets of a batch of {SEVERAL_SAMPLES} or more are the same; or one batch is memorised "
            "at the run's own rate or ten times it, while after 100 steps the run is no better than a "
            "constant and nearest inputs share a label no more often than any two (of numbers: neither "
            "the nearest input nor a line through the others foretells a target)."
        ),
        why="What does not depend on the input can only be memorised.",
        remedy=(
            "Look at a few samples beside their labels as they enter the loss; shuffle inputs and "
            "labels with one permutation, and scale inputs only."
        ),
        reference=(
            "Zhang et al. (2017), Understanding deep learning requires rethinking generalization, arXiv:1611.03530"
        ),
        is_pace=True,
    ),
)
"""Causes before their symptoms."""
