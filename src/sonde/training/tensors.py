"""Nested state ⇄ safetensors bytes: tensors as tensors, everything else as JSON; nothing is pickled."""

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

_TENSOR = "__tensor__"


def pack(tree: Any) -> bytes:
    """Write any nesting of dicts, lists, plain values and tensors as one safetensors file."""
    tensors: dict[str, Tensor] = {}

    def strip(node: Any, name: str) -> Any:
        if isinstance(node, Tensor):
            tensors[name] = node.detach().cpu().contiguous().clone()
            return {_TENSOR: name}
        if isinstance(node, dict):
            return {"dict": [[key, strip(value, f"{name}/{key}")] for key, value in node.items()]}
        if isinstance(node, list | tuple):
            return {"list": [strip(value, f"{name}/{i}") for i, value in enumerate(node)]}
        return node

    skeleton = json.dumps(strip(tree, ""))
    return safetensors.torch.save(tensors or {"": torch.zeros(0)}, metadata={"skeleton": skeleton})


def unpack(content: bytes) -> Any:
    """Read what `pack` wrote; tuples come back as lists."""
    tensors = safetensors.torch.load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])

    def fill(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if _TENSOR in node:
            return tensors[node[_TENSOR]]
        if "list" in node:
            return [fill(value) for value in node["list"]]
        return {key: fill(value) for key, value in node["dict"]}

    return fill(json.loads(header["__metadata__"]["skeleton"]))
