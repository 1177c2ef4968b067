"""Which submodules the units are: by their names, or where the weight matrices of a sequence are."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from sonde.core.errors import SondeError, nearest


def submodule(module: nn.Module, name: str) -> nn.Module:
    names: dict[str, nn.Module] = dict(module.named_modules(remove_duplicate=False))
    if not name or name not in names:
        raise SondeError(f"{type(module).__name__} has no submodule {name!r}: {nearest(name, names)}")
    return names[name]


def between(module: nn.Module, first: str, last: str) -> list[nn.Module]:
    """The submodules of a unit; several are children of an `nn.Sequential`."""
    if first == last:
        return [submodule(module, first)]
    names = list(module._modules)
    return [submodule(module, name) for name in names[names.index(first) : names.index(last) + 1]]


def named(module: nn.Module, globs: Sequence[str]) -> list[str]:
    """The submodules that patterns name, in their order."""
    names = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    found: list[str] = []
    for glob in [globs] if isinstance(globs, str) else globs:
        matching = [name for name in names if _matches(name, glob)]
        if not matching:
            raise SondeError(f"{type(module).__name__} has no submodule {glob!r}: {nearest(glob, names)}")
        found += [name for name in matching if name not in found]
    for outer in found:
        for inner in found:
            if inner.startswith(f"{outer}."):
                raise SondeError(f"unit {inner!r} is a part of unit {outer!r}: name one of them")
    if not found:
        raise SondeError("a chain needs at least one unit: name it in units")
    return found


def _matches(name: str, glob: str) -> bool:
    parts, patterns = name.split("."), glob.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def grouped(module: nn.Sequential, readout: str | None) -> list[tuple[str, str]]:
    """The first and last child of every unit of a sequence; one begins wherever there is a weight matrix."""
    names = list(module._modules)
    if readout is not None:
        submodule(module, readout)
        if readout not in names:
            raise SondeError(f"readout {readout!r} is no child of the nn.Sequential: {nearest(readout, names)}")
    groups: list[list[str]] = []
    for name in names[: names.index(readout)] if readout is not None else names:
        if not groups or (_has_matrix(module, name) and any(_has_matrix(module, n) for n in groups[-1])):
            groups.append([])
        groups[-1].append(name)
    groups = groups if readout is not None else groups[:-1]
    units = groups[1:] or groups
    if not units:
        raise SondeError("a chain needs a unit and a readout: this nn.Sequential has fewer than two weight matrices")
    return [(group[0], group[-1]) for group in units]


def _has_matrix(module: nn.Sequential, name: str) -> bool:
    return any(p.ndim > 1 for p in submodule(module, name).parameters())


def example(module: nn.Module) -> str:
    """What the name of its units may be: its longest list of submodules."""
    lists = {name: len(m) for name, m in module.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)}
    return f"{max(lists, key=lambda name: lists[name])}.*" if lists else next(iter(module._modules), "layer")
