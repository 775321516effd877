"""Recorded or random requests, each with its arrival time and its numbers of tokens."""

from __future__ import annotations

import csv
import json
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

# In Mooncake's traces, a prompt is a list of hashes. Each hash stands for this number of tokens. Prompts with a common
# prefix begin with the same hashes.
_TOKENS_PER_HASH = 512
# Number of tokens at the beginning of a prompt by which routers place the request.
_AFFINITY_TOKENS = 2048
# First number in `Request.content` for prompts whose content is not in the trace. Each of these prompts gets a
# different number, so that no two of them have a common prefix.
_FIRST_UNIQUE = 1 << 31


class TraceError(ValueError):
    """A trace that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Request:
    arrival_s: float  # seconds after the trace's first request
    num_prompt_tokens: int
    num_output_tokens: int
    # Numbers that stand for the prompt's content, one per 512 tokens. The last number also stands for all later tokens.
    content: tuple[int, ...]

    @property
    def token_ids(self) -> array[int]:
        """Returns artificial token ids. Two prompts have equal ids where their contents are equal, and different ids
        elsewhere."""
        num_tokens = self.num_prompt_tokens
        parts = [number.to_bytes(4, "little") * _TOKENS_PER_HASH for number in self.content]
        missing = num_tokens - len(self.content) * _TOKENS_PER_HASH
        if missing > 0:
            parts.append(self.content[-1].to_bytes(4, "little") * missing)
        return array("I", b"".join(parts)[: 4 * num_tokens])

    @property
    def beginning(self) -> str:
        """Returns a text that stands for the prompt's beginning. The router chooses a scheduler by this text."""
        return repr(self.content[: _AFFINITY_TOKENS // _TOKENS_PER_HASH])


def read_trace(path: Path) -> list[Request]:
    """Reads a CSV file with Azure's columns, or JSON lines with Mooncake's fields. Raises TraceError."""
    try:
        with path.open(newline="") as file:
            is_json = file.read(1) == "{"
            file.seek(0)
            requests = list(_read_mooncake(file) if is_json else _read_azure(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: {error}") from error
    except _LineError as error:
        raise TraceError(f"{path}, line {error.line}: {error}") from error.__cause__
    if not requests:
        raise TraceError(f"{path} has no requests")
    requests.sort(key=lambda request: request.arrival_s)
    first = requests[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - first) for request in requests]


def poisson(
    requests_per_s: float,
    duration_s: float,
    num_prompt_tokens: int,
    num_output_tokens: int,
    *,
    spread: float,
    seed: int,
) -> list[Request]:
    """Generates requests with random arrival times (a Poisson process) and random lengths. The lengths are distributed
    uniformly, and differ from the given averages by at most the fraction `spread`."""
    chance = random.Random(seed)

    def length(mean: int) -> int:
        return max(1, round(mean * chance.uniform(1 - spread, 1 + spread)))

    requests: list[Request] = []
    now = chance.expovariate(requests_per_s)
    while now < duration_s:
        requests.append(
            Request(now, length(num_prompt_tokens), length(num_output_tokens), (_FIRST_UNIQUE + len(requests),))
        )
        now += chance.expovariate(requests_per_s)
    return requests


class _LineError(ValueError):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _read_azure(lines: Iterator[str]) -> Iterator[Request]:
    rows = csv.DictReader(lines)
    missing = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}.difference(rows.fieldnames or ())
    if missing:
        raise _LineError(1, f"there is no column {min(missing)}")
    for index, row in enumerate(rows):
        try:
            arrival = datetime.fromisoformat(row["TIMESTAMP"])
            arrival = arrival if arrival.tzinfo else arrival.replace(tzinfo=UTC)
            yield _request(
                arrival.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]), (_FIRST_UNIQUE + index,)
            )
        except (TypeError, ValueError) as error:
            raise _LineError(index + 2, str(error)) from error


def _read_mooncake(lines: Iterator[str]) -> Iterator[Request]:
    for index, line in enumerate(lines):
        try:
            row = json.loads(line)
            content = tuple(int(number) % _FIRST_UNIQUE for number in row["hash_ids"])
            yield _request(
                row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]),
                content or (_FIRST_UNIQUE + index,),
            )  # fmt: skip
        except KeyError as error:
            raise _LineError(index + 1, f"there is no {error.args[0]}") from error
        except (TypeError, ValueError) as error:
            raise _LineError(index + 1, str(error)) from error


def _request(arrival_s: float, num_prompt_tokens: int, num_output_tokens: int, content: tuple[int, ...]) -> Request:
    if num_prompt_tokens < 1:
        raise ValueError(f"a prompt of {num_prompt_tokens} tokens")
    # If the trace reports 0 generated tokens, the simulated request generates one, which stands for the end token.
    return Request(arrival_s, num_prompt_tokens, max(1, num_output_tokens), content)
