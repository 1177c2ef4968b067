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
        "What a rule tells a layer about its share in the error: a vector for every sample that stands in for the "
        "gradient at that layer's state.",
        "a_l, beside g_l; it points uphill, and what produced h_l descends along it.",
    ),
    "credit_at": (
        "Option of every rule that names a credit for each state: whether a block learns from the credit of its output "
        "state (`output`, the default) or of its input state (`input`).",
        "`rule.credit_at`: block l descends along ⟨f_l, a_{l+1}⟩ or ⟨f_l, a_l⟩. The credits are the same, so the "
        "probes of credit are; with `input` no block learns from a_L, and all states must have one shape.",
    ),
    "credit_scale": (
        "Option of every rule: `rms` divides the credit of each state by its root mean square over the batch before a "
        "unit learns from it, `none` leaves it as the rule names it.",
        "`rule.credit_scale`: a/(RMS(a) + 1e-6). `rms` is the default of every rule but `bp` and `frozen`; the papers "
        "of these rules do not divide.",
    ),
    "null": (
        "Chance: what the same measure scores when the rule's random matrices or networks are drawn anew.",
        "In the same snapshot, 4 or 20 draws; of a rule that draws nothing, a random vector; of one whose credit is "
        "good whatever it draws, those of a rule that draws blindly: FA by layers for KP, DFA for FDFA.",
    ),
    "ceiling": (
        "The best there is: what the same measure scores with BP's own gradient in place of the credit.",
        "In the same snapshot, as `…/bp`.",
    ),
    "depth": (
        "The blocks between embedding and readout; a rule trains depth where training them beats leaving them as they "
        "were drawn.",
        "Test accuracy over frozen blocks of the same seed.",
    ),
    "block": ("One of the L equal parts of a network, between embedding and readout.", "Block l makes h_{l+1} of h_l."),
    "layer": (
        "A place between blocks where the hidden state is read.",
        "h_0 leaves the embedding, h_L the last block.",
    ),
    "stream": (
        "The hidden state on its way up: in a residual network each block adds to it.",
        "Its norm ‖h_l‖, layer by layer.",
    ),
    "probe": ("A measurement of a network as it stands, without training it.", "In float64, on a copy."),
    "rule": ("How credit reaches each layer; backprop (BP) is one.", "`sonde list` has them all."),
    "seed": (
        "The number all random draws of a run follow from; runs that differ in nothing else are repetitions.",
        "n counts seeds.",
    ),
    "interval": (
        "Where the mean over seeds may lie: Student's t interval, 95 %.",
        "mean ± t·s/√n; of differences, paired by seed. One seed has none.",
    ),
    "undefined": ("There is no such number here, and the reason is stored beside it.", "It is never drawn as 0."),
    "epoch": ("One pass over the training data.", "Epoch 0 is the network before training."),
    "signal": (
        "What a network makes of its input on the way up, layer by layer.",
        "The states h_0 … h_L; their size is `hidden_norm`.",
    ),
    "gradient": (
        "How the loss changes with a state: the exact answer to what each layer should have done.",
        "g_l = ∂ℓ_i/∂h_l of every sample i, by backprop, in float64; its size is `grad_norm`.",
    ),
    "state": (
        "What stands between two blocks for one sample: a vector, tokens or a map.",
        "h_0 leaves the embedding, h_l block l−1.",
    ),
    "unit": (
        "A part of a network that makes one state of another: the embedding, a block, a submodule of your own.",
        "Unit l makes h_l.",
    ),
    "embedding": ("What makes the first state, h_0, of an input.", "It comes before the blocks."),
    "readout": (
        "What makes the output of the last state: a linear head, with a LayerNorm before it where there is one.",
        "It comes after the blocks.",
    ),
    "snapshot": (
        "One look at a network after an epoch: a float64 copy on the first test samples, which all probes share.",
        "The network, its mode and every random generator stay as they are.",
    ),
    "recipe": (
        "Everything that decides what a run computes, but its rule and its seed.",
        "Runs of two recipes are never averaged.",
    ),
    "study": (
        "A question with the runs, figures and sentences that answer it.",
        "`sonde list studies` names them, `sonde run STUDY` trains and answers.",
    ),
    "run": (
        "One training: a configuration, and what was measured at every epoch.",
        "A folder of the store; its id covers the whole configuration.",
    ),
    "store": ("A folder of runs, `runs/` where nothing else is said.", "`sonde verify` checks every byte of it."),
    "plugin": (
        "A network, rule, task, probe or optimiser of your own, wherever one of Sonde's can stand.",
        "`--rule mine.py:Mine`; the run keeps the file, and its id covers it.",
    ),
    "margin": (
        "What backprop gains over frozen blocks: test accuracy, by seed.",
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
    return name.replace("-", "_").replace(" ", "_").casefold()


_SYNONYMS = {
    "chance": "null",
    "guest": "plugin",
    **ALIASES,
    **{_as_key(metric.symbol): metric.name for metric in (*WATCHED.values(), *TRAINED.values()) if metric.symbol},
    **{one.label.casefold(): one.name for one in DIAGNOSES.values() if one.label},
}
"""Other ways to ask for a name: symbols of metrics, labels of questions."""

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
        every = {text.name for text in known} | {one.label.casefold() for one in DIAGNOSES.values() if one.label}
        raise SondeError(f"nothing is named {name!r}: {nearest(wanted, every, 'sonde explain')}")
    return sorted(found, key=lambda text: (text.name == _FORMER_NAMES.get(wanted), text.kind != "word"))
