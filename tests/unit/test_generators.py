"""Named generators: independent streams, and a list of names that is complete."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_tasks_cifar10 import fake

import sonde
from sonde import plugins
from sonde.config import Probing, RunConfig
from sonde.core.generators import STREAMS, generator
from sonde.metrics.probes import PROBES
from sonde.models import ResidualMLP
from sonde.rules import DirectFeedback, FeedbackAlignment, Rule
from sonde.store.folder import read_tensors
from sonde.tasks import Cifar10, Digits, Identity, LinearQuadratic, Parity, RandomHierarchy, Task, Teacher
from sonde.training.program import unpack

PAGE = Path(__file__).parents[2] / "docs" / "recompute.md"


def test_streams_of_one_seed_differ_and_repeat() -> None:
    draws = [torch.rand(4, generator=generator(seed, name)) for seed in (1, 2) for name in ("init", "order")]
    assert len({tuple(draw.tolist()) for draw in draws}) == 4
    assert torch.equal(torch.rand(4, generator=generator(1, "init")), draws[0])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(1, "init"))
    assert torch.equal(torch.get_rng_state(), before)


def config_of(task: Task, rule: Rule) -> RunConfig:
    probes = Probing(names=tuple(PROBES), costly=(), size=4, directions=2)
    return RunConfig(model=ResidualMLP(d=8, L=2), rule=rule, task=task, probes=probes, epochs=1, seed=3)


def test_the_names_are_those_that_runs_draw_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def recording(text: bytes) -> Any:
        asked.append(text.decode())
        return hashlib.sha256(text)

    monkeypatch.setattr("sonde.core.generators.hashlib", SimpleNamespace(sha256=recording))
    tasks: list[Task] = [
        Identity(d=8, samples=8, test_samples=8, steps_per_epoch=1),
        Teacher(inputs=8, samples=8, test_samples=8, d=8, L=2),
        Digits(random_labels=True),
        LinearQuadratic(d=8, samples=8, test_samples=8),
        Parity(samples=8, test_samples=8),
        RandomHierarchy(samples=8, test_samples=8),
    ]
    np.savez(tmp_path / "own.npz", x=np.ones((8, 3)), y=np.arange(8) % 2)
    tasks.append(plugins.load_plugin("task", str(tmp_path / "own.npz")).kind())
    for task in tasks:
        sonde.train(config_of(task, DirectFeedback()), runs=tmp_path)
    fake(Cifar10(subset=8, random_labels=True), seed=3)
    matching = {name: re.sub(r"\\\{\w+\\\}", r"\\d+", re.escape(name)) for name in STREAMS}
    drawn = set()
    for text in asked:
        seed, name = text.split("/", 1)
        (known,) = [known for known, pattern in matching.items() if re.fullmatch(pattern, name)]
        assert int(seed) == (0 if known in ("digits/split", "arrays/split", "cifar10/subset") else 3), text
        drawn.add(known)
    assert drawn == STREAMS.keys()


def test_the_page_lists_every_name_as_the_source_does() -> None:
    listed = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE))
    assert {name: listed[name] for name in STREAMS} == STREAMS


def draw_dfa(stream: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(8, 10, generator=stream) / 10**0.5 for _ in range(3)]


def draw_fa(stream: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(8, 8, generator=stream) / 8**0.5 for _ in range(2)]


@pytest.mark.parametrize(("rule", "draw"), [(DirectFeedback(), draw_dfa), (FeedbackAlignment(), draw_fa)])
def test_stored_feedback_can_be_drawn_again_as_the_page_says(
    rule: Rule, draw: Callable[[torch.Generator], list[torch.Tensor]], tmp_path: Path
) -> None:
    config = config_of(Digits(), rule)
    sonde.train(config, runs=tmp_path)
    digest = hashlib.sha256(b"3/rule").digest()
    expected = draw(torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1))
    stored = unpack(read_tensors(tmp_path / config.id, "rule"))["matrices"]
    for mine, theirs in zip(stored, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
