"""What each residual block adds to the stream.  N samples."""

from collections.abc import Iterator

import torch

from sonde.probes.norms import cosines, sample_norms
from sonde.probes.snapshot import Snapshot
from sonde.probes.summaries import median_of_defined
from sonde.rows import Reading, undefined


def branch_ratio(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of ‖f_l‖/‖h_l‖, by block: a branch that adds nothing has ratio 0."""
    if not snapshot.net.residual:
        yield from _no_branches("branch_ratio", snapshot)
        return
    for block, f in enumerate(snapshot.branches):
        read = snapshot.reader.read
        added_N, stream_N = sample_norms(read(f)), sample_norms(read(snapshot.states[block]))
        defined_N = added_N.isfinite() & stream_N.isfinite() & (stream_N > 0)
        ratios_N = torch.where(defined_N, added_N / stream_N, torch.nan)
        yield median_of_defined(
            "branch_ratio", ratios_N, block, "the state before the block is zero, or one of them not finite"
        )


def branch_cosine(snapshot: Snapshot) -> Iterator[Reading]:
    """Median over samples of cos(f_l, h_l), by block: a branch that only scales the stream has cosine 1."""
    if not snapshot.net.residual:
        yield from _no_branches("branch_cosine", snapshot)
        return
    for block, f in enumerate(snapshot.branches):
        yield median_of_defined(
            "branch_cosine",
            cosines(snapshot.reader.read(f), snapshot.reader.read(snapshot.states[block])),
            block,
            "branch or state is zero or not finite in every sample",
        )


def _no_branches(metric: str, snapshot: Snapshot) -> Iterator[Reading]:
    for block in range(snapshot.depth):
        yield undefined(metric, "the blocks are not residual", layer=block)
