from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import tiny_config
from sonde.config import RunConfig
from sonde.engine.bundles import Bundle, bundle
from sonde.models import ResMLP

# A run that pays has an even number of epochs; depth and seed make others.
RUNS = st.builds(
    lambda L, epochs, seed: tiny_config(model=ResMLP(d=8, L=L), epochs=epochs, seed=seed),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 30),
)
LISTS = st.lists(RUNS, max_size=24, unique_by=lambda config: config.id)


def pays(config: RunConfig) -> bool:
    return config.epochs % 2 == 0


def without_seed(config: RunConfig) -> str:
    return replace(config, seed=0).id


@settings(max_examples=60, deadline=None)
@given(LISTS, st.integers(1, 9), st.integers(1, 5))
def test_every_run_is_in_one_bundle_with_runs_that_differ_only_in_the_seed(
    configs: list[RunConfig], jobs: int, limit: int
) -> None:
    bundles = bundle(configs, jobs=jobs, pays=pays, limit=limit)
    assert Counter(config.id for part in bundles for config in part) == Counter(c.id for c in configs)
    for part in bundles:
        assert 1 <= len(part) <= limit
        assert len({without_seed(config) for config in part}) == 1
        assert len(part) == 1 or all(pays(config) for config in part)


@settings(max_examples=60, deadline=None)
@given(LISTS, st.integers(1, 9), st.integers(1, 5))
def test_no_worker_is_idle_in_the_last_round_while_two_runs_share_a_bundle(
    configs: list[RunConfig], jobs: int, limit: int
) -> None:
    bundles = bundle(configs, jobs=jobs, pays=pays, limit=limit)
    assert len(bundles) % jobs == 0 or all(len(part) == 1 for part in bundles)
    by_group: dict[str, list[int]] = {}
    for part in bundles:
        if pays(part[0]):
            by_group.setdefault(without_seed(part[0]), []).append(len(part))
    assert all(max(sizes) - min(sizes) <= 1 for sizes in by_group.values())


@settings(max_examples=60, deadline=None)
@given(LISTS, st.integers(1, 9), st.integers(1, 5))
def test_runs_keep_their_order_within_a_group_and_groups_that_of_their_first_runs(
    configs: list[RunConfig], jobs: int, limit: int
) -> None:
    bundles = bundle(configs, jobs=jobs, pays=pays, limit=limit)
    places = {config.id: place for place, config in enumerate(configs)}
    firsts: dict[str, int] = {}
    for part in bundles:
        firsts.setdefault(without_seed(part[0]) if pays(part[0]) else part[0].id, places[part[0].id])
    assert list(firsts.values()) == sorted(firsts.values())
    for key in firsts:
        seen = [places[c.id] for part in bundles for c in part if pays(c) and without_seed(c) == key]
        assert seen == sorted(seen)


def seeds(bundles: list[Bundle]) -> list[list[int]]:
    return [[config.seed for config in part] for part in bundles]


def test_ten_seeds_for_three_workers_make_three_bundles() -> None:
    configs = [tiny_config(seed=seed) for seed in range(10)]
    assert seeds(bundle(configs, jobs=3, pays=lambda config: True)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert seeds(bundle(configs, jobs=1, pays=lambda config: True, limit=5)) == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]


def test_where_it_does_not_pay_every_run_is_alone() -> None:
    configs = [tiny_config(seed=seed) for seed in range(3)]
    assert seeds(bundle(configs, jobs=1, pays=lambda config: False)) == [[0], [1], [2]]
    assert bundle([], jobs=4, pays=lambda config: True) == []
