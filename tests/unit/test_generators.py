import torch

from sonde.generators import generator


def test_streams_of_one_seed_differ_and_repeat() -> None:
    draws = [torch.rand(4, generator=generator(seed, name)) for seed in (1, 2) for name in ("init", "order")]
    assert len({tuple(draw.tolist()) for draw in draws}) == 4
    assert torch.equal(torch.rand(4, generator=generator(1, "init")), draws[0])


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    torch.rand(3, generator=generator(1, "init"))
    assert torch.equal(torch.get_rng_state(), before)
