"""The schemas of `run.json`, `manifest.json`, the facts of a watched run, and an index.

A file that does not fit raises one line that names the file, the key and the fix.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    AllowInfNan,
    ConfigDict,
    GetPydanticSchema,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import CoreSchema as Schema
from pydantic_core import core_schema

from sonde.core.errors import SondeError
from sonde.store.files import MOST_LAYERS

_T = TypeVar("_T")
RunState = Literal["unfinished", "complete", "diverged", "failed"]
ENDED: tuple[RunState, ...] = ("complete", "diverged")
WATCHED_KIND = "watched"  # the kind of a run that has no configuration


@dataclass_transform(frozen_default=True, kw_only_default=True)
def closed(kind: type[_T]) -> type[_T]:
    """A frozen dataclass that is read from JSON with these keys and no others."""
    return with_config(ConfigDict(extra="forbid"))(dataclass(frozen=True, kw_only=True)(kind))


@dataclass_transform(frozen_default=True, kw_only_default=True)
def extensible(kind: type[_T]) -> type[_T]:
    """A frozen dataclass that is read from JSON with these keys, and maybe more."""
    return with_config(ConfigDict(extra="ignore"))(dataclass(frozen=True, kw_only=True)(kind))


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Checksum:
    """SHA-256 and size of a file's content."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    sha256: Sha256
    bytes: Annotated[int, Strict(), Ge(0)]


def checksum(content: bytes) -> Checksum:
    """SHA-256 and length of the content."""
    return Checksum(hashlib.sha256(content).hexdigest(), len(content))


def _printable(name: str) -> str:
    if not name.isprintable() and re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", name):
        raise ValueError("a name has no control characters")
    return name


def _bare(name: str) -> str:
    _printable(name)
    if name in ("", ".", "..") or any(mark in name for mark in "/\\\0"):
        raise ValueError("a file of the run's own folder is named without a path")
    return name


Name = Annotated[str, AfterValidator(_printable)]
BareName = Annotated[str, AfterValidator(_bare)]
Count = Annotated[int, Strict(), Ge(0), Le(2**63 - 1)]
Number = Annotated[float, Strict(), AllowInfNan(False)]
_Tree = dict[str, Any]


def _keys(**known: Schema) -> Schema:
    """The schema of a dict whose keys, where present, have these types; other keys are kept."""
    fields = {name: core_schema.typed_dict_field(kind, required=False) for name, kind in known.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior="allow")


def _or_null(kind: Schema) -> Schema:
    return core_schema.nullable_schema(kind)


_text, _tree = core_schema.str_schema(), core_schema.dict_schema(core_schema.str_schema())
_environment = _keys(
    packages=core_schema.dict_schema(_text, _text),
    machine=_or_null(_tree),
    git=_or_null(_tree),
    command=_or_null(core_schema.list_schema()),
)
_session = _keys(
    started=_or_null(_text),
    from_epoch=_or_null(core_schema.int_schema(strict=True, ge=0, le=2**63 - 1)),
    node=_or_null(_text),
    environment=_or_null(_environment),
)
SessionTree = Annotated[_Tree, GetPydanticSchema(lambda kind, handler: _session)]
"""The keys that readers need in a session; the manifest keeps all others unchanged."""


@closed
class Manifest:
    """Which state of the run is visible, what its files must be, and how it came to be."""

    state: RunState = "unfinished"
    epoch: Count | None = None  # None: created, nothing measured yet
    step: Count = 0
    files: dict[str, BareName] = field(default_factory=dict)
    seconds: dict[str, Number] = field(default_factory=dict)
    sessions: list[SessionTree] = field(default_factory=list)
    message: str | None = None
    checksums: dict[BareName, Checksum] | None = None  # by file, run.json among them; 0.1.0 stored none


@extensible
class TrainedAbout:
    """The keys that readers need in the facts derived from a configuration."""

    label: str
    variant: str | None
    rule_label: str
    task_label: str
    depth: Annotated[Count, Le(MOST_LAYERS)]
    width: Annotated[Number, Ge(0), Le(2**53)] | None
    alpha: Number | None
    steps: Count
    samples: Count
    probe_size: Count


ABOUT = tuple(one.name for one in fields(TrainedAbout))


@extensible
class Named:
    """A part of a configuration that was chosen by name."""

    name: Name


@extensible
class Configuration:
    """What readers rely on in a configuration; training parses all of it."""

    model: Named
    rule: Named
    task: Named
    optimiser: dict[str, Any]
    probes: dict[str, Any]
    epochs: Count
    seed: Count
    scale: str
    batch_size: Count


@closed
class Trained:
    """The description of a run that Sonde trained."""

    format: Count
    id: BareName
    about: TrainedAbout
    config: Configuration
    defaults: dict[str, Any] = field(default_factory=dict)
    guests: list[BareName] = field(default_factory=list)
    recipe: str = ""  # the digest of the configuration without the seed; 0.1.0 stored none
    study: dict[str, str] | None = None  # name and scale of the study that trained it


@extensible
class _WatchedAbout:
    label: str
    model: str
    parameters: Count


@closed
class Watched:
    """The description of a run that was watched."""

    format: Count
    id: BareName
    kind: Literal["watched"]
    about: _WatchedAbout
    config: None


_Names = list[str]
Shape = list[Count]


@extensible
class _ModuleFacts:
    name: str
    calls: Count
    type: str = ""
    reason: str | None = None
    shape: Shape = field(default_factory=list)
    input_shape: Shape = field(default_factory=list)
    kind: str | None = None


@extensible
class _ParameterFacts:
    name: str
    shape: Shape | None = None
    requires_grad: bool = True
    in_optimiser: bool | None = None
    start: dict[str, Number | None] = field(default_factory=dict)


@extensible
class _GroupFacts:
    lr: Number | None = None
    weight_decay: Number | None = None


@extensible
class _OptimiserFacts:
    type: str
    groups: list[_GroupFacts]


@extensible
class _TensorFacts:
    name: str = ""
    shape: Shape = field(default_factory=list)
    dtype: str = ""
    mean: Number | None = None
    std: Number | None = None
    min: Number | None = None
    max: Number | None = None
    rms: Number | None = None


@extensible
class _NearestFacts:
    agree: Number
    by_chance: Number
    n: Annotated[Count, Ge(1)]


@extensible
class _RelationFacts:
    nearest: Number
    line: Number
    n: Annotated[Count, Ge(1)]


@extensible
class _LeakFacts:
    feature: Count
    n: Count


@extensible
class _PairFacts:
    kind: str | None = None
    nearest: _NearestFacts | None = None
    relation: _RelationFacts | None = None
    leak: _LeakFacts | None = None


@extensible
class _SpikeFacts:
    step: Count
    of: str
    value: Number | None = None
    limit: Number | None = None
    world: Count = 1
    rank: Count | None = None  # another than rank 0, which the number is of
    until: Count | None = None  # the last step that is watched because of it


@extensible
class _ScalingGroup:
    role: str
    in_logits: bool
    members: _Names


@extensible
class _ScalingFacts:
    factory: str
    code: str
    over: str
    size: Annotated[Count, Ge(1)]
    seed: Count
    rate: Annotated[Number, Gt(0)] | None
    rest: dict[str, Any]
    optimizer: str
    lr: Number
    optimiser: str
    promise: Literal["mup", "standard"]
    groups: dict[str, _ScalingGroup]


@extensible
class WatchedFacts:
    """The keys that readers need in the facts of a watched run; `with_defaults` adds those that are left out."""

    modules: list[_ModuleFacts] = field(default_factory=list)
    parameters: list[_ParameterFacts] = field(default_factory=list)
    shared: list[_Names] = field(default_factory=list)
    optimisers: list[_OptimiserFacts] = field(default_factory=list)
    inputs: list[_TensorFacts] = field(default_factory=list)
    targets: list[_TensorFacts] = field(default_factory=list)
    training: bool | None = None
    in_the_other_mode: _Names = field(default_factory=list)
    output_op: str | None = None
    output_shape: Shape | None = None
    bare_pairs: list[Any] | None = None
    scaling: _ScalingFacts | None = None  # of a run of `sonde scaling`
    spikes: list[_SpikeFacts] = field(default_factory=list)
    ranks: Count | None = None
    bends: bool | None = None
    unregistered: list[Shape] | None = None
    loss_ops: _Names | None = None
    loss_shape: Shape | None = None
    loss_axis: list[int] | None = None
    loss_weighted: bool | None = None
    further_terms: bool | None = None
    switched: _Names | None = None
    pairs: _PairFacts | None = None
    experiments: _Tree | None = None


def with_defaults(facts: _Tree) -> _Tree:
    """The facts with every key of modules and parameters that readers need."""
    modules = [{**vars(_ModuleFacts(name="", calls=0)), **one} for one in facts.get("modules", [])]
    parameters = [{**vars(_ParameterFacts(name="")), **one} for one in facts.get("parameters", [])]
    return facts | {"modules": modules, "parameters": parameters}


@extensible
class PieceOfIndex:
    """The rows of one family, at an offset of the file of their block."""

    family: str
    layers: bool
    at: Count
    known: Checksum


@closed
class BlockOfIndex:
    """A file with the rows of some runs, and the pieces in it."""

    file: BareName
    pieces: list[PieceOfIndex]


@closed
class LinesOfIndex:
    """The file with a line for each run."""

    file: BareName
    known: Checksum


@closed
class IndexContents:
    """The content of index.json."""

    format: Count
    lines: LinesOfIndex
    blocks: list[BlockOfIndex]
    own: str = ""  # the code of the user who wrote it
    sha256: str


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def validate_as(kind: type[_T], known: Any, where: str, fix: str) -> _T:
    """Validate a value that was read; raise an error that names the file, the key and the fix."""
    return _validated(kind, where, fix, lambda adapter: adapter.validate_python(known))


def validate_json_as(kind: type[_T], text: str, where: str, fix: str) -> _T:
    """The same for a JSON text."""
    return _validated(kind, where, fix, lambda adapter: adapter.validate_json(text))


def _validated(kind: type[_T], where: str, fix: str, read: Callable[[TypeAdapter[_T]], _T]) -> _T:
    try:
        return read(_adapter(kind))  # type: ignore[arg-type]
    except ValidationError as error:
        raise SondeError(f"{where} {_said(error)}: {fix}") from None


def _said(error: ValidationError) -> str:
    """The first error in words, with its dotted key."""
    problem = error.errors(include_url=False, include_context=False)[0]
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"has no key {key!r}"
    if problem["type"] == "unexpected_keyword_argument":
        return f"has a key {key!r} that this version does not know"
    said = problem["msg"].removeprefix("Value error, ")
    return f"has {key} = {_short(problem['input'])}: {said[0].lower() + said[1:]}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        return "a very long number"
    return text if len(text) <= 60 else f"{text[:60]}…"
