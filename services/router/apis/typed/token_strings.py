"""Answers of Tokenize and Detokenize, whose strings are as many as tokens: one message, which is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.inference.v1 import inference_pb2
from services.router.errors import ApiError, invalid
from services.router.limits import num_bytes
from services.router.text import TextThreads
from shared.grpc_server import MAX_MESSAGE_BYTES

# Of one answer. As many take half of a message and more.
MAX_TOKEN_STRINGS = 262_144
# So many strings are made between two looks at the answer's size.
_RUN_STRINGS = 4096
# Of a message with one text: the text's tag and length.
_HEAD_BYTES = 8

M = TypeVar("M", inference_pb2.TokenizeResponse, inference_pb2.DetokenizeResponse)


async def with_strings(
    answer: M, field: str, string_of: Callable[[int], str], token_ids: Sequence[int], threads: TextThreads, param: str
) -> M:
    """`answer`, with a string for each token in the repeated `field`. Many are made beside the event loop. `param`: the
    field that the tokens came in. Raises ApiError where there are too many, or they are too long for one message."""
    if len(token_ids) > MAX_TOKEN_STRINGS:
        message = f"Invalid '{param}': it has {len(token_ids)} tokens, whose strings are asked for one by one"
        raise invalid(f"{message}; {MAX_TOKEN_STRINGS} at most. Send it in parts.", param, "too_many_tokens")

    def work() -> M:
        size = answer.ByteSize()
        for start in range(0, len(token_ids), _RUN_STRINGS):
            strings = [string_of(token_id) for token_id in token_ids[start : start + _RUN_STRINGS]]
            part = type(answer)()
            getattr(part, field).extend(strings)
            size += part.ByteSize()
            if size > MAX_MESSAGE_BYTES:
                raise _too_long(param)
            answer.MergeFrom(part)
        return answer

    return await threads.run(len(token_ids), work)


def check_text(text: str, param: str) -> None:
    """Raises ApiError where a text is too long for one message."""
    if num_bytes(text) + _HEAD_BYTES > MAX_MESSAGE_BYTES:
        raise _too_long(param)


def _too_long(param: str) -> ApiError:
    message = f"Invalid '{param}': the answer would have more than {MAX_MESSAGE_BYTES} bytes. Send it in parts."
    return invalid(message, param, "answer_too_long")
