"""What a diagnosis says: one finding."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.analysis.explanations.audit_questions import QUESTIONS
from sonde.analysis.explanations.diagnoses import DIAGNOSES

LEVELS = ("note", "likely", "certain")
TEXTS = {text.name: text for text in (*DIAGNOSES, *QUESTIONS)}
NAMED = 4  # modules that a sentence names


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: where, since when, on which numbers that rests, why it hurts and what to try."""

    name: str
    level: str  # note, likely or certain
    modules: tuple[str, ...] = ()
    step: int = 0  # the first in which it shows
    epoch: int | None = None  # the same of a run that was measured by epochs
    evidence: tuple[str, ...] = ()  # the numbers, in words
    explained_by: str | None = None  # the finding of which this is a symptom

    @property
    def short(self) -> str:
        """What it is, in one sentence."""
        return TEXTS[self.name].short

    @property
    def why(self) -> str:
        """Why it hurts."""
        return TEXTS[self.name].why

    @property
    def remedy(self) -> str:
        """What to try."""
        return TEXTS[self.name].remedy

    @property
    def reference(self) -> str:
        """Who wrote of it."""
        return TEXTS[self.name].reference

    @property
    def since(self) -> str:
        """When it first shows: a step of a watched run, an epoch of a trained one."""
        return f"step {self.step}" if self.epoch is None else f"epoch {self.epoch}"

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values, as `sonde diagnose --json` prints it."""
        known = {"name": self.name, "level": self.level, "modules": list(self.modules), "step": self.step}
        known["epoch"] = self.epoch
        known |= {"short": self.short, "evidence": list(self.evidence), "explained_by": self.explained_by}
        return known | {"why": self.why, "remedy": self.remedy, "reference": self.reference}

    def __str__(self) -> str:
        where = f" in {listed(self.modules)}" if self.modules else ""
        lines = [f"{self.name} ({self.level}){where}, since {self.since}: {self.short}"]
        lines += [f"  {sentence}" for sentence in self.evidence]
        if self.explained_by is not None:
            return "\n".join([*lines, f"  A symptom of {self.explained_by}."])
        return "\n".join([*lines, f"  {self.why} [{self.reference}]", f"  Remedy: {self.remedy}"])


class Findings(list[Finding]):
    """Findings of one run, the most important first; prints as text, and a notebook shows a list."""

    def __init__(self, findings: Iterable[Finding] = (), *, about: str = "") -> None:
        super().__init__(findings)
        self.about = about  # what was looked at

    def worst(self) -> str | None:
        """The highest level among them."""
        return max((one.level for one in self), key=LEVELS.index, default=None)

    def __str__(self) -> str:
        if not self:
            return f"Nothing is wrong{f' in {self.about}' if self.about else ''}, as far as can be told."
        return "\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{html.escape(str(self))}</p>"
        shown = []
        for one in self:
            where = f" in {html.escape(listed(one.modules))}" if one.modules else ""
            lines = [html.escape(one.short), *map(html.escape, one.evidence)]
            if one.explained_by is None:
                lines += [html.escape(one.why), f"<em>Remedy:</em> {html.escape(one.remedy)}"]
            else:
                lines.append(f"A symptom of {html.escape(one.explained_by)}.")
            heading = f"<strong>{html.escape(one.name)}</strong> ({html.escape(one.level)}){where}"
            shown.append(f"<li>{heading}<br>{'<br>'.join(lines)}</li>")
        return f"<ul>{''.join(shown)}</ul>"


def found(
    name: str,
    level: str,
    *evidence: str,
    modules: Iterable[str] = (),
    step: int | None = 0,
    epoch: int | None = None,
) -> Finding:
    return Finding(
        name=name,
        level=level,
        modules=tuple(dict.fromkeys(modules)),
        step=step or 0,
        epoch=epoch,
        evidence=evidence,
    )


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
