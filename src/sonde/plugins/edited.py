"""Is a class or function what its file says?  A file may be edited after it was imported."""

import inspect
from collections.abc import Iterator
from functools import cache, cached_property
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def edited(thing: Any, module: ModuleType, content: bytes) -> bool:
    """Whether the file has other code than the one in use.

    Looks at the functions of the module that the thing is made of or names, with their lines; a constant of the
    module or of a class is not seen.  False where it cannot be told.
    """
    spec = module.__spec__
    loader = spec.loader if spec else vars(module).get("__loader__")  # a script has no spec
    if type(loader) is not SourceFileLoader:  # another one, as pytest's, may change the code that it loads
        return False
    try:
        written = _written(content)
    except (SyntaxError, ValueError):
        return True
    return any(_compared(code) not in written for code in _in_use(thing, module))


@cache
def _written(content: bytes) -> frozenset[Any]:
    return frozenset(map(_compared, _within(compile(content, "", "exec", dont_inherit=True))))


def _compared(code: CodeType) -> tuple[Any, ...]:
    """What two codes of one text share, wherever the file lies and however often they ran."""
    constants = tuple(_compared(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.co_name, code.co_firstlineno, code.co_code, code.co_names, constants


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


def _in_use(thing: Any, module: ModuleType) -> Iterator[CodeType]:
    """The codes of a function or of a class's methods, and of what they name, as far as they are of the module."""
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
