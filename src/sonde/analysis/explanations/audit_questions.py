"""The four questions of the audit, which are diagnoses of a trained run; when they fire, the audit's thresholds say."""

from sonde.analysis.explanations.explanation import Explanation
from sonde.analysis.thresholds import Thresholds

_FIRES = {
    name: " ".join(words.partition("? ")[2].split()) for name, words in Thresholds().words.items()
}  # what follows the question


def _of(name: str, number: str, short: str, why: str, remedy: str, good: str, bad: str, reference: str) -> Explanation:
    condition = _FIRES[number]
    return Explanation(
        name=name,
        kind="question",
        short=f"{number}, {short}",
        measured=f"{condition[0].upper()}{condition[1:]}.",
        why=why,
        remedy=remedy,
        good=good,
        bad=bad,
        reference=f"{reference}; docs/calibration.md",
    )


QUESTIONS = (
    _of(
        "growth",
        "D1",
        "does the scale hold? Here ‖h‖ explodes over a block, or ‖h_L‖ has exploded since init.",
        (
            "Where the stream explodes, the blocks that follow change it by a vanishing share. A LayerNorm on top "
            "hides the growth from the loss and divides the gradient at h_L by it."
        ),
        "Normalise the stream, or scale what each branch adds.",
        "‖h‖ grows by a few per cent a block, and ‖h_L‖ to tens of times its value at init.",
        "‖h‖ grows by hundreds over one block, or ‖h_L‖ is thousands of times its value at init.",
        "Hanin & Rolnick (2018), How to start training, arXiv:1803.01719",
    ),
    _of(
        "gradient",
        "D2",
        "does training's precision resolve the BP gradient? Here it does not, or the gradient foretells no loss.",
        (
            "Where rounding is as large as the gradient, steps follow rounding; and where the exact gradient does not "
            "foretell the loss, agreement of a credit with it says little."
        ),
        "Train in a higher precision, or keep states and outputs at a size at which differences survive rounding.",
        "the cosine of both gradients is 1 to many digits at every layer, and so is ρ of BP's gradient.",
        "the cosine falls below 0.9: rounding is half as large as the gradient, or larger.",
        "Micikevicius et al. (2018), Mixed precision training, arXiv:1710.03740",
    ),
    _of(
        "credit",
        "D3",
        "is the credit better than chance at depth? At these layers it is not.",
        (
            "Such a credit agrees with the gradient no better than a fresh draw of the same rule. That does not say "
            "that nothing is learned from it: networks adapt to the feedback they get."
        ),
        "Compare with `frozen` blocks (D4): they tell whether the layers learned.",
        "cosine and ρ lie well above chance at every layer.",
        "cosine and ρ at the deep layers are what a rule with freshly drawn matrices scores.",
        "Lillicrap et al. (2016), Random synaptic feedback weights support error backpropagation, Nat. Commun. 7",
    ),
    _of(
        "worth",
        "D4",
        "do the trained blocks help? Here training them costs test accuracy.",
        "A readout on random blocks may explain all of the accuracy.",
        "Train the readout alone, or with a rule whose credit is above chance; train more seeds where it is undecided.",
        "points over frozen blocks lie above 0 with the whole interval.",
        "the whole interval lies below 0: random blocks are the better ones.",
        "Bartunov et al. (2018), Assessing the scalability of biologically-motivated deep learning, arXiv:1807.04587",
    ),
)
