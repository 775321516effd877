"""The comments of our protos, for people who read the documentation: protoc writes them beside the descriptors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2

# Beside the stubs. Not by importing `quire`: that package offers the command line and the clients, for which a service
# has no use.
_FILE = files("quire") / "http_apis.binpb"


@functools.cache
def proto_comments() -> Mapping[str, str]:
    """The comments of our own packages, each as one paragraph, by the full name of what they are about: a service, a
    method, a message, a field, an enum, or a value, whose name begins with its enum's."""
    described = descriptor_pb2.FileDescriptorSet.FromString(_FILE.read_bytes())
    return {
        _name_of(file, location.path): " ".join(location.leading_comments.split())
        for file in described.file
        if file.name.startswith("quire/")
        for location in file.source_code_info.location
        if location.leading_comments and len(location.path) % 2 == 0
    }


def _name_of(file: descriptor_pb2.FileDescriptorProto, path: Any) -> str:
    """`path`: field numbers of the descriptor's own messages and indices in turn, from the file inwards."""
    names, node = [file.package], file
    for number, index in zip(path[::2], path[1::2], strict=True):
        node = getattr(node, node.DESCRIPTOR.fields_by_number[number].name)[index]
        names.append(node.name)
    return ".".join(names)
