"""The four questions of the audit, which are diagnoses of a trained run; when they fire, the audit's thresholds say."""

from sonde.audit.thresholds import Thresholds
from sonde.explanations.explanation import Explanation

_FIRES = {
    name: " ".join(words.partition("? ")[2].split()) for name, words in Thresholds().words.items()
}  # what follows the question


def _of(
    name: str, number: str, short: str, why: str, remedy: str, good: str, bad: str, reference: str
) -> Explanation:
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
        "does the scale hold? Here ‖h‖ explodes over a block.",
        "Where the stream explodes, what a block adds and every number relative to ‖h‖ lose their meaning.",
        "Normalise the stream, or scale what each branch adds.",
        "‖h‖ grows by a few per cent a block, at every epoch.",
        "‖h‖ grows by hundreds over one block after an epoch or two.",
        "Hanin & Rolnick (2018), How to start training, arXiv:1803.01719",
    ),
    _of(
        "gradient",
        "D2",
        "is the BP gradient still a meaningful reference? Here it has collapsed since init.",
        "A credit cannot be compared with a gradient that is not there.",
        "Read credit at epochs before the gradient collapsed.",
        "‖g_L‖/‖e‖ stays within a factor of ten of its value at init.",
        "‖g_L‖/‖e‖ falls to a hundredth of its value at init and stays there.",
        "Glorot & Bengio (2010), Understanding the difficulty of training deep feedforward neural networks",
    ),
    _of(
        "credit",
        "D3",
        "is the credit better than chance at depth? At these layers it is not.",
        "A credit no better than chance does not teach the layers it reaches.",
        "Compare with `frozen` blocks before crediting the rule with what was learned.",
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
