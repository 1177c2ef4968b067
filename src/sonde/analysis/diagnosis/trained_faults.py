"""Whether a run learned, and of a trained one the four questions of the audit as findings.

`analysis/questions.py` has the thresholds of the questions.
"""

import math
from typing import TYPE_CHECKING

from sonde.analysis.diagnosis.finding import Diagnosis, Finding, found
from sonde.analysis.diagnosis.flow_symptoms import flows
from sonde.analysis.diagnosis.loop_faults import share_fresh
from sonde.analysis.diagnosis.run_evidence import FAILED, FEWEST_STEPS, LEARNED, RunEvidence
from sonde.analysis.diagnosis.run_record import BINARY_LOSSES, CLASS_LOSSES
from sonde.analysis.diagnosis.task_faults import ASK_A_BATCH
from sonde.core.formatting import Thresholds, number

if TYPE_CHECKING:
    from sonde.analysis.questions import AuditAnswer, LayerCredit


def _asks_whether_it_learned(s: RunEvidence) -> bool:
    """Frozen blocks are a baseline and are not asked; nor are runs that ended early."""
    if s.audited is not None:
        return s.audited.run is not None and s.audited.rule.rule != "frozen" and s.steps >= FEWEST_STEPS
    return s.steps > 0 and s.broke is None and s.is_measure


def _no_better_than_a_constant(s: RunEvidence) -> Finding | None:
    """A loss that ends near that of a constant answer."""
    chance = s.constant_loss
    if chance is None or s.last_loss is None or not s.failed or s.success is not None or s.has_further_terms:
        return None
    if s.audited is None and s.beats_a_constant:
        return None
    said = (
        f"After {s.steps} steps the loss{'' if s.audited is None else ' on training samples'} is "
        f"{number(s.last_loss, 3)}{_on_test(s)}; one constant answer has {number(chance, 3)}."
    )
    hits = s.of_run("train_acc")
    more = [f"{number(100 * hits[max(hits)])} % of the answers to training samples are right."] if hits else []
    level = "likely" if s.steps >= FEWEST_STEPS else "note"
    return found(level, said, *more, step=_lost_at(s, chance), advice=_next(s))


def _next(s: RunEvidence) -> str:
    """What tells the causes of this run apart; empty for a deep network, for which the general remedy is."""
    if s.audited is None and s.trials is None:
        return ASK_A_BATCH
    if len(s.depth) >= _DEEP and not flows(s):
        return ""
    learns = s.trials is not None and max(s.fit(name) or 0.0 for name in ("0.1", "1", "10")) >= LEARNED
    if learns:
        return "One batch can be learned: look at the rate, and at a few samples beside their labels."
    return "Fit one batch of a few samples first: if that fails, look at loss and network; if not, at rate and data."


_DEEP = 8  # layers


def _on_test(s: RunEvidence) -> str:
    of_test = s.of_run("test_loss")
    return f", on test samples {number(of_test[max(of_test)], 3)}" if of_test else ""


def _lost_at(s: RunEvidence, chance: float) -> int:
    """Where what a trained run had learned is lost."""
    came = [step for step, loss in s.losses.items() if s.audited is not None and 1 - loss / chance >= FAILED]
    return next((step for step in s.losses if step > max(came)), 0) if came else 0


def _success_does_not_rise(s: RunEvidence) -> Finding | None:
    if s.success is not False:
        return None
    said = "The metrics that were logged are no better in their last third than in their first: "
    return found("likely" if s.steps >= FEWEST_STEPS else "note", said + ", ".join(s.series("success")) + ".")


def _no_better_than_before(s: RunEvidence) -> Finding | None:
    """Where the loss of a constant is not known: a loss that did not fall."""
    if s.audited is not None or not s.failed or s.score is not None or s.first_loss is None or s.last_loss is None:
        return None
    said = f"After {s.steps} steps the loss is {number(s.last_loss, 3)}; it began at {number(s.first_loss, 3)}."
    begun = share_fresh(s.parameters) > 0.5  # a trained network may have nothing left to learn
    fixed = s.targets or s.loss_ops & (CLASS_LOSSES | BINARY_LOSSES)  # else targets may move, or be a player's
    return found("likely" if begun and fixed and s.steps >= FEWEST_STEPS else "note", said, advice=_next(s))


def _fired(s: RunEvidence, question: str) -> "AuditAnswer | None":
    known = None if s.audited is None or s.audited.run is None else s.audited.run.answers[question]
    return known if known is not None and known.fired else None


def _level(answer: "AuditAnswer") -> str:
    """Certain, if every look since some epoch fired, and there are at least two."""
    since = answer.since
    asked = [look for look in answer.looks if since is not None and look.epoch >= since and look.fired]
    return "certain" if len(asked) > 1 else "likely"


def _exploded(s: RunEvidence) -> Finding | None:
    """Hidden states that explode over a block, or at the top since init."""
    answer = _fired(s, "D1")
    if answer is None or s.audited is None:
        return None
    limits = s.audited.rule.thresholds
    said = (
        f"At epoch {answer.epoch} ‖h‖ grows {number(answer.value)}× over the block that grows it most; "
        f"the limit is {limits.growth:g}×."
    )
    top = f"‖h_L‖ is {number(answer.beside)}× its value at init; the limit is {limits.stream:g}×."
    evidence = [said] if math.isnan(answer.beside) else [said, top]
    if answer.note is not None:
        evidence.append(f"Over all blocks it grows more than {limits.growth:g}×.")
    blocks = [f"block {block}" for block in answer.layers] or [f"layer {s.audited.rule.depth}"]
    return found(_level(answer), *evidence, modules=blocks, epoch=answer.since)


def _unresolved(s: RunEvidence) -> Finding | None:
    """A BP gradient that the precision of training does not resolve, or that does not predict the loss."""
    answer = _fired(s, "D2")
    if answer is None or s.audited is None:
        return None
    limits, evidence = s.audited.rule.thresholds, []
    if answer.value < limits.resolution:
        evidence.append(
            f"At epoch {answer.epoch} the BP gradient in the precision of training has a cosine of "
            f"{number(answer.value)} with the one in float64; the limit is {limits.resolution:g}."
        )
    if answer.beside < limits.ceiling:
        evidence.append(
            f"At epoch {answer.epoch} ρ of BP's gradient in float64 is {number(answer.beside)}; "
            f"the limit is {limits.ceiling:g}."
        )
    layers = [f"layer {layer}" for layer in answer.layers]
    return found(_level(answer), *evidence, modules=layers, epoch=answer.since)


def _at_chance(s: RunEvidence) -> Finding | None:
    """Credit that is no better than chance."""
    answer = _fired(s, "D3")
    if answer is None or s.audited is None or s.audited.run is None:
        return None
    layers = [one for one in s.audited.run.credits if one.layer in answer.layers]
    worst = min(layers, key=lambda one: min(one.cosine.excess, one.rho.excess))
    said = f"At epoch {answer.epoch} the credit is not above chance at {len(layers)} of {s.audited.rule.depth} layers."
    names = [f"layer {layer}" for layer in answer.layers]
    return found(_level(answer), said, _beside_chance(worst), modules=names, epoch=answer.since)


def _beside_chance(layer: "LayerCredit") -> str:
    parts = [
        f"{name} is {number(one.value)}, by chance {number(one.null, 1)} ± {number(one.null_std, 1)}"
        for name, one in (("the cosine", layer.cosine), ("ρ", layer.rho))
    ]
    return f"At layer {layer.layer} {' and '.join(parts)}."


def _hurts(s: RunEvidence) -> Finding | None:
    """Blocks that cost accuracy."""
    if s.audited is None or s.audited.run is None or s.audited.rule.margin.outcome != "hurts":
        return None
    rule, run = s.audited.rule, s.audited.run.run
    said = (
        f"{rule.label}: {rule.margin.text} points of test accuracy over frozen blocks, paired by seed, "
        f"n = {rule.margin.points.n}."
    )
    return found("likely", said, epoch=run.epochs)


_DEFAULTS = Thresholds()


def _fires(question: str) -> str:
    """The condition under which a question of the audit fires, as a sentence."""
    condition = " ".join(_DEFAULTS.words[question].partition("? ")[2].split())
    return f"{condition[0].upper()}{condition[1:]}."


TRAINED_FAULTS = (
    Diagnosis(
        name="not_learning",
        signs=(_success_does_not_rise, _no_better_than_a_constant, _no_better_than_before),
        asked=_asks_whether_it_learned,
        role="symptom",
        short="The loss ends hardly lower than that of one constant answer, or higher.",
        measured=(
            f"In the last tenth of a run of {FEWEST_STEPS} steps or more, the loss is less than {FAILED:g} of the way "
            "from that of the best constant answer (shares of the classes, mean of the targets) to the lowest loss, "
            "and its gain is within the noise. For a trained run, test loss and test accuracy must show the same. If "
            "a metric of success is logged, it decides. If the loss of a constant answer is not known: the loss did "
            "not fall, and the weights look freshly drawn. It is a note if the run is shorter, if a cause is found, "
            "or if the weights may be trained already. It does not apply to frozen blocks."
        ),
        why="Nothing of the input reaches the output, or nothing of the error reaches the weights.",
        remedy=(
            "Train the same network with fewer layers or skip connections: if that learns, depth is the cause; "
            "if not, look at rate and data."
        ),
        reference="He et al. (2016), Deep residual learning for image recognition, arXiv:1512.03385",
        consequences=frozenset({"blocks_hurt"}),
    ),
    Diagnosis(
        name="state_explosion",
        signs=(_exploded,),
        role="symptom",
        label="D1",
        former_name="growth",
        short="D1, does the scale hold? Here ‖h‖ explodes over a block, or ‖h_L‖ has exploded since init.",
        measured=_fires("D1"),
        why=(
            "Where the stream explodes, the blocks that follow change it by a vanishing share. A LayerNorm on top "
            "hides the growth from the loss and divides the gradient at h_L by it."
        ),
        remedy="Normalise the stream, or scale what each branch adds.",
        good="‖h‖ grows by a few per cent a block, and ‖h_L‖ to tens of times its value at init.",
        bad="‖h‖ grows by hundreds over one block, or ‖h_L‖ is thousands of times its value at init.",
        reference="Hanin & Rolnick (2018), How to start training, arXiv:1803.01719; docs/calibration.md",
        consequences=frozenset({"gradient_collapse", "credit_at_chance", "not_learning"}),
    ),
    Diagnosis(
        name="gradient_collapse",
        signs=(_unresolved,),
        role="symptom",
        label="D2",
        former_name="gradient",
        short=(
            "D2, does training's precision resolve the BP gradient? Here it does not, or the gradient predicts no loss."
        ),
        measured=_fires("D2"),
        why=(
            "Where rounding is as large as the gradient, steps follow rounding; and where the exact gradient does not "
            "predict the loss, agreement of a credit with it says little."
        ),
        remedy=(
            "Train in a higher precision, or keep states and outputs at a size at which differences survive rounding."
        ),
        good="the cosine of both gradients is 1 to many digits at every layer, and so is ρ of BP's gradient.",
        bad=(f"the cosine falls below {_DEFAULTS.resolution:g}: rounding is half as large as the gradient, or larger."),
        reference=("Micikevicius et al. (2018), Mixed precision training, arXiv:1710.03740; docs/calibration.md"),
        consequences=frozenset({"credit_at_chance"}),
    ),
    Diagnosis(
        name="credit_at_chance",
        signs=(_at_chance,),
        role="symptom",
        label="D3",
        former_name="credit",
        short="D3, is the credit better than chance at depth? At these layers it is not.",
        measured=_fires("D3"),
        why=(
            "Such a credit agrees with the gradient no better than a fresh draw of the same rule. That does not say "
            "that nothing is learned from it: networks adapt to the feedback they get."
        ),
        remedy="Compare with `frozen` blocks (D4): they tell whether the layers learned.",
        good="cosine and ρ lie well above chance at every layer.",
        bad="cosine and ρ at the deep layers are what a rule with freshly drawn matrices scores.",
        reference=(
            "Lillicrap et al. (2016), Random synaptic feedback weights support error backpropagation, Nat. Commun. 7; "
            "docs/calibration.md"
        ),
        consequences=frozenset({"blocks_hurt", "not_learning"}),
    ),
    Diagnosis(
        name="blocks_hurt",
        signs=(_hurts,),
        role="symptom",
        label="D4",
        former_name="worth",
        short="D4, do the trained blocks help? Here training them costs test accuracy.",
        measured=_fires("D4"),
        why="A readout on random blocks may explain all of the accuracy.",
        remedy=(
            "Train the readout alone, or with a rule whose credit is above chance; train more seeds where it is "
            "undecided."
        ),
        good="points over frozen blocks lie above 0 with the whole interval.",
        bad="the whole interval lies below 0: random blocks are the better ones.",
        reference=(
            "Bartunov et al. (2018), Assessing the scalability of biologically-motivated deep learning, "
            "arXiv:1807.04587; docs/calibration.md"
        ),
    ),
)
"""Causes before their symptoms."""
