"""The random hierarchy model, against a twin that grows one sample at a time."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sonde
from sonde.config import Probing
from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.models import ResidualMLP
from sonde.network.losses import CROSS_ENTROPY
from sonde.rules import Backprop, Frozen, Rule
from sonde.store.load import load as load_runs
from sonde.studies.recipes import depth_matters
from sonde.tasks import RandomHierarchy, Samples

CPU = torch.device("cpu")
SIZES = [
    RandomHierarchy(samples=300, test_samples=100),
    RandomHierarchy(v=3, m=3, s=3, L=2, classes=5, samples=200, test_samples=50),
    RandomHierarchy(v=5, m=2, s=2, L=1, classes=12, samples=200, test_samples=50),
]


def load(task: RandomHierarchy, seed: int = 42, dtype: torch.dtype = torch.float32) -> Samples:
    data = task.load(seed, None, CPU, dtype)
    assert isinstance(data, Samples)
    return data


def words(task: RandomHierarchy, x: torch.Tensor) -> list[tuple[int, ...]]:
    """The symbols of every sample, read from the numbers."""
    return [tuple(one) for one in x.view(len(x), task.s**task.L, task.v).argmax(-1).tolist()]


def naive_rules(task: RandomHierarchy, seed: int) -> list[dict[int, list[tuple[int, ...]]]]:
    """From the classes down, symbol → its synonyms, with all tuples written out."""
    every = list(itertools.product(range(task.v), repeat=task.s))
    levels = []
    for level in range(task.L):
        order = torch.randperm(len(every), generator=generator(seed, f"rhm/rules/{level}")).tolist()
        parents = range(task.classes if level == 0 else task.v)
        levels.append({p: [every[order[p * task.m + k]] for k in range(task.m)] for p in parents})
    return levels


def parsed(word: tuple[int, ...], levels: list[dict[int, list[tuple[int, ...]]]], s: int) -> int:
    """The class of a word: from the leaves up, every tuple gives way to its one parent."""
    for level in reversed(levels):
        parents = {synonym: parent for parent, synonyms in level.items() for synonym in synonyms}
        word = tuple(parents[word[first : first + s]] for first in range(0, len(word), s))
    (label,) = word
    return label


@pytest.mark.parametrize("task", SIZES, ids=["default", "triples", "one level"])
def test_samples_are_those_a_naive_twin_grows_symbol_by_symbol(task: RandomHierarchy) -> None:
    data, levels = load(task, seed=7), naive_rules(task, 7)
    for name, x, y in (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y)):
        rng = generator(7, f"rhm/{name}")
        classes = torch.randint(task.classes, (len(x),), generator=rng).tolist()
        grown = [(label,) for label in classes]
        for level in levels:
            chosen = torch.randint(task.m, (len(x), len(grown[0])), generator=rng).tolist()
            grown = [
                tuple(leaf for symbol, k in zip(word, ks, strict=True) for leaf in level[symbol][k])
                for word, ks in zip(grown, chosen, strict=True)
            ]
        assert y.tolist() == classes
        assert words(task, x) == grown


@pytest.mark.parametrize("task", SIZES, ids=["default", "triples", "one level"])
def test_a_word_has_one_class_which_parsing_it_finds(task: RandomHierarchy) -> None:
    levels = naive_rules(task, 42)
    for level in levels:
        synonyms = [synonym for some in level.values() for synonym in some]
        assert len(set(synonyms)) == len(synonyms)
    data = load(task)
    assert [parsed(word, levels, task.s) for word in words(task, data.test_x)] == data.test_y.tolist()


def test_numbers_of_a_uniform_symbol_have_mean_0_and_variance_1() -> None:
    task = RandomHierarchy(m=8, samples=20_000)  # every tuple is somebody's, so leaves are uniform
    x = load(task, dtype=torch.float64).train_x
    assert len(x.unique()) == 2
    assert x.mean().item() == pytest.approx(0, abs=1e-12)
    assert x.square().mean().item() == pytest.approx(1, abs=1e-12)
    assert (x.mean(0).abs() < 0.05).all()


def test_shape_outputs_and_loss_are_those_of_the_samples() -> None:
    task = SIZES[1]
    data = load(task)
    assert task.shape == data.train_x.shape[1:] == (9 * 3,)
    assert task.outputs == 5 == len(data.train_y.unique())
    assert data.loss is CROSS_ENTROPY


def test_rules_and_samples_depend_on_the_seed_and_only_on_it() -> None:
    task = SIZES[0]
    first, again, other = load(task), load(task), load(task, seed=43)
    assert torch.equal(first.train_x, again.train_x)
    assert not torch.equal(first.train_x, other.train_x)
    assert any(not torch.equal(a, b) for a, b in zip(task.rules(42), task.rules(43), strict=True))
    assert torch.equal(first.train_y, load(task, dtype=torch.float64).train_y)


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"m": 9}, "choose task.m at most 8"),
        ({"classes": 40}, "40 symbols with task.m = 4"),
        ({"v": 4096, "s": 3}, "choose at most"),
    ],
)
def test_rules_that_there_cannot_be_are_refused_before_anything_is_trained(options: dict[str, int], fix: str) -> None:
    with pytest.raises(SondeError, match=fix):
        RandomHierarchy(**options).prepare(None, lambda done, total: None)  # type: ignore[arg-type]


def test_backprop_beats_frozen_blocks_by_more_than_thirty_points(tmp_path: Path) -> None:
    def accuracy(rule: Rule) -> float:
        config = depth_matters(ResidualMLP(d=64, L=4), rule, scale="quick", seed=42, epochs=12)
        config = replace(config, task=RandomHierarchy(), probes=Probing(names=("loss",), costly=()))
        sonde.train(config, runs=tmp_path)
        last = load_runs(tmp_path).rows.filter(run=config.id, metric="test_acc", epoch=12)
        return float(last["value"].item())

    assert accuracy(Backprop()) - accuracy(Frozen()) > 0.3
