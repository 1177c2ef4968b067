"""What the tests in chromium share."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser.chromium import chromium
from sonde.cli.report import playground_command as write_playground

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Not for the whole session: while Playwright runs, no other event loop does."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of `sonde playground`."""
    out = tmp_path_factory.mktemp("playground") / "playground.html"
    write_playground(out=out, quiet=True)
    return out
