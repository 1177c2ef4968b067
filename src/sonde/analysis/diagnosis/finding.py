"""A diagnosis and its findings; findings as text, HTML, JSON and SARIF 2.1.0."""

import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from sonde.analysis.diagnosis.run_evidence import HELPS, RunEvidence
from sonde.core.formatting import listed

LEVELS = ("note", "likely", "certain")
_MOST_MODULES = 4  # that a sentence names
_MOST_TYPES = 2
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_LEVELS = {"note": "note", "likely": "warning", "certain": "error"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: where, since when, the numbers that show it, why it hurts and what to try."""

    name: str
    level: str  # note, likely or certain
    modules: tuple[str, ...] = ()
    types: tuple[str, ...] = ()  # of these modules, each once
    step: int = 0  # the first that shows it
    epoch: int | None = None  # the first that shows it, in a run that is measured by epochs
    evidence: tuple[str, ...] = ()  # sentences with the numbers
    explained_by: str | None = None  # the finding that causes this one
    gain: float | None = None  # score that the remedy adds in fifty steps on a copy; None where it was not tried
    advice: str = ""  # a remedy for this run, in place of the general one
    is_rest: bool = False  # what is left where nothing else is found: dropped beside another cause

    @property
    def diagnosis(self) -> "Diagnosis":
        """The diagnosis that found it."""
        from sonde.analysis.diagnosis import diagnosis_named  # the table imports every module of diagnoses

        return diagnosis_named(self.name)

    @property
    def short(self) -> str:
        """What it is, in one sentence."""
        return self.diagnosis.short

    @property
    def why(self) -> str:
        """Why it hurts."""
        return self.diagnosis.why

    @property
    def remedy(self) -> str:
        """What to try."""
        return self.advice or self.diagnosis.remedy

    @property
    def reference(self) -> str:
        """The paper that describes it."""
        return self.diagnosis.reference

    @property
    def since(self) -> str:
        """When it first shows: a step of a watched run, an epoch of a trained one."""
        return f"step {self.step}" if self.epoch is None else f"epoch {self.epoch}"

    @property
    def place(self) -> str:
        """Where, as the end of a clause; empty where the finding is about the whole run."""
        if not self.modules:
            return ""
        types = f" ({', '.join(self.types)})" if 0 < len(self.types) <= _MOST_TYPES else ""
        return f" in {listed(self.modules, _MOST_MODULES, last=', ')}{types}"

    @property
    def level_with_label(self) -> str:
        """The level, after the label (D1) of a question of the audit."""
        return ", ".join(part for part in (self.diagnosis.label, self.level) if part)

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain values, as `sonde diagnose --json` prints it."""
        known = {"name": self.name, "level": self.level, "modules": list(self.modules), "step": self.step}
        known["epoch"] = self.epoch
        known |= {"short": self.short, "evidence": list(self.evidence), "explained_by": self.explained_by}
        known |= {"gain": self.gain, "why": self.why, "remedy": self.remedy, "reference": self.reference}
        return known | {"label": self.diagnosis.label, "former_name": self.diagnosis.former_name}

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.level_with_label}){self.place}, since {self.since}: {self.short}"]
        lines += [f"  {sentence}" for sentence in self.evidence]
        if self.explained_by is not None:
            return "\n".join([*lines, f"  A symptom of {self.explained_by}."])
        return "\n".join([*lines, f"  {self.why} [{self.reference}]", f"  Remedy: {self.remedy}"])


class Findings(list[Finding]):
    """Findings of one run, the most important first; prints as text, and a notebook shows a list."""

    def __init__(
        self,
        findings: Iterable[Finding] = (),
        *,
        about: str = "",
        learning: str = "",
        learned: bool = False,
        silent: str = "",
    ) -> None:
        super().__init__(findings)
        self.about = about  # how long the run was
        self.learning = learning  # that it learns, as a sentence; empty where that is not known
        self.learned = learned  # whether it is known that the run learned more than a constant answer
        self.not_asked = silent  # which questions could not be asked, and why, as a sentence

    def worst(self) -> str | None:
        """The highest level among them."""
        return max((one.level for one in self), key=LEVELS.index, default=None)

    @property
    def verdict(self) -> str:
        """The sentence for a run without a finding: nothing is wrong only where it learned."""
        length = f" in {self.about}" if self.about else ""
        if (self.learning and self.learned) or not (self.about or self.not_asked):
            return f"Nothing is wrong{length}, as far as can be told. {self.learning}".strip()
        return f"No fault was found{length}. {self.learning or self.not_asked}".strip()

    def __str__(self) -> str:
        if not self:
            return self.verdict
        return "\n".join([*map(str, self), *([self.not_asked] if self.not_asked else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self:
            return f"<p>{html.escape(str(self))}</p>"
        shown = []
        for one in self:
            lines = [html.escape(one.short), *map(html.escape, one.evidence)]
            if one.explained_by is None:
                lines += [html.escape(one.why), f"<em>Remedy:</em> {html.escape(one.remedy)}"]
            else:
                lines.append(f"A symptom of {html.escape(one.explained_by)}.")
            where = html.escape(f" ({one.level_with_label}){one.place}")
            shown.append(f"<li><strong>{html.escape(one.name)}</strong>{where}<br>{'<br>'.join(lines)}</li>")
        return f"<ul>{''.join(shown)}</ul>"


Sign = Callable[[RunEvidence], Finding | None]
"""One way in which a fault shows: a finding where it does."""


def _always(s: RunEvidence) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One fault: when it is looked for, the signs it shows, the experiment that tries its remedy, and its texts.

    To add one: write its signs and its `Diagnosis` in a module of this folder, in the module's table.
    """

    name: str
    signs: tuple[Sign, ...]  # the surest first; the first that shows gives the finding
    short: str  # what it is, in one sentence
    measured: str  # how it is measured, with thresholds
    why: str  # why it hurts
    remedy: str  # what to try
    reference: str
    asked: Callable[[RunEvidence], bool] = _always  # whether a run is asked
    fits: tuple[str, ...] = ()  # experiments that apply the remedy to a copy, by name
    role: Literal["cause", "pace", "symptom"] = "cause"  # pace: about rates and steps; a cause explains every symptom
    consequences: frozenset[str] = frozenset()  # what it explains, beside what its role does
    of_degree: bool = False  # likely in a run that learned only if the remedy helps a copy
    hides_pace: bool = False  # a fault that no rate fixes: while it is found, findings about the pace are dropped
    label: str | None = None  # D1 … D4 for the questions of the audit
    former_name: str | None = None  # `sonde explain`, stored findings and SARIF suppressions may use it
    good: str = ""  # what healthy values look like
    bad: str = ""  # what faulty values look like

    def find(self, s: RunEvidence) -> Finding | None:
        """The finding of the first sign that shows, with what its remedy gained on a copy."""
        if not self.asked(s):
            return None
        shown = next((finding for sign in self.signs if (finding := sign(s)) is not None), None)
        if shown is None:
            return None
        epoch = s.epochs.get(shown.step) if shown.epoch is None else shown.epoch
        types = tuple(dict.fromkeys(s.types[name] for name in shown.modules if name in s.types))
        return self._with_gain(replace(shown, name=self.name, epoch=epoch, types=types), s)

    def _with_gain(self, shown: Finding, s: RunEvidence) -> Finding:
        """The finding with what its remedy gained on a copy, and the level that this leaves."""
        gain = max((gain for fit in self.fits if (gain := s.gain(fit)) is not None), default=None)
        needless = self.of_degree and shown.level == "likely" and s.learned and (gain or 0.0) < HELPS
        return replace(shown, gain=gain, level="note" if needless else shown.level)


def found(
    level: str,
    *evidence: str,
    modules: Iterable[str] = (),
    step: int | None = 0,
    epoch: int | None = None,
    advice: str = "",
    is_rest: bool = False,
) -> Finding:
    """A finding, whose diagnosis names it; each module is named once."""
    return Finding(
        name="",
        level=level,
        modules=tuple(dict.fromkeys(modules)),
        step=step or 0,
        epoch=epoch,
        evidence=evidence,
        advice=advice,
        is_rest=is_rest,
    )


def sarif(found: Mapping[str, Findings], version: str) -> dict[str, Any]:
    """Findings of several training runs, by their ids, as one run of the tool; code hosts and editors read it."""
    diagnoses = {finding.name: finding.diagnosis for findings in found.values() for finding in findings}
    names = sorted(diagnoses)
    rules = [
        {
            "id": name,
            "shortDescription": {"text": diagnoses[name].short},
            "fullDescription": {"text": diagnoses[name].why},
            "help": {"text": f"{diagnoses[name].remedy} {diagnoses[name].reference}"},
        }
        | ({"deprecatedIds": [former]} if (former := diagnoses[name].former_name) else {})  # keeps suppressions
        for name in names
    ]
    results = [_sarif_result(run, finding, names) for run, findings in found.items() for finding in findings]
    driver = {"name": "sonde", "version": version, "rules": rules}
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _sarif_result(run: str, finding: Finding, names: list[str]) -> dict[str, Any]:
    places = finding.modules or ("(model)",)
    return {
        "ruleId": finding.name,
        "ruleIndex": names.index(finding.name),
        "level": _SARIF_LEVELS[finding.level],
        "message": {"text": " ".join([finding.short, *finding.evidence, f"Remedy: {finding.remedy}"])},
        "locations": [
            {"logicalLocations": [{"fullyQualifiedName": f"{run}/{place}", "kind": "module"} for place in places]}
        ],
        "properties": {"run": run, "step": finding.step, "epoch": finding.epoch, "explained_by": finding.explained_by},
    }
