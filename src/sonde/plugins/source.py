"""Where a guest comes from, in words that last: run ids cover them, and any machine finds the same code by them.

mine.py:Mine@1f2e3d4c5b6a         a file, with a digest of its bytes, which travel with the configuration
lab.rules:Mine@lab-1.2.0-1f2e3d…  a module of an installed package, which must be installed there too
torch.optim:RMSprop               of torch, whose version every session records
data.npz@1f2e3d4c5b6a             arrays; the file stays where it is
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from sonde.core.errors import SondeError, nearest
from sonde.core.signatures import digest
from sonde.plugins.edited import edited

Carried = bytes | str
"""The content of a file of code, or where a file of arrays lies."""

_known: dict[str, Carried] = {}  # by the source without the name of the thing: "mine.py@1f2e3d4c5b6a"
_modules: dict[str, ModuleType] = {}


@dataclass(frozen=True)
class Source:
    """A file or module, what it holds under a name, and the stamp by which a change is noticed."""

    where: str
    name: str | None = None
    stamp: str | None = None

    def __post_init__(self) -> None:
        if set("@:") & set(self.where):
            raise SondeError(f"{self.where}: rename the file, without '@' and ':', which a source has a use for")

    @classmethod
    def parse(cls, text: str) -> "Source":
        rest, _, stamp = text.partition("@")
        where, _, name = rest.partition(":")
        return cls(where, name or None, stamp or None)

    def __str__(self) -> str:
        return self.where + (f":{self.name}" if self.name else "") + (f"@{self.stamp}" if self.stamp else "")

    @property
    def content(self) -> str:
        """The key of what is behind it, which things of one file share."""
        return f"{self.where}@{self.stamp}"

    @property
    def is_file(self) -> bool:
        return self.where.endswith(".py")

    @property
    def is_data(self) -> bool:
        return self.where.endswith(".npz")


def of_file(path: Path, name: str) -> Source:
    """A thing in a file of code, read and imported now."""
    content = _bytes(path, name)
    source = Source(path.name, name, digest(content))
    _known.setdefault(source.content, content)
    _module_of_file(source, str(path))
    return source


def look(reference: str) -> Source:
    """The source that a reference would have, without running the code that it names."""
    if reference.endswith(".npz"):
        return of_data(reference)
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        path = Path(where).expanduser()
        return Source(path.name, name, digest(_bytes(path, name)))
    try:
        found = importlib.util.find_spec(where)  # runs the packages around it, which the user named
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin:
        raise SondeError(f"no module {where!r}: install it, or name a file as path/to/file.py:Name")
    if where.partition(".")[0] == "torch":
        return Source(where, name)
    content, distribution = _bytes(Path(found.origin), name), _distributions().get(where.partition(".")[0])
    if distribution is None:
        return Source(Path(found.origin).name, name, digest(content))
    return Source(where, name, f"{distribution}-{importlib.metadata.version(distribution)}-{digest(content)}")


def of_data(file: str) -> Source:
    """A file of arrays, read now."""
    from sonde.store.files import absolute, place
    from sonde.tasks.arrays import read_npz

    source = Source(place(file).name, None, digest(read_npz(file)))
    _known.setdefault(source.content, absolute(place(file)))
    return source


def of_module(module: str, name: str) -> Source:
    """A thing in a module that can be imported here."""
    imported = _imported(module)
    return _of_module(imported, name, _under(imported, name))


def of_object(thing: Any) -> Source:
    """A class or function that was handed over: the file it was written in, or the package it was installed with."""
    module = sys.modules.get(thing.__module__)
    for known, loaded in list(_modules.items()):
        if loaded is module:
            content = _known[known]
            assert isinstance(content, bytes)
            if not edited(thing, module, content):
                where, _, stamp = known.rpartition("@")
                return Source(where, thing.__qualname__, stamp)
            del _modules[known]  # it was imported anew, with other content
    if module is not None and getattr(module, "__file__", None):
        return _of_module(module, thing.__qualname__, thing)
    try:
        content = inspect.getsource(thing).encode()  # of a notebook's cell
    except (OSError, TypeError):
        raise SondeError(
            f"{thing.__qualname__} was written in no file, so its runs could not say what they are: put it into one"
        ) from None
    source = Source(f"{thing.__name__}.py", thing.__qualname__, digest(content))
    _known.setdefault(source.content, content)
    return source


def thing_of(source: Source) -> Any:
    """What stands under the name in the file or module."""
    module = _module_of_file(source, source.where) if source.is_file else _module_of_package(source)
    found: Any = module
    for part in (source.name or "").split("."):
        there = [name for name in vars(found) if not name.startswith("_")]
        if part not in vars(found):
            raise SondeError(f"{source.where} has no {source.name!r}: {nearest(part, there)}")
        found = getattr(found, part)
    return found


def stands_in_its_module(thing: Any) -> bool:
    """Whether its name leads to it from the top of its module, as that of a decorated function does."""
    return _under(sys.modules.get(thing.__module__), thing.__qualname__) is thing


def path_of(source: Source) -> str:
    """Where a file of arrays lies."""
    at = _content(source)
    assert isinstance(at, str)
    return at


def carried(sources: Iterable[Source]) -> dict[str, Carried]:
    """What another process needs to find the same things."""
    return {source.content: _known[source.content] for source in sources if source.content in _known}


def receive(brought: dict[str, Carried]) -> None:
    """Know what a process that sends configurations knows."""
    _known.update(brought)


def copies(sources: Iterable[Source]) -> dict[str, bytes]:
    """The files of code by the names under which a run keeps them; namesakes get their digest too."""
    found: dict[str, bytes] = {}
    for source in sources:
        content = _known.get(source.content)
        if isinstance(content, bytes):
            name = source.where if source.is_file else f"{source.where}.py"
            if found.get(name, content) != content:
                name = f"{Path(name).stem}-{source.stamp}.py"
            found[name] = content
    return found


def _bytes(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SondeError(f"{path}: {(error.strerror or str(error)).lower()}; write file.py:{name}") from None


def _content(source: Source) -> Carried:
    if source.content not in _known:
        raise SondeError(
            f"{source} is not known here: name the file again, or the copy that its run keeps, as file.py:{source.name}"
        )
    return _known[source.content]


def _module_of_file(source: Source, shown: str) -> ModuleType:
    """The file's code, run once; two files of one content are one module."""
    key = source.content
    if key not in _modules:
        content = _content(source)
        module = ModuleType(f"sonde_guest_{source.stamp}")
        module.__file__ = shown
        sys.modules[module.__name__] = module
        try:
            exec(compile(content, shown, "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            del sys.modules[module.__name__]
            raise SondeError(_why(error, shown)) from error
        _modules[key] = module
    return _modules[key]


def _why(error: BaseException, file: str) -> str:
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else None
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{file} imports {error.name!r} in line {line}, which is not installed: install it, or put what you need "
            "of it into the file"
        )
    said = (str(error).strip().splitlines() or [""])[0]
    at = f" in line {line}" if line else ""
    return f"{file} cannot be imported: {type(error).__name__}: {said}{at}; mend it and give the command again"


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SondeError(f"no module {error.name!r}: install it, or name a file as path/to/file.py:Name") from None
    except Exception as error:
        raise SondeError(_why(error, module)) from error


def _under(module: ModuleType | None, name: str) -> Any:
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), module)


def _of_module(module: ModuleType, name: str, thing: Any) -> Source:
    package = module.__name__.partition(".")[0]
    if package == "torch":
        return Source(module.__name__, name)
    assert module.__file__
    try:
        content = Path(module.__file__).read_bytes()
    except OSError as error:
        raise SondeError(f"{module.__file__}: {error.strerror or error}") from None
    if edited(thing, module, content):
        raise SondeError(
            f"{module.__file__} was edited after {name} was imported: import it anew, or start Python again"
        )
    distribution = _distributions().get(package)
    if distribution is None:  # a script, or a module that lies on the path
        source = Source(Path(module.__file__).name, name, digest(content))
        _modules.setdefault(source.content, module)
    else:
        version = importlib.metadata.version(distribution)
        source = Source(module.__name__, name, f"{distribution}-{version}-{digest(content)}")
    _known.setdefault(source.content, content)
    return source


def _module_of_package(source: Source) -> ModuleType:
    module = _imported(source.where)
    if source.stamp:
        name = source.name or ""
        here = _of_module(module, name, _under(module, name)).stamp
        if here != source.stamp:
            raise SondeError(f"{source.where} is {here} here, but the run was made with {source.stamp}: install that")
    return module


@cache
def _distributions() -> dict[str, str]:
    """Package → what it was installed with."""
    return {package: names[0] for package, names in importlib.metadata.packages_distributions().items()}
