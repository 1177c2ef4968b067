"""The modules of a model: their names, which are watched, what is read of each kind, and which were replaced."""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sonde.core.errors import SondeError, nearest

WHOLE_MODEL = "(model)"  # the name of the model itself
COMPILED = "it runs in a graph that was compiled without the watch: call watch.recompile()"
FROZEN = "frozen and in eval mode, where a hook would change the way PyTorch computes it"
SCRIPTED = "the module is TorchScript: what happens inside is not seen"
REPLICATED = "nn.DataParallel calls a copy of the module on each device: use DistributedDataParallel"
WITHIN_ATTENTION = "MultiheadAttention uses its weights without calling it"
REMOVED = "the module is no longer part of the model"

Layers = str | Iterable[str] | Callable[[str, nn.Module], bool] | None

_TRANSPARENT = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_BOUNDS: tuple[tuple[type[nn.Module], tuple[float, float]], ...] = (
    (nn.Tanh, (-1.0, 1.0)),
    (nn.Sigmoid, (0.0, 1.0)),
    (nn.Softmax, (0.0, 1.0)),
    (nn.Softmax2d, (0.0, 1.0)),
)
_NEVER_NEGATIVE = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softmax, nn.Softmax2d, nn.Softplus)
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_MAPS = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
_LAST = (nn.Linear, nn.Bilinear, nn.LayerNorm, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.MultiheadAttention)

_SEQUENCES = (nn.RNNBase, nn.MultiheadAttention)

_KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear, nn.Bilinear),
    "convolution": (nn.modules.conv._ConvNd,),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
    "dropout": (nn.modules.dropout._DropoutNd,),
}


class WatchedModule:
    """A module that may be watched, and what is known of it before it is called."""

    def __init__(
        self, name: str, module: nn.Module, *, chosen: bool | None, hidden: str | None, compiled: bool = False
    ) -> None:
        self.name = name
        self.module = weakref.ref(module)
        self.type = str(getattr(module, "original_name", type(module).__name__))  # of TorchScript, what it was
        self.chosen = chosen  # None: decided by the shapes of its first call
        self.hidden = hidden  # why its calls cannot be seen
        self.compiled = compiled  # whether torch.compile was asked for it, or for a module around it
        self.tapped = compiled  # whether a graph may hold its hooks
        self.skipped: str | None = None  # why it gets no hooks while the model is as it is
        self.is_root = name == WHOLE_MODEL
        self.activation = _is_activation(module)
        self.bounds = next((bounds for kind, bounds in _BOUNDS if isinstance(module, kind)), None)
        self.never_negative = isinstance(module, _NEVER_NEGATIVE)
        self.normalises = isinstance(module, _NORMS) or self.type.endswith("Norm")
        self.is_attention = isinstance(module, nn.MultiheadAttention)
        # Whether its input has time before samples.
        self.time_first = getattr(module, "batch_first", None) is False and isinstance(module, _SEQUENCES)
        self.kind = next((word for word, kinds in _KINDS.items() if isinstance(module, kinds)), None)
        self.kind = "activation" if self.activation else "norm" if self.normalises else self.kind
        self.drops = float(getattr(module, "p", 0.0)) if self.kind == "dropout" else 0.0
        self.batch_first: bool | None = getattr(module, "batch_first", None)  # of a module that reads sequences
        # Where the units of its output, and of activations after it, are: -1 the last axis, 1 channels.
        self.units = 1 if isinstance(module, _MAPS) else -1 if isinstance(module, _LAST) else None


def _is_activation(module: nn.Module) -> bool:
    known = any(kind.__module__ == "torch.nn.modules.activation" for kind in type(module).__mro__)
    return known and not isinstance(module, nn.MultiheadAttention)


def find_modules(model: nn.Module, layers: Layers = None) -> list[WatchedModule]:
    """Every module by its name, those to be watched marked; a module used under two names has the first."""
    found = _modules_of(model, layers)
    if layers is not None and not any(watched.chosen for watched in found):
        named = layers if isinstance(layers, str) else "it"
        raise SondeError(f"layers={layers!r}: no module matches {named!r}; {nearest(named, [s.name for s in found])}")
    return found


def _modules_of(model: nn.Module, layers: Layers) -> list[WatchedModule]:
    chosen = _chosen(layers)
    return [
        WatchedModule(name, module, chosen=chosen(name, module), hidden=hidden, compiled=compiled)
        for name, module, hidden, compiled in _walk(model, WHOLE_MODEL, None, False, set())
    ]


def _chosen(layers: Layers) -> Callable[[str, nn.Module], bool | None]:
    if layers is None:
        return lambda name, module: True if any(_own_parameters(module)) or _is_activation(module) else None
    if callable(layers):
        return lambda name, module: bool(layers(name, module))
    patterns = [layers] if isinstance(layers, str) else list(layers)
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)


def _walk(
    module: nn.Module, name: str, hidden: str | None, compiled: bool, seen: set[int]
) -> Iterator[tuple[str, nn.Module, str | None, bool]]:
    """Name, module, why its calls are not seen, and whether it is compiled; without the wrappers of distributing."""
    hidden = REPLICATED if _has_replicas(module) else hidden
    module = unwrapped(module)
    if id(module) in seen:
        return
    seen.add(id(module))
    if isinstance(module, torch.jit.ScriptModule):
        yield name, module, SCRIPTED, compiled
        return
    compiled = compiled or getattr(module, "_compiled_call_impl", None) is not None
    yield name, module, hidden, compiled
    content = uncompiled(module)
    if content is not module:
        seen.add(id(content))
        compiled = True
    if isinstance(content, nn.MultiheadAttention):
        hidden = hidden or WITHIN_ATTENTION
    for part, child in content.named_children():
        yield from _walk(child, part if name == WHOLE_MODEL else f"{name}.{part}", hidden, compiled, seen)


def _has_replicas(module: nn.Module) -> bool:
    return isinstance(module, nn.DataParallel) and len(module.device_ids) > 1


def unwrapped(module: nn.Module) -> nn.Module:
    """The module that DistributedDataParallel, DataParallel or a checkpoint wrapper calls."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            module = module.module
            continue
        held = [module._modules[part] for part in _TRANSPARENT if part in module._modules]
        if not held or held[0] is None:
            return module
        module = held[0]


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile wraps; else the module itself."""
    if isinstance(module, torch.jit.ScriptModule):
        return module
    inner = module._modules.get("_orig_mod")
    return module if inner is None else inner


def _named_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every name of every parameter: one that is shared comes under each of its names."""
    for name, module, _, _ in _walk(model, WHOLE_MODEL, None, False, set()):
        for part, parameter in _own_parameters(uncompiled(module)):
            if parameter is not None:
                yield part if name == WHOLE_MODEL else f"{name}.{part}", parameter


def _own_parameters(module: nn.Module) -> Iterable[tuple[str, nn.Parameter | None]]:
    """The parameters of the module itself; of TorchScript, which is not walked into, all of them."""
    if isinstance(module, torch.jit.ScriptModule):
        return module.named_parameters()
    return module._parameters.items()


def is_lazy(parameter: torch.Tensor) -> bool:
    """Whether a parameter, as of LazyLinear, has no shape before the first forward pass."""
    return isinstance(parameter, nn.parameter.UninitializedParameter)


def modules_with_modes(model: nn.Module) -> list[nn.Module]:
    """Modules that train and eval mode change, in parts of the model that learn: dropout, batch statistics."""
    found: list[nn.Module] = []

    def visit(module: nn.Module, learns: bool) -> None:
        parameters = list(module.parameters())
        learns = any(parameter.requires_grad for parameter in parameters) if parameters else learns
        drops = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        counts = (
            isinstance(module, nn.modules.batchnorm._NormBase) and getattr(module, "running_mean", None) is not None
        )
        if learns and (drops or counts):
            found.append(module)
        for child in module.children():
            visit(child, learns)

    visit(model, True)
    return found


def has_fast_path(module: nn.Module) -> bool:
    """Whether PyTorch may compute this encoder layer in one kernel, as long as nothing is hooked to it."""
    return (
        isinstance(module, nn.TransformerEncoderLayer)
        and not module.training
        and not any(parameter.requires_grad for parameter in module.parameters())
    )


@dataclass(slots=True)
class Replacement:
    """Modules and parameters that replaced others while the model was watched, by name."""

    step: int
    modules: list[str] = field(default_factory=list)  # others than before, or new
    removed: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)  # likewise
    not_in_optimiser: list[str] = field(default_factory=list)  # of these, where an optimiser was given

    def __str__(self) -> str:
        parts = [
            f"{words} {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for words, names in (
                ("new in place of others:", self.modules or self.parameters),
                ("gone:", self.removed),
                ("in no optimiser that was given:", self.not_in_optimiser),
            )
            if names
        ]
        return f"the model is not the one of the steps before (step {self.step}): {'; '.join(parts)}"


class WatchedModel:
    """The modules and parameters of a model as they are now, to notice when the program replaces some of them."""

    def __init__(self, model: nn.Module, layers: Layers = None) -> None:
        self.model, self._layers = weakref.ref(model), layers
        self._read(model, find_modules(model, layers))

    def _read(self, model: nn.Module, modules: list[WatchedModule]) -> None:
        self.modules = modules
        self.root = next(watched for watched in modules if watched.is_root)
        names: dict[int, list[str]] = {}
        for name, parameter in _named_parameters(model):
            names.setdefault(id(parameter), []).append(name)
        self.names = {place: known[0] for place, known in names.items()}  # first name of each parameter, by identity
        self.shared = [known for known in names.values() if len(known) > 1]  # names of one and the same parameter
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        self._compares_parameters = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        self._held = [self._identities(module) for watched in modules if (module := watched.module()) is not None]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that still exist."""
        return [parameter for known in self._parameters if (parameter := known()) is not None]

    @property
    def is_compiled(self) -> bool:
        """Whether graphs of torch.compile may hold hooks of a module."""
        return any(watched.tapped for watched in self.modules)

    def is_unchanged(self) -> bool:
        """Whether every module and parameter is still there and in its place.

        Tensors that `torch.func.functional_call` puts in the place of parameters for one call do not count.  Among
        several processes parameters are not compared: sharded ones are exchanged for whole ones in every pass.
        """
        modules = [module for watched in self.modules if (module := watched.module()) is not None]
        gone = self._compares_parameters and any(known() is None for known in self._parameters)
        if gone or len(modules) < len(self.modules):
            return False
        return all(
            held == self._identities(module) or _is_borrowed(module)
            for held, module in zip(self._held, modules, strict=True)
        )

    def _identities(self, module: nn.Module) -> list[int]:
        """Identities of submodules and parameters, which are unique as long as none is freed."""
        held = map(id, module._parameters.values()) if self._compares_parameters else ()
        return [*map(id, module._modules.values()), *held]

    def renew(self, model: nn.Module, step: int) -> Replacement:
        """Read the model again, and return what is new and what is gone."""
        known = {watched.name: watched for watched in self.modules}
        before = {id(parameter) for parameter in self.parameters}
        now = []
        for found in _modules_of(model, self._layers):
            old = known.get(found.name, found)
            now.append(old if old.module() is found.module() else found)
        self._read(model, now)
        return Replacement(
            step,
            modules=[watched.name for watched in now if watched is not known.get(watched.name)],
            removed=[name for name in known if name not in {watched.name for watched in now}],
            parameters=[name for place, name in self.names.items() if place not in before],
        )


def _is_borrowed(module: nn.Module) -> bool:
    there = (parameter for parameter in module._parameters.values() if parameter is not None)
    return not all(isinstance(parameter, nn.Parameter) for parameter in there)


_ELSEWHERE = "the parameter is sharded over other processes than rank 0"


def is_sharded(x: Tensor) -> bool:
    """Whether the tensor is a DTensor.  Its module is not imported for that: it takes long, and few programs use it."""
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and isinstance(x, known.DTensor)


def is_flat(x: Tensor) -> bool:
    """Whether a plain parameter is, or may be, a part of a flat parameter of FSDP1, which tells nothing of the rest."""
    return getattr(x, "_fsdp_flattened", False) and is_initialised() and dist.get_world_size() > 1


def unreadable_part(x: Any) -> str | None:
    """Why the norm of a DTensor is not the root of a sum of squares over its parts, or None."""
    odd = [repr(placement) for placement in x.placements if not (_is_split(placement) or placement.is_replicate())]
    if odd:
        return f"a DTensor with the placement {', '.join(odd)} is not read: its parts are not entries of the whole"
    local = x.detach().to_local()
    if local.layout != torch.strided or local.is_complex():
        return "a sparse or complex DTensor is not read"
    if local.is_meta:
        return "a DTensor on the device meta has no values"
    return _ELSEWHERE if is_initialised() and dist.get_rank() == 0 and not _counts(x) else None


def own_part(x: Tensor) -> Tensor:
    """The entries that this process counts: of a DTensor its part, or none if another process counts that part."""
    x = x.detach()
    if not is_sharded(x):
        return x
    held: Any = x
    part: Tensor = held.to_local()
    return part if _counts(held) else part.new_zeros(0)


def _is_split(placement: Any) -> bool:
    return bool(placement.is_shard()) or type(placement).__name__ == "_StridedShard"


def _counts(x: Any) -> bool:
    """Of several copies of a part, the one that counts has the place of rank 0 on the axes that are replicated."""
    mesh = x.device_mesh
    first = (mesh.mesh == 0).nonzero().tolist()
    here = mesh.get_coordinate()
    if not first or here is None:
        return False
    pairs = zip(x.placements, here, first[0], strict=True)
    return all(mine == its for placement, mine, its in pairs if placement.is_replicate())


def is_initialised() -> bool:
    """Whether this process is in a process group."""
    return dist.is_available() and dist.is_initialized()
