"""One explanation: what a thing is, how it is measured, what to try."""

from dataclasses import dataclass

MEASURED = ("diagnosis", "metric", "probe", "question")
"""The kinds of things that are measured; of the others the same text says how they are made."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Texts about one name.  `short` fits a tooltip; what does not apply is empty."""

    name: str
    kind: str  # diagnosis, metric, probe, question, rule, model, task, optimiser or word
    short: str  # one sentence: what it is
    measured: str = ""  # how, and from which number on; or how it is made
    good: str = ""  # what values look like where all is well
    bad: str = ""  # and where it is not
    why: str = ""  # why it hurts, or matters
    remedy: str = ""
    reference: str = ""

    def __str__(self) -> str:
        parts = [("", self.short), ("Measured: " if self.kind in MEASURED else "In detail: ", self.measured)]
        parts += [("Good looks like: ", self.good), ("Bad looks like: ", self.bad), ("Why: ", self.why)]
        parts += [("Remedy: ", self.remedy), ("Reference: ", self.reference)]
        lines = [f"{self.name} ({self.kind})", *(f"{head}{text}" for head, text in parts if text)]
        return "\n".join(lines)
