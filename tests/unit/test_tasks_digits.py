import sys

import pytest
import torch

from sonde.core.generators import generator
from sonde.network.losses import CROSS_ENTROPY
from sonde.tasks.images import Digits, read_digits
from sonde.tasks.task import Samples

CPU = torch.device("cpu")


def load(seed: int = 42, dtype: torch.dtype = torch.float32) -> Samples:
    data = Digits().load(seed, None, CPU, dtype)
    assert isinstance(data, Samples)
    return data


def test_there_are_1437_training_and_360_test_images() -> None:
    data = load()
    assert (data.train_samples, data.test_samples) == (1437, 360)
    assert (Digits().shape, Digits().outputs) == (data.train_x.shape[1:], 10)
    assert data.loss is CROSS_ENTROPY


def test_the_split_does_not_depend_on_the_seed() -> None:
    assert torch.equal(load(1).test_x, load(2).test_x)
    assert torch.equal(load(1).train_y, load(2).train_y)


def test_train_and_test_together_are_the_whole_set_once() -> None:
    data = load(dtype=torch.float64)
    both = torch.cat([data.train_x, data.test_x])
    pixels = torch.round((both - both.min()) / (both.max() - both.min()) * 16).flatten(1).int().tolist()
    images, labels = read_digits()
    theirs = sorted(zip(images.reshape(-1, 64).astype(int).tolist(), labels.tolist(), strict=True))
    assert sorted(zip(pixels, torch.cat([data.train_y, data.test_y]).tolist(), strict=True)) == theirs


def test_training_pixels_have_mean_0_and_standard_deviation_1() -> None:
    train_x = load(dtype=torch.float64).train_x
    assert train_x.mean().item() == pytest.approx(0, abs=1e-12)
    assert train_x.std(correction=0).item() == pytest.approx(1, abs=1e-12)


def test_every_class_is_in_both_parts() -> None:
    data = load()
    assert torch.bincount(data.train_y, minlength=10).min() > 100
    assert torch.bincount(data.test_y, minlength=10).min() > 20


def test_an_epoch_shows_every_sample_once() -> None:
    data = load()
    labels = [y for _, y in data.batches(128, generator(0, "order"))]
    assert data.steps(128) == len(labels) == 12
    assert torch.equal(torch.cat(labels).sort().values, data.train_y.sort().values)


def test_scikit_learn_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    load()
    assert "sklearn" not in sys.modules
