"""Tensors of a file, each with its numbers in a row."""

import array
import json
import struct


def load_file(path):
    with open(path, "rb") as file:
        content = file.read()
    (size,) = struct.unpack_from("<Q", content)
    header, numbers = json.loads(content[8 : 8 + size]), content[8 + size :]
    found = {}
    for name, tensor in header.items():
        if name != "__metadata__":
            assert tensor["dtype"] == "F32", tensor
            start, end = tensor["data_offsets"]
            found[name] = array.array("f", numbers[start:end])
    return found
