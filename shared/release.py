"""The release of this part, and whether it can work with a part of another release.

Parts tell each other their release in the first message of a stream. A deployment is upgraded part by part, so release
N works with release N-1 on every hop. Changes to messages are additive. Only a change that an older part would misread
raises the protocol's number (docs/adr/0033-releases-side-by-side.md).
"""

from __future__ import annotations

from functools import cache
from typing import Literal, Protocol

from quire.inference.v1 import release_pb2
from shared.version import version

# The protocol that this release speaks, and the oldest one that it understands.
PROTOCOL = 1
OLDEST_PROTOCOL = 1
# The protocol of parts that send no release.
_UNSENT = release_pb2.Release(version="before 0.1", protocol=1, oldest_protocol=1)


class IncompatibleReleaseError(Exception):
    """Another part's release cannot work with this one. The message is one sentence with both releases."""


class _Hello(Protocol):
    """The first message of a part."""

    @property
    def release(self) -> release_pb2.Release: ...

    def HasField(self, name: Literal["release"]) -> bool: ...  # noqa: N802 - protobuf's name


@cache
def own_release() -> release_pb2.Release:
    """Returns this part's release. Callers must not change it."""
    return release_pb2.Release(version=version(), protocol=PROTOCOL, oldest_protocol=OLDEST_PROTOCOL)


def check_release(hello: _Hello, peer: str) -> None:
    """Raises IncompatibleReleaseError if this part cannot work with the part that sent `hello`. `peer`: what the other
    part is, such as "the worker"."""
    ours, theirs = own_release(), hello.release if hello.HasField("release") else _UNSENT
    if theirs.protocol < ours.oldest_protocol:
        remedy = f"upgrade {peer}"
    elif ours.protocol < theirs.oldest_protocol:
        remedy = "upgrade this part"
    else:
        return
    raise IncompatibleReleaseError(
        f"{peer} runs Quire {theirs.version[:64]} (protocols {theirs.oldest_protocol} to {theirs.protocol}), which "
        f"does not work with Quire {ours.version} here (protocols {ours.oldest_protocol} to {ours.protocol}): {remedy}"
    )
