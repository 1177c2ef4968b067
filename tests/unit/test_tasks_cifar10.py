import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from sonde.core.errors import SondeError
from sonde.core.generators import generator
from sonde.network.losses import CROSS_ENTROPY
from sonde.store.datasets import find_or_mirror_cifar10
from sonde.store.datasets.decoded import Images, open_images
from sonde.tasks.images import MEAN, STD, Cifar10, Cifar10Data, mirror

CPU = torch.device("cpu")
REAL = Path(__file__).parents[2].parent / "shared/data/cifar10"


def fake_images(train: int = 300, test: int = 50) -> Images:
    rng = np.random.default_rng(0)
    padded = np.zeros((train, 3, 40, 40), np.uint8)
    padded[:, :, 4:36, 4:36] = rng.integers(0, 256, (train, 3, 32, 32), np.uint8)
    return Images(
        train_NCHW=padded,
        train_label_N=(np.arange(train) % 10).astype(np.uint8),
        test_NCHW=rng.integers(0, 256, (test, 3, 32, 32), np.uint8),
        test_label_N=(np.arange(test) % 10).astype(np.uint8),
        form="pickles",
        fingerprint="none",
    )


def fake(task: Cifar10 | None = None, dtype: torch.dtype = torch.float32, seed: int = 0) -> Cifar10Data:
    return Cifar10Data(fake_images(), task or Cifar10(), CPU, dtype, seed)


def epoch(data: Cifar10Data, seed: int = 0, batch_size: int = 128) -> tuple[Tensor, Tensor]:
    batches = list(data.batches(batch_size, generator(seed, "order")))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def one_at_a_time(data: Cifar10Data, images: Images, rng: torch.Generator) -> Tensor:
    """The twin: each image cropped and mirrored by Pillow, then normalised as Torchvision would."""
    samples = len(images.train_label_N)
    order = torch.randperm(samples, generator=rng).tolist()
    places = torch.randint(9, (samples, 2), generator=rng).tolist()
    mirrored = torch.randint(2, (samples,), generator=rng).tolist()
    out = []
    for which, (down, right), flipped in zip(order, places, mirrored, strict=True):
        original_HWC = images.train_NCHW[which, :, 4:36, 4:36].transpose(1, 2, 0)
        image = ImageOps.expand(Image.fromarray(np.ascontiguousarray(original_HWC)), border=4, fill=0)
        image = image.crop((right, down, right + 32, down + 32))
        image = ImageOps.mirror(image) if flipped else image
        x_CHW = np.asarray(image).transpose(2, 0, 1) / 255
        out.append((x_CHW - np.reshape(MEAN, (3, 1, 1))) / np.reshape(STD, (3, 1, 1)))
    return torch.from_numpy(np.stack(out))


def test_cropping_and_mirroring_a_batch_equals_doing_it_image_by_image() -> None:
    images = fake_images()
    data = Cifar10Data(images, Cifar10(), CPU, torch.float64)
    x_NCHW, _ = epoch(data)
    twin_NCHW = one_at_a_time(data, images, generator(0, "order"))
    torch.testing.assert_close(x_NCHW, twin_NCHW, rtol=0, atol=1e-12)

    def pixels(x: Tensor) -> Tensor:
        return torch.round((x * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255)

    assert torch.equal(pixels(x_NCHW), pixels(twin_NCHW))


def test_single_precision_is_the_double_one_rounded() -> None:
    single, double = epoch(fake())[0], epoch(fake(dtype=torch.float64))[0]
    torch.testing.assert_close(single, double.float(), rtol=1e-6, atol=1e-6)


def test_mirroring_reverses_the_rows_of_the_chosen_images_only() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 32, 32), np.uint8)
    mirrored = pixels.copy()
    mirror(mirrored, np.array([True, False, True, False, False]))
    for image in range(5):
        expected = pixels[image, :, :, ::-1] if image in (0, 2) else pixels[image]
        assert (mirrored[image] == expected).all()


def test_the_margin_is_black_before_normalisation() -> None:
    black = -torch.tensor(MEAN) / torch.tensor(STD)
    x_NCHW, _ = epoch(fake())
    rows_NCW = x_NCHW[(x_NCHW[:, :, 0] - black.view(3, 1)).abs().amax((1, 2)) < 1e-5]
    assert 0.3 < len(rows_NCW) / len(x_NCHW) < 0.6  # 4 of 9 crops begin in the margin


def test_without_augmentation_images_are_whole() -> None:
    images = fake_images()
    data = fake(Cifar10(augment=False))
    x_NCHW, y_N = epoch(data)
    order_N = torch.randperm(300, generator=generator(0, "order"))
    whole = torch.from_numpy(images.train_NCHW[:, :, 4:36, 4:36])[order_N]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(x_NCHW, (whole / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    assert torch.equal(y_N, order_N % 10)


def test_an_epoch_shows_every_image_once_and_keeps_the_smaller_last_batch() -> None:
    data = fake()
    batches = list(data.batches(128, generator(0, "order")))
    assert data.steps(128) == len(batches) == 3
    assert [len(x) for x, _ in batches] == [len(y) for _, y in batches] == [128, 128, 44]
    assert torch.bincount(torch.cat([y for _, y in batches])).tolist() == [30] * 10


def test_the_generator_decides_the_epoch_and_batch_size_does_not() -> None:
    x, y = epoch(fake())
    for again in (epoch(fake()), epoch(fake(), batch_size=7)):
        assert torch.equal(x, again[0])
        assert torch.equal(y, again[1])
    assert not torch.equal(y, epoch(fake(), seed=1)[1])


def test_two_epochs_of_one_generator_differ() -> None:
    data, rng = fake(), generator(0, "order")
    first, second = (torch.cat([x for x, _ in data.batches(128, rng)]) for _ in range(2))
    assert not torch.equal(first, second)


def test_batches_are_tensors_of_their_own() -> None:
    images = fake_images()
    data = Cifar10Data(images, Cifar10(), CPU, torch.float32)
    before = images.train_NCHW.copy()
    for x, _ in data.batches(64, generator(0, "order")):
        x.zero_()
    data.test(0, 10)[0].zero_()
    assert (images.train_NCHW == before).all()
    assert data.test(0, 10)[0].any()


def test_a_smaller_subset_is_the_beginning_of_a_larger_one() -> None:
    small, large = (
        set(map(tuple, epoch(fake(Cifar10(subset=n, augment=False)))[0][:, 0, 0].tolist())) for n in (20, 60)
    )
    assert len(small) == 20
    assert small < large


@pytest.mark.parametrize("key", ["subset", "test_subset"])
def test_more_images_than_there_are_is_an_error_that_names_the_key(key: str) -> None:
    with pytest.raises(SondeError, match=rf"task\.{key} is 301, but there are"):
        fake(Cifar10(subset=301) if key == "subset" else Cifar10(test_subset=301))


def test_the_test_set_comes_in_file_order_and_ends_with_its_subset() -> None:
    data = fake(Cifar10(test_subset=15))
    assert data.test_samples == 15
    assert data.test(10, 40)[1].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(data.test(3, 5)[0], fake().test(0, 50)[0][3:5])


def test_labels_of_variants_differ() -> None:
    tasks = [Cifar10(), Cifar10(subset=5000), Cifar10(augment=False)]
    assert [task.label for task in tasks] == ["CIFAR-10", "CIFAR-10, 5,000 images", "CIFAR-10, not augmented"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All real images, decoded once for the tests of this file."""
    if not REAL.is_dir():
        pytest.skip(f"the images are not at {REAL}")
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SONDE_CACHE", str(folder))
        seen: list[tuple[int, int]] = []
        open_images(find_or_mirror_cifar10(REAL), on_progress=lambda *at: seen.append(at))
        assert seen[-1] == (60_000, 60_000)
        yield folder


def load(task: Cifar10) -> Cifar10Data:
    data = task.load(42, REAL, CPU, torch.float32)
    assert isinstance(data, Cifar10Data)
    return data


def test_the_real_set_is_whole_and_balanced(cache: Path) -> None:
    data = load(Cifar10(augment=False))
    assert (data.train_samples, data.test_samples) == (50_000, 10_000)
    assert (Cifar10().shape, Cifar10().outputs) == (data.test(0, 1)[0].shape[1:], 10)
    assert data.loss is CROSS_ENTROPY
    labels = torch.cat([y for _, y in data.batches(1000, generator(0, "order"))])
    assert torch.bincount(labels).tolist() == [5000] * 10
    assert torch.bincount(data.test(0, 10_000)[1]).tolist() == [1000] * 10
    assert data.source["form"] == "parquet"


def test_the_real_images_have_mean_0_and_standard_deviation_1_per_channel(cache: Path) -> None:
    sums, squares = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for x_NCHW, _ in load(Cifar10(augment=False)).batches(1000, generator(0, "order")):
        sums += x_NCHW.sum((0, 2, 3), dtype=torch.float64)
        squares += x_NCHW.square().sum((0, 2, 3), dtype=torch.float64)
    mean_C = sums / (50_000 * 1024)
    std_C = (squares / (50_000 * 1024) - mean_C.square()).sqrt()
    torch.testing.assert_close(mean_C, torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.01)
    torch.testing.assert_close(std_C, torch.ones(3, dtype=torch.float64), rtol=0, atol=0.02)


def test_a_subset_of_the_real_set_is_fixed_and_nearly_balanced(cache: Path) -> None:
    data = load(Cifar10(subset=2000))
    labels = torch.cat([y for _, y in data.batches(500, generator(0, "order"))])
    again = torch.cat([y for _, y in load(Cifar10(subset=2000)).batches(500, generator(0, "order"))])
    assert torch.equal(labels, again)
    counts = torch.bincount(labels, minlength=10)
    assert counts.sum() == 2000
    assert (counts - 200).abs().max() < 50


def test_a_missing_data_set_is_told_by_the_task(tmp_path: Path) -> None:
    with pytest.raises(SondeError, match="sonde data fetch cifar10"):
        Cifar10().load(42, tmp_path, CPU, torch.float32)


def test_the_real_cache_lies_where_it_was_told(cache: Path) -> None:
    assert os.environ["SONDE_CACHE"] == str(cache)
    assert len([path for path in (cache / "decoded").iterdir() if path.is_dir()]) == 1


def test_random_labels_are_drawn_from_the_seed_and_the_images_stay() -> None:
    one, again, other = (fake(Cifar10(augment=False, random_labels=True), seed=seed) for seed in (1, 1, 2))
    plain = fake(Cifar10(augment=False))
    for read in (epoch, lambda data: data.test(0, 50)):
        (x, y), (_, same), (_, differs), (true_x, true_y) = (read(data) for data in (one, again, other, plain))
        assert torch.equal(x, true_x)
        assert torch.equal(y, same)
        assert not torch.equal(y, differs)
        assert (y == true_y).double().mean() < 0.3
