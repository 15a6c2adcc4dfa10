"""Bytes of a safetensors file with one small tensor, for folders that pretend to be models."""

import json


def weight_bytes(content: bytes, *, name: str = "w") -> bytes:
    """A whole safetensors file whose only tensor holds `content`."""
    entry = {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}
    header = json.dumps({name: entry}).encode()
    return len(header).to_bytes(8, "little") + header + content
