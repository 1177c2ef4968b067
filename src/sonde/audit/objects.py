"""The audit as plain objects for a program: every number with its n, seeds, runs and thresholds."""

from dataclasses import asdict
from typing import Any

from sonde.audit.answer import Answer
from sonde.audit.audit import Audit, RecipeAudit
from sonde.audit.sentence import sentence, verdict
from sonde.audit.verdict import QUESTIONS, RuleAudit, RunAudit


def objects(found: Audit) -> list[dict[str, Any]]:
    """One object per recipe and rule; undefined numbers are NaN here."""
    return [_rule(recipe, rule) for recipe in found.recipes for rule in recipe.rules]


def _rule(recipe: RecipeAudit, rule: RuleAudit) -> dict[str, Any]:
    return {
        "recipe": recipe.title,
        "config": recipe.recipe,
        "rule": rule.rule,
        "label": rule.label,
        "options": rule.options,
        "n": len(rule.runs),
        "seeds": rule.seeds,
        "runs": rule.ids,
        "diverged": [asdict(one) for one in rule.diverged],
        "left_out": rule.left_out,
        "made_with": recipe.made_with,
        "verdict": verdict(rule),
        "sentence": sentence(rule),
        "thresholds": asdict(rule.thresholds),
        "test_acc": asdict(rule.scalar("test_acc")),
        "train_acc": asdict(rule.scalar("train_acc")),
        "largest_growth_over_a_block": asdict(rule.value("D1")),
        "gradient_per_error_relative_to_init": asdict(rule.value("D2")),
        "points_over_frozen": asdict(rule.margin.points),
        **{metric: asdict(known) for metric, known in rule.measures.items()},
        "questions": {question: _tally(rule, question) for question in QUESTIONS}
        | {"D4": asdict(rule.margin)},
        "by_run": [_run(run) for run in rule.runs],
    }


def _tally(rule: RuleAudit, question: str) -> dict[str, Any]:
    tally = rule.tally(question)
    return {
        "n": tally.n,
        "fired": sorted(tally.fired),
        "clear": sorted(tally.clear),
        "undefined": {seed: answer.reason for seed, answer in tally.undefined.items()},
        "not_asked": {seed: answer.reason for seed, answer in tally.not_asked.items()},
        "value": asdict(rule.value(question)),
    }


def _run(run: RunAudit) -> dict[str, Any]:
    return {
        "run": run.subject.run,
        "seed": run.subject.seed,
        "questions": {question: _answer(answer) for question, answer in run.answers.items()},
        "credit": [
            {**layer._asdict(), "cosine": layer.cosine._asdict(), "rho": layer.rho._asdict()}
            for layer in run.credits
        ],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "asked": answer.asked,
        "fired": answer.fired,
        "value": answer.value,
        "epoch": answer.epoch,
        "first_fired": answer.first_fired,
        "since": answer.since,
        "layers": answer.layers,
        "reason": answer.reason,
        "note": answer.note,
    }
