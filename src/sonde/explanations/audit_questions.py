"""The four questions of the audit."""

from sonde.explanations.explanation import Explanation

QUESTIONS = (
    Explanation(
        name="growth",
        kind="question",
        short="D1: does the scale of the hidden states hold from block to block?",
        measured="Fires where ‖h‖ grows more than 50 times over a block.",
        why="Where the stream explodes, what a block adds and every number relative to ‖h‖ lose their meaning.",
        remedy="Normalise the stream, or scale what each branch adds.",
        reference="docs/calibration.md",
    ),
    Explanation(
        name="gradient",
        kind="question",
        short="D2: is the BP gradient still a meaningful reference?",
        measured="Fires where the median of ‖g_L‖/‖e‖, e the output error, is below 0.03 of its value at init.",
        why="A credit cannot be compared with a gradient that is not there.",
        remedy="Read credit at epochs before the gradient collapsed.",
        reference="docs/calibration.md",
    ),
    Explanation(
        name="credit",
        kind="question",
        short="D3: is the credit better than chance at depth?",
        measured=(
            "Fires where cosine or ρ at a layer is not above what the rule scores when it draws anew, "
            "by 3 standard deviations; not read where ρ of BP's own gradient is below 0.9."
        ),
        why="A credit no better than chance does not teach the layers it reaches.",
        remedy="Compare with `frozen` blocks before crediting the rule with what was learned.",
        reference="docs/calibration.md",
    ),
    Explanation(
        name="worth",
        kind="question",
        short="D4: do the blocks earn their keep?",
        measured=(
            "Test accuracy over frozen blocks, paired by seed: helps or hurts where the 95 % t interval "
            "over seeds excludes 0."
        ),
        why="A readout on random blocks may explain all of the accuracy.",
        remedy="Train more seeds where it is undecided.",
        reference="docs/calibration.md",
    ),
)
