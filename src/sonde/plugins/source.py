"""Where a plugin's code comes from.  Run ids cover the source, and every machine finds the same code by it.

mine.py:Mine@1f2e3d4c5b6a         a file, with a digest of its bytes, which are sent with the configuration
lab.rules:Mine@lab-1.2.0-1f2e3d…  a module of an installed package, which must be installed on every machine
torch.optim:RMSprop               a class of torch, whose version every session records
data.npz@1f2e3d4c5b6a             arrays; the file stays where it is
"""

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from sonde.core.errors import SondeError, nearest
from sonde.core.validated import content_digest


class Carried(NamedTuple):
    """What another process needs of a source: the content of a file of code, and where the file lies.

    `at` is the folder of a file of code (None for a notebook cell), or the path of a file of arrays.
    """

    content: bytes | None
    at: str | None


_known: dict[str, Carried] = {}  # by the source without the attribute: "mine.py@1f2e3d4c5b6a"
_modules: dict[str, ModuleType] = {}  # by the same key
_folders: set[str] = set()  # of imported files


@dataclass(frozen=True)
class Source:
    """A file or module, the name of an attribute in it, and a stamp that changes with its content."""

    where: str
    name: str | None = None
    stamp: str | None = None

    def __post_init__(self) -> None:
        if set("@:") & set(self.where):
            raise SondeError(f"{self.where}: rename the file, without '@' and ':', which a source uses")

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Read WHERE:NAME@STAMP, what `str` writes."""
        rest, _, stamp = text.partition("@")
        where, _, name = rest.partition(":")
        return cls(where, name or None, stamp or None)

    def __str__(self) -> str:
        return self.where + (f":{self.name}" if self.name else "") + (f"@{self.stamp}" if self.stamp else "")

    @property
    def content(self) -> str:
        """The key of the file or module; attributes of one file share it."""
        return f"{self.where}@{self.stamp}"

    @property
    def is_file(self) -> bool:
        """Whether it is a file of code."""
        return self.where.endswith(".py")

    @property
    def is_data(self) -> bool:
        """Whether it is a file of arrays."""
        return self.where.endswith(".npz")


def import_file(path: Path, name: str) -> Any:
    """Import `name` from a file: what FILE.py:NAME means in every command.

    The file runs once for each content.  Modules beside the file can be imported.
    """
    return import_thing(import_file_source(path, name))


def import_file_source(path: Path, name: str) -> Source:
    """Read and import a file of code; return the source of `name` in it."""
    content = _bytes(path, name)
    source = Source(path.name, name, content_digest(content))
    _known.setdefault(source.content, Carried(content, _folder(path)))
    _run_file(source.content, _known[source.content], str(path))
    return source


def reference_source(reference: str) -> Source:
    """The source of a reference, without running the code that it names."""
    if reference.endswith(".npz"):
        return source_of_data(reference)
    where, _, name = reference.rpartition(":")
    if where.endswith(".py"):
        path = Path(where).expanduser()
        return Source(path.name, name, content_digest(_bytes(path, name)))
    try:
        found = importlib.util.find_spec(where)  # imports the packages around it, which the user named
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin:
        raise SondeError(f"no module {where!r}: install it, or name a file as path/to/file.py:Name")
    return _module_source(where, name, Path(found.origin), None)


def source_of_data(file: str) -> Source:
    """Read a file of arrays and return its source."""
    from sonde.store.files import absolute, place
    from sonde.tasks.task import read_npz

    source = Source(place(file).name, None, content_digest(read_npz(file)))
    _known.setdefault(source.content, Carried(None, absolute(place(file))))
    return source


def import_module_source(module: str, name: str) -> Source:
    """Import a module and return the source of `name` in it."""
    imported = _imported(module)
    return _of_imported(imported, name, _under(imported, name))


def source_of_object(thing: Any) -> Source:
    """The source of a class or function: its file, or the package it is installed with."""
    module = sys.modules.get(thing.__module__)
    for known, loaded in list(_modules.items()):
        if loaded is module and known in _known:
            content = _known[known].content
            assert content is not None
            if not edited(thing, module, content):
                where, _, stamp = known.rpartition("@")
                return Source(where, thing.__qualname__, stamp)
            del _modules[known]  # it was imported again, with other content
    if module is not None and getattr(module, "__file__", None):
        return _of_imported(module, thing.__qualname__, thing)
    try:
        content = inspect.getsource(thing).encode()  # of a notebook's cell
    except (OSError, TypeError):
        raise SondeError(
            f"{thing.__qualname__} is not defined in a file, so its runs could not record it: put it into a file"
        ) from None
    source = Source(f"{thing.__name__}.py", thing.__qualname__, content_digest(content))
    _known.setdefault(source.content, Carried(content, None))
    return source


def import_thing(source: Source) -> Any:
    """The class or function of a source."""
    is_file = source.is_file
    module = _run_file(source.content, _carried(source), source.where) if is_file else _module_of_package(source)
    return _attribute(module, source.name or "", source.where)


def stands_in_its_module(thing: Any) -> bool:
    """Whether the qualified name leads to this very object from the top of its module."""
    return _under(sys.modules.get(thing.__module__), thing.__qualname__) is thing


def path_of(source: Source) -> str:
    """The path of a file of arrays."""
    at = _carried(source).at
    assert at is not None
    return at


def carried(texts: Iterable[str]) -> dict[str, Carried]:
    """What another process has to `receive` before it reads configurations with these sources."""
    keys = [Source.parse(text).content for text in texts]
    return {key: _known[key] for key in keys if key in _known}


def receive(brought: dict[str, Carried]) -> None:
    """Take over what the process that sends configurations knows about their sources."""
    _known.update(brought)


def copies(texts: Iterable[str]) -> dict[str, bytes]:
    """The files of code behind the sources, by the names that a run's folder keeps them under."""
    found: dict[str, bytes] = {}
    for source in map(Source.parse, texts):
        content = _known[source.content].content if source.content in _known else None
        if content is not None:
            name = source.where if source.is_file else f"{source.where}.py"
            if found.get(name, content) != content:
                name = f"{Path(name).stem}-{source.stamp}.py"
            found[name] = content
    return found


def _bytes(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise SondeError(f"{path}: {said}; check the name, or give the path, as in folder/{path.name}:{name}") from None


def _folder(path: Path) -> str:
    return str(path.resolve().parent)


def _carried(source: Source) -> Carried:
    if source.content not in _known:
        raise SondeError(
            f"{source} is not known here: name the file again, or the copy that its run keeps, as file.py:{source.name}"
        )
    return _known[source.content]


def _run_file(key: str, code: Carried, shown: str) -> ModuleType:
    """Run a file's code as a module, once for each content; two files of one content are one module.

    While it runs, the file's folder is first on `sys.path`, as for a script.  Then it is the last, so that imports
    inside functions find modules beside the file, and Sonde's own imports find what is installed.
    """
    if key in _modules:
        return _modules[key]
    assert code.content is not None
    module = ModuleType(f"sonde_plugin_{key.rpartition('@')[2]}")
    module.__file__ = shown
    sys.modules[module.__name__] = module
    try:
        compiled = compile(code.content, shown, "exec")
        if code.at is not None:
            _refuse_namesakes(ast.parse(code.content), code.at, shown)
            sys.path.insert(0, code.at)
        try:
            exec(compiled, module.__dict__)
        finally:
            if code.at is not None:
                if code.at in sys.path:
                    sys.path.remove(code.at)
                if code.at not in sys.path:
                    sys.path.append(code.at)
                _folders.add(code.at)
    except SondeError:
        del sys.modules[module.__name__]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise SondeError(_why(error, shown)) from error
    _modules[key] = module
    return module


def _refuse_namesakes(tree: ast.Module, folder: str, shown: str) -> None:
    """Refuse a file whose import would silently get a module of the same name beside another plugin's file."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in (name.partition(".")[0] for name in names):
            beside = Path(folder, f"{name}.py").exists() or Path(folder, name, "__init__.py").exists()
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if not beside or loaded is None:
                continue
            other = Path(loaded).resolve().parent
            other = other.parent if Path(loaded).name == "__init__.py" else other
            if str(other) != folder and str(other) in _folders:
                raise SondeError(f"{shown} imports {name!r}, but {loaded} has that name here: rename one of the two")


def _attribute(module: ModuleType, name: str, shown: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if part not in vars(found):
            there = [name for name in vars(found) if not name.startswith("_")]
            raise SondeError(f"{shown} has no {name!r}: {nearest(part, there)}")
        found = getattr(found, part)
    return found


def _why(error: BaseException, file: str) -> str:
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else frames[-1] if frames else None
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{file} imports {error.name!r} in line {line}, which is not installed and not beside the file: install "
            "it, or put what you need of it into the file"
        )
    said = (str(error).strip().splitlines() or [""])[0]
    at = f" in line {line}" if line else ""
    return f"{file} cannot be imported: {type(error).__name__}: {said}{at}; fix it and run the command again"


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SondeError(f"no module {error.name!r}: install it, or name a file as path/to/file.py:Name") from None
    except Exception as error:
        raise SondeError(_why(error, module)) from error


def _under(module: ModuleType | None, name: str) -> Any:
    return reduce(lambda found, part: getattr(found, part, None), name.split("."), module)


def _module_source(module: str, name: str, file: Path, content: bytes | None) -> Source:
    """A file on the path has its own name and digest; an installed module also the version of its distribution."""
    package = module.partition(".")[0]
    if package == "torch":
        return Source(module, name)
    stamp = content_digest(_bytes(file, name) if content is None else content)
    distribution = _distributions().get(package)
    if distribution is None:
        return Source(file.name, name, stamp)
    return Source(module, name, f"{distribution}-{importlib.metadata.version(distribution)}-{stamp}")


def _of_imported(module: ModuleType, name: str, thing: Any) -> Source:
    if module.__name__.partition(".")[0] == "torch":
        return Source(module.__name__, name)
    assert module.__file__
    file = Path(module.__file__)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SondeError(f"{file}: {error.strerror or error}") from None
    if edited(thing, module, content):
        raise SondeError(f"{file} was edited after {name} was imported: import it again, or restart Python")
    source = _module_source(module.__name__, name, file, content)
    if source.is_file:  # a script, or a module on the path
        _modules.setdefault(source.content, module)
    _known.setdefault(source.content, Carried(content, _folder(file) if source.is_file else None))
    return source


def _module_of_package(source: Source) -> ModuleType:
    module = _imported(source.where)
    if source.stamp:
        name = source.name or ""
        here = _of_imported(module, name, _under(module, name)).stamp
        if here != source.stamp:
            raise SondeError(f"{source.where} is {here} here, but the run was made with {source.stamp}: install that")
    return module


@cache
def _distributions() -> dict[str, str]:
    """The distribution that installed each package."""
    return {package: names[0] for package, names in importlib.metadata.packages_distributions().items()}


# ── a file that was edited after it was imported ─────────────────────────────────────────────────────
def edited(thing: Any, module: ModuleType, content: bytes) -> bool:
    """Whether the file's content differs from the imported code of a class or function.

    Compares the functions of the module that the thing consists of or names, with their lines.  A constant of the
    module or of a class is not compared.  False if the code cannot be compared.
    """
    spec = module.__spec__
    loader = spec.loader if spec else vars(module).get("__loader__")  # a script has no spec
    if type(loader) is not SourceFileLoader:  # another loader, such as pytest's, may change the code
        return False
    try:
        written = _compiled(content)
    except (SyntaxError, ValueError):
        return True
    return any(_comparable(code) not in written for code in _codes_of(thing, module))


@cache
def _compiled(content: bytes) -> frozenset[Any]:
    return frozenset(map(_comparable, _within(compile(content, "", "exec", dont_inherit=True))))


def _comparable(code: CodeType) -> tuple[Any, ...]:
    """What two code objects of one text share, wherever the file lies and however often they ran."""
    constants = tuple(_comparable(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.co_name, code.co_firstlineno, code.co_code, code.co_names, constants


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def _codes_of(thing: Any, module: ModuleType) -> Iterator[CodeType]:
    """The code of a function or of a class's methods, and of the functions of the module that they name."""
    file = Path(module.__file__ or "").name
    waiting, seen = [thing], set()
    while waiting:
        one = _undecorated(waiting.pop())
        if id(one) in seen or getattr(one, "__module__", None) != module.__name__:
            continue
        seen.add(id(one))
        one = inspect.unwrap(one) if callable(one) else one
        if isinstance(one, type):
            waiting += [*vars(one).values(), *one.__bases__]
        elif inspect.isfunction(one) and Path(one.__code__.co_filename).name == file:  # none that was generated
            yield one.__code__
            names = {name for code in _within(one.__code__) for name in code.co_names}
            waiting += [vars(module)[name] for name in names if name in vars(module)]


def _undecorated(member: Any) -> Any:
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, cached_property) else member
