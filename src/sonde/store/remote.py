"""An object store through fsspec: whole objects are put, read, listed and deleted, nothing else.

Every request that fails for a passing reason is made again; all of them may be, since a put that is made twice
leaves the same object.  This is the only place that retries: fsspec's file systems and their libraries would each
do so in their own way, none of them covers an answer that breaks off, and their numbers of tries would multiply.
"""

import errno
import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sonde.core.errors import SondeError, installation

_T = TypeVar("_T")

TRIES = 8
PAUSE = 0.25  # seconds at most before the second try; twice as long before each one after it

_ONE_TRY = {"config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 1}}}
OPTIONS: dict[str, dict[str, Any]] = {
    protocol: {**_ONE_TRY, "max_concurrency": 1}  # reads an object in one request instead of two
    for protocol in ("s3", "s3a")
}
PACKAGES = {
    "s3": installation("s3"),
    "s3a": installation("s3"),
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
    "abfs": "pip install adlfs",
    "az": "pip install adlfs",
}
WITH_ACCOUNT = ("abfs", "abfss")  # abfs://container@account.… is no credential

LASTING = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
UNCONDITIONAL = (errno.EINVAL, errno.ENOSYS)  # what a server says that knows no conditions
LASTING_NUMBERS = (errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EPERM, errno.ENAMETOOLONG, errno.EMSGSIZE)
PASSING = {
    "HTTPClientError",
    "ConnectionError",
    "ClientPayloadError",
    "ResponseParserError",
    "IncompleteRead",
}
"""Classes of optional packages, by name: connections that fail, answers that break off."""


class Unreachable(SondeError):
    """The store does not answer, or not to us: nothing is known of what it holds."""


@dataclass(frozen=True)
class Remote:
    """An object or a prefix, with the few verbs of a path that an object store has."""

    url: str
    _system: Any = field(repr=False, compare=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, key: str, /) -> "Remote":
        return Remote(f"{self.url}/{key}".rstrip("/"), self._system)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> "Remote":
        return Remote(self.url.rpartition("/")[0], self._system)

    def exists(self) -> bool:
        """Whether there is such an object, or any below it."""
        try:
            self._ask(lambda: self._system.info(self.url))
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> bytes:
        content: bytes = self._ask(lambda: self._system.cat_file(self.url))
        return content

    def put(self, content: bytes) -> None:
        """The whole object at once; readers see the old one until then."""
        with _missing_bucket(self):
            self._ask(lambda: self._system.pipe_file(self.url, content))

    def create(self, content: bytes) -> None:
        """Put it if there is none yet, else FileExistsError; a store that knows no conditions just puts it.

        The caller must tell its own object from another's: a try whose answer was lost did create it.
        """
        try:
            with _missing_bucket(self):
                self._ask(lambda: self._system.pipe_file(self.url, content, mode="create"))
        except (SondeError, TypeError) as error:
            if isinstance(error, SondeError) and getattr(error.__cause__, "errno", None) not in UNCONDITIONAL:
                raise
            if self.exists():
                raise FileExistsError(self.url) from None
            self.put(content)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._ask(lambda: self._system.rm_file(self.url))
        except (FileNotFoundError, KeyError):
            if not missing_ok:
                raise

    def iterdir(self) -> Iterator["Remote"]:
        """What is directly below it; nothing where there is nothing."""
        try:
            names = self._ask(lambda: self._system.ls(self.url, detail=False))
        except FileNotFoundError:
            return
        for name in names:
            yield self / str(name).rstrip("/").rpartition("/")[2]

    def walk(self) -> dict[str, dict[str, Any]]:
        """Every object below it by its name from here on, with what the store says of it, in one listing."""
        with _missing_bucket(self):
            found: dict[str, Any] = self._ask(lambda: self._system.find(self.url, detail=True))
        above = len(str(self._system._strip_protocol(self.url)).rstrip("/")) + 1
        return {name[above:]: about for name, about in found.items() if len(name) > above}

    def _ask(self, request: Callable[[], _T]) -> _T:
        chance = random.SystemRandom()
        for tries in range(1, TRIES + 1):
            try:
                return request()
            except Exception as error:
                if not passing(error):
                    raise _explained(error, self.url) from error
                if tries == TRIES:
                    raise Unreachable(
                        f"{self.url}: no answer in {TRIES} tries ({_reason(error)}); give the same command again when "
                        "the store is back"
                    ) from error
            time.sleep(chance.uniform(0, PAUSE * 2 ** (tries - 1)))
        raise AssertionError


def stamp(about: Mapping[str, Any]) -> str:
    """A digest of what the store says of an object; it changes when the object does."""
    known = sorted((key, str(value)) for key, value in about.items())
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def connect(url: str) -> Remote:
    """Connect to the store of a URL.  A URL with credentials is refused: the provider's own settings hold them."""
    import fsspec

    protocol, _, rest = url.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if at and (":" in user or protocol not in WITH_ACCOUNT):
        raise SondeError(
            f"credentials do not belong in a URL: write {protocol}://bucket/prefix, and give them in the provider's "
            "usual way (environment, its configuration file or the machine's role)"
        )
    if "?" in rest or "#" in rest:
        raise SondeError(f"write {protocol}://bucket/prefix, without anything behind a question mark or a #")
    if not rest.strip("/"):
        raise SondeError(f"{url} names no bucket: write {protocol}://bucket/prefix")
    options = {"use_listings_cache": False, **OPTIONS.get(protocol, {})}
    try:
        if protocol not in fsspec.available_protocols():
            raise SondeError(f"{url}: unknown protocol {protocol!r}; s3://bucket/prefix is an example")
        system, _ = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        fix = PACKAGES.get(protocol, _reason(error))
        raise SondeError(f"{protocol}:// needs a package that is not installed: {fix}") from error
    except Exception as error:
        if isinstance(error, SondeError):
            raise
        raise SondeError(f"{url}: {_reason(error)}") from error
    if protocol in OPTIONS:
        system.retries = 1  # s3fs's own; a class attribute, so no option sets it
    return Remote(url.rstrip("/"), system)


def passing(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, OSError):
        return not isinstance(error, LASTING) and error.errno not in LASTING_NUMBERS
    return any(kind.__name__ in PASSING for kind in type(error).__mro__)


def _explained(error: Exception, url: str) -> Exception:
    """An error that says what a user can do; errors that callers handle are returned unchanged."""
    if "Credential" in type(error).__name__:
        return Unreachable(
            f"{url}: no credentials were found ({_reason(error)}): give them in the provider's usual way, for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or the machine's role"
        )
    if isinstance(error, PermissionError):
        return Unreachable(
            f"{url}: access denied ({_reason(error)}): check the credentials in use and what they may do there"
        )
    if isinstance(error, FileNotFoundError | FileExistsError | TypeError | KeyError):
        return error
    return Unreachable(f"{url}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    """The first line of what the provider says, without anything that follows a question mark in a URL."""
    text = str(error).split("\n", 1)[0] or type(error).__name__
    return re.sub(r"\?[^\s'\"]+", "?…", text)


@contextmanager
def _missing_bucket(target: Remote) -> Iterator[None]:
    """A put or a listing that finds nothing finds no bucket."""
    try:
        yield
    except FileNotFoundError as error:
        bucket = "/".join(target.url.split("/")[:3])
        raise SondeError(f"{bucket} does not exist: create it, or name another") from error
