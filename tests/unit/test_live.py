"""The parts of the live page: what changed, who may ask, what is read again, and how it is sent."""

import http.client
import itertools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Sonde
from processes import PATIENCE, wait_for
from sonde.cli.report import live_command
from sonde.cli.report import local_folder as folder
from sonde.core.errors import SondeError
from sonde.show import live as servers
from sonde.show.live import Feed, Server, patch
from sonde.show.live import store_poller as pollers
from sonde.show.live.store_poller import PageState, StoreFollower
from sonde.store import journal as journals
from sonde.store.folder import read_part
from sonde.store.journal import Journal
from sonde.store.load import load
from sonde.studies import STUDIES
from stores import NASTY, rename, some_rows, write_run

AUDIT = STUDIES["audit"].configs("quick", [42])
TOKEN = "a-token-of-the-tests"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("xyz", max_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
def test_a_patch_turns_the_old_into_the_new(old: Any, new: Any) -> None:
    change = patch(old, new)
    assert (change is None) == (old == new)
    if change is not None:
        through_json = json.loads(json.dumps(change), object_hook=_places)
        assert patched(old, through_json) == new


def patched(old: Any, known: list[Any]) -> Any:
    """`old` with a patch applied, as `assets/live.js` does it."""
    kind, *how = known
    if kind == "=":
        return how[0]
    if kind == "+":
        return [*old[: how[0]], *how[1]]
    if kind == "[":
        inside, both, rest = how
        return [
            *(patched(one, inside[index]) if index in inside else one for index, one in enumerate(old[:both])),
            *rest,
        ]
    inside, removed = how
    kept = {key: value for key, value in old.items() if key not in removed}
    return kept | {key: patched(old.get(key), inner) for key, inner in inside.items()}


def _places(known: dict[str, Any]) -> dict[Any, Any]:
    """Places in a list are keys of an object on the way."""
    return {int(key) if key.isdigit() else key: value for key, value in known.items()}


def test_a_list_that_grew_is_told_by_what_was_added() -> None:
    many = list(range(1000))
    assert patch({"v": [many, [1]]}, {"v": [[*many, 7], [1]]}) == [
        "{",
        {"v": ["[", {0: ["+", 1000, [7]]}, 2, []]},
        [],
    ]


def test_a_page_gets_the_whole_once_and_then_what_changed() -> None:
    feed = Feed()
    assert feed.after(None, 0.0) == []
    assert feed.publish({"a": [1], "b": "same"})
    assert not feed.publish({"a": [1], "b": "same"})
    (whole,) = feed.after(None, 0.0)
    assert (whole.kind, json.loads(whole.text)) == ("whole", {"a": [1], "b": "same"})
    assert feed.after(whole.id, 0.0) == []
    feed.publish({"a": [1, 2], "b": "same"})
    feed.publish({"a": [1, 2, 3], "b": "same"})
    sent = feed.after(whole.id, 0.0)
    assert [known.kind for known in sent] == ["patch", "patch"]
    state = json.loads(whole.text)
    for known in sent:
        state = patched(state, json.loads(known.text))
    assert state == {"a": [1, 2, 3], "b": "same"}
    assert [known.kind for known in feed.after("another-life-1", 0.0)] == ["whole"]


def test_a_page_that_was_away_for_long_gets_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_PATCH_TEXT", 200)
    feed = Feed()
    feed.publish({"a": 0})
    (first,) = feed.after(None, 0.0)
    for number in range(1, 50):
        feed.publish({"a": number})
    assert [known.kind for known in feed.after(first.id, 0.0)] == ["whole"]


def test_a_page_that_waits_is_told_as_soon_as_there_is_something() -> None:
    feed = Feed()
    told: list[str] = []
    waiting = threading.Thread(target=lambda: told.extend(sent.kind for sent in feed.after(None, 60.0)))
    waiting.start()
    feed.publish({"a": 1})
    waiting.join(60)
    assert told == ["whole"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were read, in order."""
    known: list[str] = []
    before = pollers.load_some

    def load_some(root: Any, ids: list[str], **how: Any) -> Any:
        known.extend(ids if how else [])  # first without rows
        return before(root, ids, **how)

    monkeypatch.setattr(pollers, "load_some", load_some)
    return known


def test_only_what_changed_is_read_again_and_nothing_is_written(tmp_path: Path, read: list[str]) -> None:
    root = tmp_path / "runs"
    follower = StoreFollower(root)
    assert not follower.refresh(), "the store is not there yet"
    first = write_run(root, AUDIT[0])
    assert follower.refresh()
    second = write_run(root, AUDIT[1], state="unfinished", epoch=2)
    files = sorted(str(path) for path in root.rglob("*"))
    assert follower.refresh()
    assert not follower.refresh()
    assert read == [first, second]
    assert [run.status.state for run in follower.stored().runs] == ["complete", "interrupted"]
    assert sorted(str(path) for path in root.rglob("*")) == files


def test_a_flush_of_a_watch_its_end_and_its_removal_are_seen(tmp_path: Path, read: list[str]) -> None:
    follower = StoreFollower(tmp_path)
    journal = Journal(tmp_path, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})
    assert follower.refresh()
    follower.refresh()
    assert not follower.refresh()
    journal.append(some_rows(0), 0)
    assert follower.refresh()
    assert follower.stored().rows.height == 3
    assert [run.status.state for run in follower.stored().watched] == ["running"]
    journal.append(some_rows(1), 1)
    assert follower.refresh()
    journal.close("complete", 2)
    assert follower.refresh()
    assert [run.status.state for run in follower.stored().watched] == ["complete"]
    for file in (tmp_path / "net").iterdir():
        file.unlink()
    (tmp_path / "net").rmdir()
    assert follower.refresh()
    assert follower.stored().watched == []


def test_a_process_that_dies_changes_what_is_told_though_no_file_changes(tmp_path: Path) -> None:
    Journal(tmp_path, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})
    follower = StoreFollower(tmp_path)
    follower.refresh()
    follower.refresh()
    (tmp_path / ".locks" / "net.holder").unlink()
    assert follower.refresh()
    assert [run.status.state for run in follower.stored().watched] == ["interrupted"]


def test_a_broken_run_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    broken, whole = write_run(tmp_path, AUDIT[0]), write_run(tmp_path, AUDIT[1])
    (tmp_path / broken / "run.json").write_text('{\n "format": 7}')
    follower = StoreFollower(tmp_path)
    follower.refresh()
    assert [run.id for run in follower.stored().runs] == [whole]
    state = PageState("runs", "title").build(follower.stored(), follower.stamps)
    assert state["states"] == [["complete", 1], ["broken", 1]]


def test_the_state_has_the_numbers_at_once_and_the_findings_when_they_are_made(tmp_path: Path) -> None:
    page = PageState("runs", "title")
    follower = StoreFollower(tmp_path)
    empty = page.build(follower.stored(), follower.stamps)
    assert empty["states"] == []
    rename(tmp_path, write_run(tmp_path, AUDIT[0]), label=NASTY)
    write_run(tmp_path, AUDIT[1], state="unfinished", epoch=2)
    follower.refresh()
    state = page.build(follower.stored(), follower.stamps)
    assert [run["state"] for run in state["charts"]["runs"]] == ["complete", "interrupted"]
    assert state["html"]["findings"] == empty["html"]["findings"]
    assert NASTY not in state["html"]["runs"]
    page.update_findings(follower.stored())
    later = page.build(follower.stored(), follower.stamps)
    assert later["html"]["findings"] != state["html"]["findings"]
    assert later["charts"]["series"] == state["charts"]["series"]


def test_of_watched_runs_only_those_that_changed_are_packed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"label": "net", "model": "Net", "parameters": 3}
    one, _ = (Journal(tmp_path, name, about, {"started": "now"}) for name in ("one", "two"))
    follower, page = StoreFollower(tmp_path), PageState("runs", "title")
    one.append(some_rows(0, run="one"), 0)
    packed: list[str] = []
    before = pollers.packed_run
    monkeypatch.setattr(pollers, "packed_run", lambda part, *how: packed.append(part.run.id) or before(part, *how))
    for _ in range(3):
        follower.refresh()
    page.build(follower.stored(), follower.stamps)
    assert sorted(packed) == ["one", "two"]
    one.append(some_rows(1, run="one"), 1)
    follower.refresh()
    page.build(follower.stored(), follower.stamps)
    assert sorted(packed) == ["one", "one", "two"]


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server(0, TOKEN)
    feed = Feed()
    feed.publish({"a": 1})
    started.ready("<!doctype html>the page", feed)
    threading.Thread(target=started.serve_forever, daemon=True).start()
    yield started
    started.shutdown()
    started.server_close()


def answer(server: Server, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers=headers)
    got = connection.getresponse()
    return got.status, got.read(200).decode(), {name.lower(): value for name, value in got.getheaders()}


def test_the_page_is_for_who_has_the_token_and_for_nobody_else(server: Server) -> None:
    status, text, headers = answer(server, f"/{TOKEN}/")
    assert (status, text) == (200, "<!doctype html>the page")
    assert headers["cache-control"] == "no-store"
    assert headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in headers
    for path in ("/", "//", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/", "/events", "/%00/", f"/x/{TOKEN}/"):
        assert answer(server, path)[0] == 403, path
    assert answer(server, f"/{TOKEN}/other")[0] == 404
    assert answer(server, f"/{TOKEN}/../../etc/passwd")[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", ""]
)
def test_a_name_that_was_made_to_mean_this_machine_is_refused(server: Server, host: str) -> None:
    named = host.format(port=server.server_port)
    assert answer(server, f"/{TOKEN}/", Host=named)[0] == 403
    assert answer(server, f"/{TOKEN}/", Host=f"localhost:{server.server_port}")[0] == 200


def test_a_stream_tells_the_whole_under_a_number_that_a_page_can_go_on_from(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", f"/{TOKEN}/events")
    got = connection.getresponse()
    assert got.getheader("content-type", "").startswith("text/event-stream")
    lines = [got.readline().decode().strip() for _ in range(5)]
    assert lines[0] == "retry: 500"
    assert lines[3:] == ["event: whole", 'data: {"a":1}']
    (sent,) = server.feed.after(None, 0.0)
    assert lines[2] == f"id: {sent.id}"
    connection.close()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=60)


def test_a_request_that_does_not_come_to_its_end_is_closed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PATIENCE", 0.2)
    with connected(server) as silent, connected(server) as slow:
        slow.sendall(b"GET /")
        assert silent.recv(100) == b""
        with suppress(ConnectionError):  # a byte at a time does not help
            while not select.select([slow], [], [], 0.01)[0]:
                slow.sendall(b"x")
            assert slow.recv(100) == b""
    with connected(server) as stream:  # a whole request stays, however long its answer takes
        stream.sendall(f"GET /{TOKEN}/events HTTP/1.0\r\nHost: {server.hosts[0]}\r\n\r\n".encode())
        seen = b""
        while b'{"a":1}' not in seen:
            seen += stream.recv(1000)
        threading.Event().wait(2 * servers.PATIENCE)
        server.feed.publish({"a": 2})
        while b"event: patch" not in seen:
            got = stream.recv(1000)
            assert got, "the stream was closed"
            seen += got


def test_connections_are_bounded_and_those_that_end_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MOST_CONNECTIONS", 3)
    small = Server(0, TOKEN)
    small.ready("the page", Feed())
    threading.Thread(target=small.serve_forever, daemon=True).start()
    try:
        held = [connected(small) for _ in range(3)]
        for one in held:
            one.sendall(b"GET /")
        with connected(small) as fourth:
            assert fourth.recv(100).startswith(b"HTTP/1.0 503")
        for one in held:
            one.close()
        wait_for(lambda: answer(small, f"/{TOKEN}/")[0] == 200)
    finally:
        small.shutdown()
        small.server_close()


def test_however_long_a_run_is_watched_so_many_rows_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pollers, "MOST_ROWS", 400)
    monkeypatch.setattr(journals, "PART", 120)
    about = {"label": "net", "model": "Net", "parameters": 3}
    one, two = (Journal(tmp_path, name, about, {"started": "now"}) for name in ("one", "two"))
    two.append(some_rows(0, run="two"), 0)
    follower = StoreFollower(tmp_path)
    tables: list[str] = []
    monkeypatch.setattr(pollers, "read_part", lambda *args: tables.append(args[0].name) or read_part(*args))
    for step in range(300):
        one.append(some_rows(step, run="one"), step)
        if step % 50 == 49:
            follower.refresh()
            rows = follower.stored().rows
            assert rows.height <= 400
            kept = rows.filter(run="one")
            steps = kept["step"].unique().sort().to_list()
            assert {*range(10), step} <= set(steps)
            strides = {later - early for early, later in itertools.pairwise(steps[:-1]) if early >= 16}
            assert len(strides) == 1, "steps are left out evenly"
            assert kept.height == 3 * len(steps)
    assert len(tables) == len(set(tables)) == 7, "a part is read once"
    assert rows.filter(run="two").height == some_rows(0).height
    assert follower.steps == {"one": 300, "two": 1}
    page = PageState("runs", "title").build(follower.stored(), follower.stamps, follower.steps)
    assert {run["id"]: run["watched"] for run in page["watched"]["runs"]} == follower.steps


def test_of_trained_runs_the_newest_are_held_and_the_page_counts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [write_run(tmp_path, replace(AUDIT[1], seed=seed)) for seed in range(4)]
    for age, id in enumerate(ids):
        os.utime(tmp_path / id / "manifest.json", (2_000_000_000 - age, 2_000_000_000 - age))
    rows = load(tmp_path).rows
    room = rows.filter(pl.col("run").is_in(ids[:2])).height
    monkeypatch.setattr(pollers, "MOST_TRAINED_ROWS", room)
    follower = StoreFollower(tmp_path)
    follower.refresh()
    assert follower.stored().rows.height == room
    assert {run.id for run in follower.stored().runs} == {*ids[:2]}
    assert follower.left_out == {*ids[2:]}
    state = PageState("runs", "live").build(follower.stored(), follower.stamps, left_out=len(follower.left_out))
    assert state["states"] == [["complete", 2], ["older, not shown", 2]]
    os.utime(tmp_path / ids[3] / "manifest.json", (2_100_000_000, 2_100_000_000))
    assert follower.refresh(), "a run that is written again is the newest"
    assert follower.left_out == {ids[1], ids[2]}
    shutil.rmtree(tmp_path / ids[0])
    assert follower.refresh(), "there is room again"
    assert follower.left_out == {ids[2]}
    assert {run.id for run in follower.stored().runs} == {ids[1], ids[3]}


def test_another_run_under_the_same_name_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "PART", 3)
    about = {"label": "net", "model": "Net", "parameters": 3}
    follower = StoreFollower(tmp_path)
    for step in (0, 5):
        made = Journal(tmp_path, "net", about, {"started": str(step)})
        made.append(some_rows(step), step)
        follower.refresh()
        assert follower.stored().rows["step"].unique().to_list() == [step]
        made.close("complete", step)
        shutil.rmtree(tmp_path / "net")


def test_a_watched_run_without_a_part_that_its_manifest_names_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "PART", 3)
    made = Journal(tmp_path, "net", {"label": "net", "model": "Net", "parameters": 3}, {"started": "now"})
    for step in range(3):
        made.append(some_rows(step), step)
    made.close("complete", 2)
    next((tmp_path / "net").glob("metrics-*.parquet")).unlink()
    follower = StoreFollower(tmp_path)
    follower.refresh()
    assert list(follower.stored().broken) == ["net"]


def test_the_token_comes_from_the_environment_and_is_on_no_command_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sonde", "live", "--runs", str(tmp_path), "--open"]
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {tmp_path}/opened.aside; mv {tmp_path}/opened.aside {tmp_path}/opened\n'
    )
    browser.chmod(0o755)
    surroundings = os.environ | {"SONDE_LIVE_TOKEN": TOKEN, "BROWSER": f"{browser} %s"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=surroundings, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.endswith(f"/{TOKEN}/")
            wait_for((tmp_path / "opened").exists)
            opened = (tmp_path / "opened").read_text().strip()
            assert TOKEN not in opened
            file = Path(opened.removeprefix("file://"))
            assert url in file.read_text()
            assert file.stat().st_mode & 0o077 == 0
            process.terminate()
            said = process.communicate(timeout=PATIENCE)[1]
            assert "deprecated" not in said
            assert not file.exists()
        finally:
            process.kill()


def test_a_token_on_the_command_line_still_works_and_is_deprecated(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sonde", "live", "--runs", str(tmp_path), "--token", TOKEN]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().strip().endswith(f"/{TOKEN}/")
            assert "SONDE_LIVE_TOKEN" in process.stderr.readline()
        finally:
            process.kill()


def test_a_port_that_is_taken_says_so(server: Server) -> None:
    with pytest.raises(SondeError, match=rf"port {server.server_port} cannot be had .*: name another"):
        Server(server.server_port, TOKEN)


def test_what_cannot_be_followed_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(SondeError, match=r"live follows folders of this machine; `sonde report --runs memory"):
        folder("memory://bucket/runs")
    (tmp_path / "file").touch()
    with pytest.raises(SondeError, match="is a file: --runs names a folder"):
        live_command(runs=tmp_path / "file")
    with pytest.raises(SondeError, match="at least 16 letters"):
        live_command(runs=tmp_path, token="short/")


def test_a_url_is_refused_before_a_package_is_asked_for(sonde: Sonde) -> None:
    told = sonde("live", "--runs", "nowhere://bucket/runs", check=False)
    assert told.returncode == 2
    assert "live follows folders of this machine; `sonde report --runs nowhere://bucket/runs`" in told.stderr
    assert "install" not in told.stderr
    assert folder("file:///tmp/runs") == Path("/tmp/runs")
