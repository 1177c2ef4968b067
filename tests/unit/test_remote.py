"""Places in an object store: how a URL is read, which requests are made again, what an error says."""

import errno
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.core.errors import SondeError
from sonde.store import files, remote
from sonde.store.files import place
from sonde.store.remote import Remote
from stores import at, memory


@pytest.fixture
def prefix() -> Iterator[str]:
    with memory():
        yield "memory://bucket/prefix"


class Flaky:
    """A file system whose next requests raise these errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked = list(errors), 0

    def cat_file(self, url: str) -> bytes:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)
        return b"content"

    def pipe_file(self, url: str, content: bytes, mode: str = "overwrite") -> None:
        self.cat_file(url)

    def info(self, url: str) -> object:
        raise FileNotFoundError(url)


def foreign(name: str, base: type[Exception] = Exception) -> type[Exception]:
    """An error class of a provider's package, which need not be installed."""
    return type(name, (base,), {})


def test_a_path_stays_a_path_and_a_url_becomes_a_remote(prefix: str) -> None:
    assert place("runs") == Path("runs")
    assert place(Path("runs")) == Path("runs")
    assert place("file:///tmp/runs") == Path("/tmp/runs")
    found = place(prefix + "/")
    assert str(found) == prefix
    assert (found / "run").name == "run"
    assert str((found / "run").parent) == prefix
    assert place(found) is found


def test_objects_are_put_read_listed_and_deleted(prefix: str) -> None:
    root = at(prefix)
    assert not root.exists()
    assert list(root.iterdir()) == []
    assert root.walk() == {}
    (root / "a" / "b").put(b"1")
    (root / "a" / "c").put(b"2")
    (root / "a" / "c").put(b"3")
    assert (root / "a" / "c").read_bytes() == b"3"
    assert sorted(root.walk()) == ["a/b", "a/c"]
    assert sorted(path.name for path in (root / "a").iterdir()) == ["b", "c"]
    assert root.exists()
    (root / "a" / "b").unlink()
    (root / "a" / "b").unlink(missing_ok=True)
    with pytest.raises((FileNotFoundError, KeyError)):
        (root / "a" / "b").unlink()
    with pytest.raises(FileNotFoundError):
        (root / "a" / "b").read_bytes()


def test_an_object_is_created_once(prefix: str) -> None:
    (at(prefix) / "a").create(b"first")
    with pytest.raises(FileExistsError):
        (at(prefix) / "a").create(b"second")
    assert (at(prefix) / "a").read_bytes() == b"first"


def test_a_store_without_conditions_creates_by_looking_first() -> None:
    class Plain(dict[str, bytes]):
        def pipe_file(self, url: str, content: bytes) -> None:
            self[url] = content

        def info(self, url: str) -> object:
            if url not in self:
                raise FileNotFoundError(url)
            return url

    target = Remote("x://b/a", Plain())
    target.create(b"first")
    with pytest.raises(FileExistsError):
        target.create(b"second")


def test_a_server_that_knows_no_conditions_is_given_a_plain_put() -> None:
    system = Flaky(OSError(errno.ENOSYS, "not implemented"))
    Remote("s3://b/a", system).create(b"")
    assert system.asked == 2


def test_a_refusal_to_create_is_not_answered_by_a_put() -> None:
    system = Flaky(PermissionError("denied"))
    with pytest.raises(SondeError, match="access denied"):
        Remote("s3://b/a", system).create(b"")
    assert system.asked == 1


PASSING = [
    ConnectionResetError("reset"),
    ConnectionRefusedError("refused"),
    TimeoutError("slow"),
    OSError(16, "Please reduce your request rate."),
    OSError(121, "We encountered an internal error."),
    foreign("EndpointConnectionError", foreign("ConnectionError"))("Could not connect"),
    foreign("ConnectionClosedError", foreign("HTTPClientError"))("closed"),
    foreign("ClientPayloadError")("broke off"),
    foreign("IncompleteRead")("3 bytes read"),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_request_that_fails_for_a_passing_reason_is_made_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    system = Flaky(*[error] * (remote.TRIES - 1))
    assert Remote("s3://b/a", system).read_bytes() == b"content"
    assert system.asked == remote.TRIES
    assert all(0 <= pause <= remote.PAUSE * 2**turn for turn, pause in enumerate(pauses))
    assert len(set(pauses)) == len(pauses), "pauses without chance bring all clients back at once"


def test_after_so_many_tries_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    system = Flaky(*[ConnectionResetError("http://host/a?X-Amz-Signature=abc reset")] * 99)
    with pytest.raises(SondeError, match=r"s3://b/a: no answer in 8 tries \(http://host/a\?… reset\); give the"):
        Remote("s3://b/a", system).read_bytes()
    assert system.asked == remote.TRIES


LASTING: list[tuple[Exception, str]] = [
    (PermissionError("Forbidden"), r"s3://b/a: access denied \(Forbidden\): check the credentials"),
    (foreign("NoCredentialsError")("Unable to locate credentials"), "no credentials were found"),
    (OSError(22, "The specified bucket is not valid."), "s3://b/a: .*The specified bucket is not valid"),
    (foreign("ParamValidationError")("bad\nreport"), "s3://b/a: bad$"),
]


@pytest.mark.parametrize(("error", "line"), LASTING, ids=[line for _, line in LASTING])
def test_what_lasts_is_said_at_once(error: Exception, line: str) -> None:
    system = Flaky(error)
    with pytest.raises(SondeError, match=line):
        Remote("s3://b/a", system).read_bytes()
    assert system.asked == 1


def test_a_put_into_a_missing_bucket_names_the_bucket() -> None:
    with pytest.raises(SondeError, match=r"^s3://b does not exist: create it, or name another$"):
        Remote("s3://b/x/a", Flaky(FileNotFoundError("The specified bucket does not exist"))).put(b"")


MISTAKES = [
    ("foo://b/x", "unknown protocol 'foo'"),
    ("s3://", "names no bucket"),
    ("s3:/b/x", "with two slashes"),
    ("simplecache::s3://b/x", "unknown protocol"),
]


@pytest.mark.parametrize(("url", "line"), MISTAKES)
def test_a_url_that_cannot_be_is_refused(url: str, line: str) -> None:
    with pytest.raises(SondeError, match=line) as caught:
        place(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAEXAMPLE:hunter2@bucket/x",
        "s3://hunter2@bucket",
        "abfs://user:hunter2@account/x",
        "s3://bucket/x?X-Amz-Signature=hunter2",
        "https://host/x#hunter2",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SondeError) as caught:
        place(url)
    assert "hunter2" not in str(caught.value)
    assert "AKIA" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_was_a_url_is_refused_before_a_folder_of_that_name_is_made() -> None:
    with pytest.raises(SondeError, match="with two slashes, as text"):
        place(Path("s3://bucket/x"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    loaded = importlib.import_module("fsspec.registry")._registry
    for protocol in ("s3", "s3a"):
        monkeypatch.delitem(loaded, protocol, raising=False)
    with pytest.raises(
        SondeError,
        match=r"^s3:// needs a package that is not installed: pip install 'sonde\[s3\]', in a checkout ",
    ):
        place("s3://bucket/x")


def test_files_of_an_object_store_are_put_in_place(prefix: str) -> None:
    root = files.make_folder(at(prefix))
    files.write(root / "x", b"1")
    files.write_folder(root / "run", {"run.json": b"2", "manifest.json": b"3"})
    assert {name: (root / name).read_bytes() for name in root.walk()} == {
        files._MARK: b"",
        "x": b"1",
        "run/run.json": b"2",
        "run/manifest.json": b"3",
    }
