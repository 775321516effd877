"""Malformed data that port scanners, broken clients and other programs send to a gRPC port."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterable
from typing import Any

import grpc
import pytest

from shared import malformed

NO_MESSAGE = b"\xff\xff\xff"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = bytes.fromhex("000000040000000000")
RAW = (
    b"",
    b"GET / HTTP/1.1\r\nHost: quire\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of a TLS handshake
    random.Random(1).randbytes(5000),
    _PREFACE + random.Random(2).randbytes(5000),
    _PREFACE + _EMPTY_SETTINGS + random.Random(3).randbytes(5000),
)
TOO_LARGE = 33 * 1024 * 1024


async def status_of(address: str, method: str, *messages: bytes) -> tuple[grpc.StatusCode, str]:
    """Sends these bytes as messages of one call, and returns the call's status.

    The call is made with gRPC's synchronous client, because grpc.aio replaces the server's status with INTERNAL,
    "Internal error from Core", if the server ends the call before the client has sent everything.
    """
    return await asyncio.to_thread(_status_of, address, method, messages)


def _status_of(address: str, method: str, messages: tuple[bytes, ...]) -> tuple[grpc.StatusCode, str]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        connect: Any = channel.stream_stream(method)
        call = connect(iter(messages))
        try:
            for _ in call:
                pass  # gRPC delivers the status only after all messages are read
        except grpc.RpcError:
            pass  # the status is read below
        return call.code(), call.details()


async def throw_at(
    address: str, methods: Iterable[str], undecodable: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
) -> None:
    """Sends all malformed data, and checks the status of each call that gRPC can answer.

    `undecodable`: the expected status for bytes that are not a valid message.
    """
    for method in methods:
        code, details = await status_of(address, method, NO_MESSAGE)
        assert code is undecodable, (method, code, details)
        assert "not a message of this method" in details, (method, details)
        code, details = await status_of(address, method, bytes(TOO_LARGE))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, (method, code, details)
    code, details = await status_of(address, "/no.such/Method", NO_MESSAGE)
    assert code is grpc.StatusCode.UNIMPLEMENTED, (code, details)
    for data in RAW:
        await _send(address, data)


async def _send(address: str, data: bytes) -> None:
    """Sends data that is not valid HTTP/2, and waits until the server closes the connection."""
    if address.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        writer.write_eof()
        await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()


def log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the servers of this process log malformed data of one host once, however long the test takes."""
    monkeypatch.setattr(malformed, "LOG_INTERVAL_S", math.inf)


def check_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    """Checks that the log has one line for all malformed data from one host, and no traceback."""
    assert [record.message for record in caplog.records if record.exc_info] == []
    refusals = [record.message for record in caplog.records if "refused a request" in record.message]
    assert len(refusals) == 1, refusals
    assert "Traceback" not in capfd.readouterr().err
