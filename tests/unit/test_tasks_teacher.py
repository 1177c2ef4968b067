import pytest
import torch
from torch import nn

from sonde.core.generators import generator
from sonde.network.losses import CROSS_ENTROPY
from sonde.tasks.synthetic import Teacher
from sonde.tasks.task import Samples

CPU = torch.device("cpu")


def load(task: Teacher, seed: int = 42, dtype: torch.dtype = torch.float32) -> Samples:
    data = task.load(seed, None, CPU, dtype)
    assert isinstance(data, Samples)
    return data


def test_the_recipe_is_the_default() -> None:
    data = load(Teacher())
    assert (data.train_samples, data.test_samples) == (10_000, 2_000)
    assert (Teacher().shape, Teacher().outputs) == (data.train_x.shape[1:], 10)
    assert data.loss is CROSS_ENTROPY
    assert abs(data.train_x.mean().item()) < 0.01
    assert data.train_x.std().item() == pytest.approx(1, abs=0.01)


def test_every_class_occurs_and_none_dominates() -> None:
    shares = torch.bincount(load(Teacher()).train_y, minlength=10) / 10_000
    assert shares.min() > 0.02
    assert shares.max() < 0.3


def test_everything_depends_on_the_seed_and_only_on_it() -> None:
    first, again, other = load(Teacher()), load(Teacher()), load(Teacher(), seed=43)
    assert torch.equal(first.train_x, again.train_x)
    assert torch.equal(first.train_y, again.train_y)
    assert not torch.equal(first.train_x, other.train_x)
    assert not torch.equal(first.train_x[:2000], first.test_x)
    x_Ni = first.test_x
    assert (Teacher().logits(x_Ni, 42).argmax(-1) != Teacher().logits(x_Ni, 43).argmax(-1)).any()


def test_labels_are_the_same_in_every_precision() -> None:
    single, double = load(Teacher()), load(Teacher(), dtype=torch.float64)
    assert double.train_x.dtype == torch.float64
    assert torch.equal(single.train_y, double.train_y)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_teacher_equals_a_plain_pytorch_network(alpha: float) -> None:
    task, seed = Teacher(inputs=5, d=7, L=3, classes=4, alpha=alpha), 1
    embed = torch.empty(7, 5, dtype=torch.float64)
    embed.uniform_(-(5**-0.5), 5**-0.5, generator=generator(seed, "teacher/embed"))
    head = torch.empty(4, 7, dtype=torch.float64)
    head.uniform_(-(7**-0.5), 7**-0.5, generator=generator(seed, "teacher/head"))
    x_Ni = torch.randn(6, 5, dtype=torch.float64, generator=generator(0, "x"))
    h_Nd = nn.functional.linear(x_Ni, embed)
    for block in range(3):
        w1, w2 = (
            torch.randn(7, 7, dtype=torch.float64, generator=generator(seed, f"teacher/blocks.{block}.{name}"))
            for name in ("w1", "w2")
        )
        z_Nd = nn.functional.linear(h_Nd, w1 / 7**0.5)
        h_Nd = h_Nd + nn.functional.linear(torch.lerp(z_Nd, z_Nd.tanh(), alpha), w2 / 21**0.5)
    torch.testing.assert_close(task.logits(x_Ni, seed), nn.functional.linear(h_Nd, head))


def test_with_alpha_zero_the_teacher_is_linear() -> None:
    task = Teacher(alpha=0.0)
    a_Ni, b_Ni = torch.randn(2, 8, 128, generator=generator(0, "x"), dtype=torch.float64)
    torch.testing.assert_close(task.logits(a_Ni + b_Ni, 3), task.logits(a_Ni, 3) + task.logits(b_Ni, 3))


def test_an_epoch_shows_every_sample_once_and_keeps_the_smaller_last_batch() -> None:
    data = load(Teacher(samples=100, test_samples=10))
    batches = list(data.batches(32, generator(0, "order")))
    assert data.steps(32) == len(batches) == 4
    assert [len(y) for _, y in batches] == [32, 32, 32, 4]
    seen = torch.cat([x for x, _ in batches])
    assert not torch.equal(seen, data.train_x)
    assert torch.equal(seen.sort(0).values, data.train_x.sort(0).values)


def test_an_epoch_is_decided_by_its_generator_and_the_next_one_differs() -> None:
    data, rng = load(Teacher(samples=100)), generator(0, "order")
    first, second = (torch.cat([y for _, y in data.batches(32, rng)]) for _ in range(2))
    again = torch.cat([y for _, y in data.batches(32, generator(0, "order"))])
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_test_samples_come_in_order() -> None:
    data = load(Teacher(test_samples=10))
    x, y = data.test(2, 5)
    assert torch.equal(x, data.test_x[2:5])
    assert torch.equal(y, data.test_y[2:5])
