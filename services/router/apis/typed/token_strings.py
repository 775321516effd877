"""Builds the answers of Tokenize and Detokenize that have one string per token. Limits their size to one message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from quire.inference.v1 import inference_pb2
from services.router.errors import ApiError, invalid
from services.router.limits import num_bytes
from services.router.text import TextThreads
from shared.grpc_server import MAX_MESSAGE_BYTES

# Maximum number of strings in one answer. This many strings of usual lengths take at least half of the maximum message
# size, so a higher limit would help little.
MAX_TOKEN_STRINGS = 262_144
# Number of strings that are made between two checks of the answer's size.
_RUN_STRINGS = 4096
# Maximum number of bytes that protobuf writes before each text in a message: the field's tag and the text's length.
_HEAD_BYTES = 8

M = TypeVar("M", inference_pb2.TokenizeResponse, inference_pb2.DetokenizeResponse)


async def with_strings(
    answer: M, field: str, string_of: Callable[[int], str], token_ids: Sequence[int], threads: TextThreads, param: str
) -> M:
    """Adds a string for each token to the repeated `field` of `answer`, in a thread if there are many. `param`: the
    request's field with the tokens. Raises ApiError if there are too many tokens, or if the strings do not fit in one
    message."""
    if len(token_ids) > MAX_TOKEN_STRINGS:
        message = f"Invalid '{param}': strings are returned for at most {MAX_TOKEN_STRINGS} tokens"
        raise invalid(f"{message}, but it has {len(token_ids)}. Send it in parts.", param, "too_many_tokens")

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
    """Raises ApiError if a text does not fit in one message."""
    if num_bytes(text) + _HEAD_BYTES > MAX_MESSAGE_BYTES:
        raise _too_long(param)


def _too_long(param: str) -> ApiError:
    message = f"Invalid '{param}': the answer would have more than {MAX_MESSAGE_BYTES} bytes. Send it in parts."
    return invalid(message, param, "answer_too_long")
