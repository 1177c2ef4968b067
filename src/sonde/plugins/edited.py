"""Whether a class or function still is what its file says.  A file may be edited after it was imported."""

import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


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
