"""What a file must be, byte for byte: SHA-256 and size of its content, and JSON that carries its own.

{
 …,
 "sha256": "…"      of every byte before this line
}
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge
from pydantic import ConfigDict, Strict, StringConstraints

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_SEAL = b',\n "sha256": "'
_END = b'"\n}\n'


@dataclass(frozen=True)
class Checksum:
    """Of a file's content."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    sha256: Sha256
    bytes: Annotated[int, Strict(), Ge(0)]


def checksum(content: bytes) -> Checksum:
    return Checksum(hashlib.sha256(content).hexdigest(), len(content))


def seal(tree: Mapping[str, Any]) -> bytes:
    """The tree as JSON that ends with the checksum of everything before it."""
    body = json.dumps(tree, indent=1, ensure_ascii=False)[: -len("\n}")].encode()
    return body + _SEAL + hashlib.sha256(body).hexdigest().encode() + _END


def is_sealed(content: bytes) -> bool:
    """Whether every byte is the one that was written."""
    body, mark, rest = content.rpartition(_SEAL)
    return bool(mark) and rest == hashlib.sha256(body).hexdigest().encode() + _END
