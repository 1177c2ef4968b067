import hashlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from processes import ArchiveServer as Server
from sonde.core.errors import SondeError
from sonde.store.datasets import Archive, fetch_archive
from sonde.store.files import ASIDE

CONTENT = np.random.default_rng(0).bytes(1_000_000)
ARCHIVE = Archive(name="set.tar.gz", url="", size=len(CONTENT), md5=hashlib.md5(CONTENT).hexdigest())


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(CONTENT).serving() as server:
        yield server


def test_an_archive_is_fetched_and_leaves_nothing_aside(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch_archive(ARCHIVE, tmp_path / "new", url=server.url, on_progress=lambda *at: seen.append(at))
    assert path == tmp_path / "new" / "set.tar.gz"
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert not list(path.parent.glob(f"{ASIDE}*"))


def test_an_archive_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch_archive(ARCHIVE, tmp_path, url=server.url)
    fetch_archive(ARCHIVE, tmp_path, url=server.url)
    assert len(server.asked) == 1


def test_a_dropped_connection_says_how_to_go_on_and_the_next_command_resumes(server: Server, tmp_path: Path) -> None:
    server.drop_after = 400_000
    with pytest.raises(SondeError, match=r"0\.4 of 1\.0 MB are there: give the same command to resume, or put") as told:
        fetch_archive(ARCHIVE, tmp_path, url=server.url)
    assert str(tmp_path / "set.tar.gz") in str(told.value)
    assert not (tmp_path / "set.tar.gz").exists()
    server.drop_after = None
    assert fetch_archive(ARCHIVE, tmp_path, url=server.url).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-"]


@pytest.mark.parametrize("how", ["ranges", "unsatisfiable"])
def test_a_server_that_cannot_resume_sends_everything_again(server: Server, tmp_path: Path, how: str) -> None:
    (tmp_path / f"{ASIDE}set.tar.gz").write_bytes(b"x" * 1000)
    setattr(server, how, how == "unsatisfiable")
    assert fetch_archive(ARCHIVE, tmp_path, url=server.url).read_bytes() == CONTENT


def test_too_much_aside_is_thrown_away(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{ASIDE}set.tar.gz").write_bytes(CONTENT + b"x")
    assert fetch_archive(ARCHIVE, tmp_path, url=server.url).read_bytes() == CONTENT
    assert server.asked == [None]


def test_a_whole_file_aside_is_verified_without_a_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"{ASIDE}set.tar.gz").write_bytes(CONTENT)
    assert fetch_archive(ARCHIVE, tmp_path, url=server.url).read_bytes() == CONTENT
    assert server.asked == []


def test_wrong_bytes_are_removed_and_the_checksum_is_told(server: Server, tmp_path: Path) -> None:
    server.content = b"x" * len(CONTENT)
    with pytest.raises(SondeError, match=f"not {ARCHIVE.md5}, which was removed"):
        fetch_archive(ARCHIVE, tmp_path, url=server.url)
    assert not list(tmp_path.glob("*.gz"))
    assert not list(tmp_path.glob(f"{ASIDE}*"))


def test_a_page_of_another_size_is_refused_and_what_was_there_is_kept(server: Server, tmp_path: Path) -> None:
    part = tmp_path / f"{ASIDE}set.tar.gz"
    part.write_bytes(CONTENT[:1000])
    server.content, server.ranges = b"<html>log in</html>", False
    with pytest.raises(SondeError, match="offers 19 bytes, not the 1,000,000"):
        fetch_archive(ARCHIVE, tmp_path, url=server.url)
    assert part.read_bytes() == CONTENT[:1000]


def test_a_refusing_server_is_one_clear_line(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(SondeError, match=r"Service Unavailable.*give the same command to resume") as caught:
        fetch_archive(ARCHIVE, tmp_path, url=server.url)
    assert "\n" not in str(caught.value)


def test_no_server_is_one_clear_line(server: Server, tmp_path: Path) -> None:
    with pytest.raises(SondeError, match=r"cannot download http://127\.0\.0\.1:1/ .*by hand"):
        fetch_archive(ARCHIVE, tmp_path, url="http://127.0.0.1:1/")


def test_a_damaged_archive_in_place_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"mine")
    with pytest.raises(SondeError, match=r"4 bytes.*remove it"):
        fetch_archive(ARCHIVE, tmp_path, url=server.url)
    assert (tmp_path / "set.tar.gz").read_bytes() == b"mine"


def test_a_file_in_the_way_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SondeError, match="is a file: name a folder"):
        fetch_archive(ARCHIVE, tmp_path / "file", url="http://127.0.0.1:1/")


def _fetch(root: Path, url: str) -> None:
    fetch_archive(ARCHIVE, root, url=url)


def test_several_processes_at_once_fetch_it_once(server: Server, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fetch, args=(tmp_path, server.url)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "set.tar.gz").read_bytes() == CONTENT
    assert len(server.asked) == 1
