"""The comments of Quire's protos, as descriptions for the documentation. protoc has stored the comments in a file,
together with the descriptors."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2

# File with the descriptors of Quire's protos. It lies in the package `quire`, beside the generated stubs.
_FILE = files("quire") / "http_apis.binpb"


@functools.cache
def proto_comments() -> Mapping[str, str]:
    """Returns the comments of Quire's own packages, each as one paragraph. The keys are the full names of the commented
    services, methods, messages, fields, enums and enum values. An enum value's full name begins with the enum's name.
    """
    described = descriptor_pb2.FileDescriptorSet.FromString(_FILE.read_bytes())
    return {
        _name_of(file, location.path): " ".join(location.leading_comments.split())
        for file in described.file
        if file.name.startswith("quire/")
        for location in file.source_code_info.location
        if location.leading_comments and len(location.path) % 2 == 0
    }


def _name_of(file: descriptor_pb2.FileDescriptorProto, path: Any) -> str:
    """Returns the full name of a descriptor. `path`: its location in the file, as alternating field numbers and indices
    (google.protobuf.SourceCodeInfo)."""
    names, node = [file.package], file
    for number, index in zip(path[::2], path[1::2], strict=True):
        node = getattr(node, node.DESCRIPTOR.fields_by_number[number].name)[index]
        names.append(node.name)
    return ".".join(names)
