"""Reading a state: R, its right inverse S, and their transposes."""

import pytest
import torch

from sonde.network import Pooling, PoolingName
from sonde.rules import Facts

SHAPES = {"vectors": (3, 7), "tokens": (3, 4, 7), "maps": (3, 5, 2, 6)}
PAIRS: list[tuple[PoolingName, str]] = [
    (name, kind)
    for name in ("cls", "last", "mean", "flat")
    for kind in SHAPES
    if not (kind == "maps" and name in ("cls", "last"))  # maps have no tokens
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_what_is_read_moves_by_what_it_is_moved_by_and_credit_is_the_adjoint(name: PoolingName, kind: str) -> None:
    pooling, shape = Pooling(name), SHAPES[kind]
    rng = torch.Generator().manual_seed(0)
    h, a = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(2))
    width = pooling.width(shape[1:])
    v = torch.randn(2, 3, width, generator=rng, dtype=torch.float64)
    read = pooling.read(h)
    assert read.shape == (3, width)
    moved, replaced = pooling.moved(h, v), pooling.replaced(h, v)
    assert moved.shape == replaced.shape == (2, *shape)
    for k in range(2):
        torch.testing.assert_close(pooling.read(moved[k]), read + v[k])
        torch.testing.assert_close(pooling.read(replaced[k]), v[k])
        torch.testing.assert_close((pooling.credit(a) * v[k]).sum(), (a * (moved[k] - h)).sum())
        torch.testing.assert_close((pooling.spread(v[k], h) * h).sum(), (v[k] * read).sum())
    assert pooling.spread(v[0], h).shape == shape


def test_each_reader_reads_what_it_says() -> None:
    h = torch.arange(24.0).view(2, 3, 4)
    assert torch.equal(Pooling("cls").read(h), h[:, 0])
    assert torch.equal(Pooling("last").read(h), h[:, 2])
    assert torch.equal(Pooling("mean").read(h), h.mean(1))
    assert torch.equal(Pooling("flat").read(h), h.flatten(1))
    maps = torch.arange(48.0).view(2, 3, 2, 4)
    assert torch.equal(Pooling("mean").read(maps), maps.mean((2, 3)))
    assert not Pooling("cls").fits((3, 2, 4))
    assert Pooling("cls").fits((4,))


def test_the_old_name_of_a_plugins_pooling_works_and_says_the_new_one() -> None:
    facts = Facts(shapes=[], output_shape=(), steps=1, device=torch.device("cpu"), dtype=torch.float32)
    with pytest.warns(DeprecationWarning, match=r"Facts\.reader is deprecated: use Facts\.pooling"):
        assert facts.reader is facts.pooling
