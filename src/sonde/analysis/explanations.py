"""What every name that a user meets means: the one source for `sonde explain`, findings, pages and tooltips."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sonde.analysis.diagnosis import DIAGNOSES
from sonde.analysis.diagnosis.finding import Diagnosis
from sonde.core.errors import SondeError, nearest
from sonde.metrics import ALIASES, TRAINED, WATCHED, Metric

_MEASURED_KINDS = ("diagnosis", "metric", "probe", "question")
"""Kinds whose `measured` says how they are measured; for others it gives details."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Texts about one name.  `short` fits a tooltip; what does not apply is empty."""

    name: str
    kind: str  # diagnosis, metric, probe, question, rule, model, task, optimiser or word
    short: str  # one sentence: what it is
    measured: str = ""  # how it is measured, with thresholds; or details
    good: str = ""  # what healthy values look like
    bad: str = ""  # what faulty values look like
    why: str = ""  # why it hurts, or matters
    remedy: str = ""
    reference: str = ""

    def __str__(self) -> str:
        parts = [("", self.short), ("Measured: " if self.kind in _MEASURED_KINDS else "In detail: ", self.measured)]
        parts += [("Good looks like: ", self.good), ("Bad looks like: ", self.bad), ("Why: ", self.why)]
        parts += [("Remedy: ", self.remedy), ("Reference: ", self.reference)]
        lines = [f"{self.name} ({self.kind})", *(f"{head}{text}" for head, text in parts if text)]
        return "\n".join(lines)


_WORD_TEXTS = {
    "credit": (
        "The vector that a rule gives a layer for each sample, in place of the gradient at that layer's state.",
        "a_l, beside the gradient g_l. It points uphill: the parameters that produced h_l descend along it.",
    ),
    "credit_at": (
        "Option of rules that give every state a credit: which credit a block learns from.",
        "`rule.credit_at`: with `output` (the default) block l descends along ⟨f_l, a_{l+1}⟩, with `input` along "
        "⟨f_l, a_l⟩. The credits and their probes are the same. With `input` no block learns from a_L, and all states "
        "must have one shape.",
    ),
    "credit_scale": (
        "Option of every rule: whether the credit of each state is divided by its root mean square over the batch.",
        "`rule.credit_scale`: `rms` gives a/(RMS(a) + 1e-6), `none` leaves the credit unchanged. `rms` is the default "
        "of every rule but `bp` and `frozen`; the papers of these rules do not divide.",
    ),
    "null": (
        "Chance: the value of a measure for the same rule with other random matrices or networks.",
        "It has 4 or 20 draws in the same snapshot. For a rule without random draws it is a random vector. The null of "
        "KP is FA by layers and that of FDFA is DFA, because their own credit is good for every draw.",
    ),
    "ceiling": (
        "The best possible value: the same measure with BP's own gradient in place of the credit.",
        "In the same snapshot, as `…/bp`.",
    ),
    "depth": (
        "The blocks between embedding and readout. A rule trains depth if its trained blocks beat frozen ones.",
        "Test accuracy over frozen blocks of the same seed.",
    ),
    "block": (
        "One of the L equal parts of a network between embedding and readout.",
        "Block l computes h_{l+1} from h_l.",
    ),
    "layer": (
        "A position between blocks where the hidden state is measured.",
        "h_0 leaves the embedding, h_L the last block.",
    ),
    "stream": (
        "The hidden state in the forward pass; in a residual network each block adds to it.",
        "Its norm ‖h_l‖, layer by layer.",
    ),
    "probe": ("A measurement of a network that does not train it.", "In float64, on a copy."),
    "rule": ("How credit reaches each layer; backprop (BP) is one rule.", "`sonde list rules` names them all."),
    "seed": (
        "The number that determines all random draws of a run. Runs that differ only in the seed are repetitions.",
        "n counts seeds.",
    ),
    "interval": (
        "The range in which the mean over seeds may lie: Student's t interval, 95 %.",
        "mean ± t·s/√n; for differences, paired by seed. One seed has no interval.",
    ),
    "undefined": ("The value does not exist here; the reason is stored with it.", "It is never drawn as 0."),
    "epoch": ("One pass over the training data.", "Epoch 0 is the network before training."),
    "signal": (
        "The states of a network in the forward pass, layer by layer.",
        "The states h_0 … h_L; their size is `hidden_norm`.",
    ),
    "gradient": (
        "How the loss changes with a state; backprop computes it exactly.",
        "g_l = ∂ℓ_i/∂h_l for every sample i, in float64; its size is `grad_norm`.",
    ),
    "state": (
        "The output of a block for one sample: a vector, tokens or a feature map.",
        "h_0 leaves the embedding, h_l block l−1.",
    ),
    "unit": (
        "A part of a network that computes one state from another: the embedding, a block or your own submodule.",
        "Unit l computes h_l.",
    ),
    "embedding": ("The part that computes the first state, h_0, from the input.", "It comes before the blocks."),
    "readout": (
        "The part that computes the output from the last state: a linear head, in some networks after a LayerNorm.",
        "It comes after the blocks.",
    ),
    "snapshot": (
        "The measurement of a network after an epoch: a float64 copy on the first test samples, shared by all probes.",
        "The network, its mode and every random generator stay unchanged.",
    ),
    "recipe": (
        "The configuration of a run without its rule and seed.",
        "Runs of two recipes are never averaged.",
    ),
    "study": (
        "A question with the runs, figures and sentences that answer it.",
        "`sonde list studies` names them, `sonde run STUDY` trains them.",
    ),
    "run": (
        "One training: a configuration, and what was measured at every epoch.",
        "A folder of the store; its id covers the whole configuration.",
    ),
    "store": ("A folder of runs, `runs/` by default.", "`sonde verify` checks every byte of it."),
    "plugin": (
        "Your own network, rule, task, probe or optimiser, used like a built-in one.",
        "`--rule mine.py:Mine`; the run keeps a copy of the file, and its id covers the content.",
    ),
    "margin": (
        "Backprop's advantage over frozen blocks: the difference of their test accuracies, by seed.",
        "A rule recovers a share of it: (rule − frozen) ÷ (bp − frozen).",
    ),
}

_WORDS = tuple(
    Explanation(name=name, kind="word", short=short, measured=measured)
    for name, (short, measured) in _WORD_TEXTS.items()
)


def _of_metric(metric: Metric) -> Explanation:
    return Explanation(
        name=metric.name,
        kind="metric",
        short=metric.definition,
        measured=metric.measured,
        good=metric.good,
        bad=metric.bad,
        reference=metric.reference,
    )


_METRIC_OF_PROBE = {metric.probe: metric for metric in reversed(TRAINED.values()) if metric.probe}
"""The first metric of each probe."""

_METRICS = tuple(
    _of_metric(metric)
    for metric in (*WATCHED.values(), *TRAINED.values())
    if metric.name not in _METRIC_OF_PROBE  # the probe of that name explains it
)


def _of_diagnosis(one: Diagnosis) -> Explanation:
    kind = "question" if one.label else "diagnosis"
    parts = ("name", "short", "measured", "good", "bad", "why", "remedy", "reference")
    return Explanation(kind=kind, **{part: getattr(one, part) for part in parts})


_DIAGNOSES = tuple(_of_diagnosis(one) for one in DIAGNOSES.values() if not one.label)
_QUESTIONS = tuple(_of_diagnosis(one) for one in DIAGNOSES.values() if one.label)

EXPLANATIONS: tuple[Explanation, ...] = (*_DIAGNOSES, *_METRICS, *_QUESTIONS, *_WORDS)


def _as_key(name: str) -> str:
    return re.sub(r"[-– ]", "_", name).casefold()


RULES_IN_FULL = {
    "backpropagation": "bp",
    "backprop": "bp",
    "feedback alignment": "fa",
    "sign symmetry": "usf",
    "sign symmetry, one magnitude": "usf",
    "sign symmetry, fixed magnitudes": "frsf",
    "sign symmetry, new magnitudes at every step": "brsf",
    "Kolen–Pollack": "kp",
    "weight mirrors": "mirror",
    "weight mirror": "mirror",
    "direct feedback alignment": "dfa",
    "direct random target projection": "drtp",
    "direct Kolen–Pollack": "dkp",
    "forward direct feedback alignment": "fdfa",
    "forward gradient": "forward_gradient",
    "local losses: prediction and similarity": "predsim",
    "direct difference target propagation": "ddtp",
    "difference target propagation": "ddtp",
    "State Bridge": "state_bridge",
    "Credit Bridge": "credit_bridge",
    "predictive coding": "pc",
    "µPC": "pc",
    "equilibrium propagation": "ep",
    "dual propagation": "dualprop",
    "Forward-Forward": "ff",
    "frozen blocks": "frozen",
}
"""Names of rules in the literature."""

_SYNONYMS = {
    "chance": "null",
    "guest": "plugin",
    **{_as_key(name): rule for name, rule in RULES_IN_FULL.items()},
    **ALIASES,
    **{_as_key(one.label): one.name for one in (*WATCHED.values(), *TRAINED.values())},
    **{_as_key(one.symbol): one.name for one in (*WATCHED.values(), *TRAINED.values()) if one.symbol},
    **{one.label.casefold(): one.name for one in DIAGNOSES.values() if one.label},
}
"""Other ways to ask for a name: rules in full, symbols and labels of metrics, labels of questions."""

_FORMER_NAMES = {one.former_name: one.name for one in DIAGNOSES.values() if one.former_name}
"""Former names of diagnoses; some of them are also names of metrics or words."""


def documented(kind: str, table: Mapping[str, Any]) -> list[Explanation]:
    """Explanations from docstrings: of rules, probes, models, tasks and optimisers.

    What a probe of the package measures is said by the table of metrics, and how by its docstring.
    """
    kinds = {name: thing.func if isinstance(thing, partial) else thing for name, thing in table.items()}
    texts = {name: inspect.getdoc(thing) or "" for name, thing in kinds.items()}
    return [
        replace(_of_metric(_METRIC_OF_PROBE[name]), name=name, kind=kind, measured=" ".join(text.split()))
        if kind == "probe" and name in _METRIC_OF_PROBE
        else _documented(name, kind, text)
        for name, text in texts.items()
    ]


def _documented(name: str, kind: str, text: str) -> Explanation:
    """The first sentence, and what follows it."""
    first, *others = re.split(r"(?<! al)\. ", " ".join(text.split()), maxsplit=1)
    rest = "".join(others)
    return Explanation(name=name, kind=kind, short=first if not rest else f"{first}.", measured=rest)


def explanations(name: str, known: Iterable[Explanation] = EXPLANATIONS) -> list[Explanation]:
    """The texts about a name, a symbol, a label (D1) or a former name; a name may stand for things of several kinds."""
    known = list(known)
    wanted = _as_key(name)
    names = {_SYNONYMS.get(wanted, wanted), _FORMER_NAMES.get(wanted)}
    found = [text for text in known if text.name.casefold() in names]
    if not found:
        labels = [metric.label for metric in (*WATCHED.values(), *TRAINED.values())]
        labels += [one.label for one in DIAGNOSES.values() if one.label]
        every = {text.name for text in known} | {label.casefold() for label in (*labels, *RULES_IN_FULL)}
        raise SondeError(f"nothing is named {name!r}: {nearest(name.casefold(), every, 'sonde explain')}")
    return sorted(found, key=lambda text: (text.name == _FORMER_NAMES.get(wanted), text.kind != "word"))


def every_key(known: Iterable[Explanation]) -> list[str]:
    """Everything that `explanations` finds, as the tables write it: names, symbols, labels and former names."""
    labels = (one.label for one in DIAGNOSES.values() if one.label)
    return [*dict.fromkeys([*(text.name for text in known), *labels, *_SYNONYMS, *_FORMER_NAMES])]
