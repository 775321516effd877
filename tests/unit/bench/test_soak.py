"""A soak's figures: what has grown per request, what may, what must be free, and which answers are the same."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from benchmarks.abuse.rows import ROWS
from benchmarks.soak import said
from benchmarks.soak.__main__ import stretches
from benchmarks.soak.figures import Figures, Load, Point
from benchmarks.soak.mix import mixed
from benchmarks.soak.report import Result, store, table
from benchmarks.soak.tally import MAX_EXAMPLES, Tally
from benchmarks.soak.verdict import grown, growths, held, too_large

IDLE = Load(used_blocks=0, blocks=100, running=0, waiting=0)


def part(
    resident_bytes: int = 10**8, descriptors: int = 20, sockets: int = 5, threads: int = 9, processes: int = 1
) -> Figures:
    return Figures(resident_bytes, descriptors, sockets, threads, processes)


def points(first: Figures, last: Figures, num_requests: int = 10**6, load: Load = IDLE) -> list[Point]:
    """Of one part, the router. The first has 500 requests behind it."""
    return [Point(60.0, 500, {"router": first}, IDLE), Point(300.0, 500 + num_requests, {"router": last}, load)]


def test_growth_is_per_request_between_the_first_point_and_the_last() -> None:
    growth = growths(points(part(10**8), part(10**8 + 250_000), num_requests=1000))["router"]
    assert (growth.resident_bytes, growth.bytes_per_request) == (250_000, 250.0)


def test_points_without_a_request_in_between_have_a_growth() -> None:
    assert growths(points(part(), part(), num_requests=0))["router"].bytes_per_request == 0


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (part(), []),
        # 400 bytes for each of 10^6 requests, and 32 MB for the allocator.
        (part(10**8 + 432 * 10**6), []),
        (part(10**8 + 500 * 10**6), ["router: 500 MB more, 500 bytes per request"]),
        (part(10**7), []),
        (part(descriptors=28), []),
        (part(descriptors=29), ["router: 29 descriptors, 20 at first"]),
        (part(threads=18), ["router: 18 threads, 9 at first"]),
        (part(processes=5), ["router: 5 processes, 1 at first"]),
    ],
)
def test_a_part_may_grow_by_so_much(last: Figures, expected: list[str]) -> None:
    assert grown(points(part(), last)) == expected


def test_memory_is_not_judged_before_every_row_was_sent() -> None:
    assert grown(points(part(), part(10**9, descriptors=29)), judges_memory=False) == [
        "router: 29 descriptors, 20 at first"
    ]


@pytest.mark.parametrize(
    ("load", "last", "expected"),
    [
        (IDLE, part(), []),
        (Load(1, 100, 0, 0), part(), ["1 of 100 KV blocks are not free after 300 s"]),
        (Load(0, 100, 2, 3), part(), ["2 sequences run and 3 wait after 300 s"]),
        (IDLE, part(resident_bytes=0), ["router: has ended after 300 s"]),
    ],
)
def test_nothing_is_held_at_a_quiet_point(load: Load, last: Figures, expected: list[str]) -> None:
    assert held(points(part(), last, load=load)) == expected


@pytest.mark.parametrize(
    ("megabytes", "expected"), [(500, []), (501, ["router: 501 MB at its peak; at most 500 MB are allowed"])]
)
def test_the_router_s_peak_is_bounded(megabytes: int, expected: list[str]) -> None:
    assert too_large({"router": part(megabytes * 10**6)}) == expected


def test_the_first_answer_of_a_request_is_the_only_right_one() -> None:
    tally = Tally()
    for answer in ("12", "12", "13"):
        tally.answer("chat", "7 plus 5", answer)
    tally.answer("chat", "1 plus 1", "13")
    tally.answer("health", None, "")
    assert (tally.answered, tally.num_compared) == ({"chat": 3, "health": 1}, 4)
    assert (tally.faults, tally.examples) == ({"chat": 1}, ["chat: 13 instead of 12 for request 7 plus 5"])


def test_faults_are_all_counted_and_some_are_kept() -> None:
    tally = Tally()
    for number in range(MAX_EXAMPLES + 5):
        tally.fault("chat", str(number))
    assert (tally.faults.total(), len(tally.examples)) == (MAX_EXAMPLES + 5, MAX_EXAMPLES)
    assert tally.num_requests == MAX_EXAMPLES + 5


def test_a_result_is_at_fault_for_answers_growth_and_processes(tmp_path: Path) -> None:
    tally = Tally()
    tally.fault("chat", "status 500")
    result = Result(
        points(part(), part(descriptors=40)), {"router": part(descriptors=50)}, tally, is_warm=True, num_left=1
    )
    assert result.faults == ["chat: 1 wrong", "1 processes are still alive"]
    assert result.growth == ["router: 40 descriptors, 20 at first"]
    row = table(result).splitlines()[2]
    assert row == "| router | 100.0 | 100.0 | 100.0 | 0 | 20 | 40 | 50 | 5 | 5 | 9 | 9 | 1 | 1 |"
    store(result, tmp_path)
    assert row in (tmp_path / "soak.md").read_text()
    assert (tmp_path / "soak.json").exists()


@pytest.mark.parametrize("minutes", [0.1, 3, 30, 120])
def test_the_time_is_divided_by_three_quiet_points_or_more(minutes: float) -> None:
    warm_up, *rest = stretches(minutes)
    assert warm_up.seconds == pytest.approx(12 * minutes)
    assert len(rest) >= 2
    assert sum(stretch.seconds for stretch in (warm_up, *rest)) == pytest.approx(60 * minutes)
    assert all(stretch.seconds < 450 for stretch in rest)
    assert warm_up.rows == (len(ROWS) if minutes >= 30 else 0)


def test_traffic_is_the_same_for_the_same_seed_and_asks_for_embeddings_only_where_there_are_some() -> None:
    def drawn(seed: str, embeds: bool) -> list[tuple[str, str | None]]:
        return [(request.name, request.key) for request in islice(mixed(seed, embeds), 2000)]

    assert drawn("1", True) == drawn("1", True)
    assert drawn("1", True) != drawn("2", True)
    assert "embeddings" in {name for name, _ in drawn("1", True)}
    assert "embeddings" not in {name for name, _ in drawn("1", False)}


def test_a_stream_says_what_the_whole_answer_says() -> None:
    call = '{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}'
    rest = '{"index": 0, "function": {"arguments": "}"}}'
    events = (
        '{"choices": [{"index": 0, "delta": {"content": "1"}, "finish_reason": null}]}',
        f'{{"choices": [{{"index": 0, "delta": {{"tool_calls": [{call}]}}, "finish_reason": null}}]}}',
        f'{{"choices": [{{"index": 0, "delta": {{"content": "2", "tool_calls": [{rest}]}}, "finish_reason": null}}]}}',
        '{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}',
        '{"choices": [], "usage": {}}',
        "[DONE]",
    )
    stream = "".join(f"data: {event}\n\n" for event in events).encode()
    function = '{"function": {"name": "f", "arguments": "{}"}}'
    message = f'{{"content": "12", "tool_calls": [{function}]}}'
    whole = f'{{"choices": [{{"message": {message}, "finish_reason": "stop"}}]}}'.encode()
    assert said.chat_stream(stream) == said.chat(whole) == [("12", [["f", "{}"]], "stop")]


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}\n\n',
        b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\ndata: [DONE]\n\n',
        b'data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n',
    ],
    ids=["empty", "cut", "a choice without an end", "an error"],
)
def test_a_broken_stream_is_no_answer(stream: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut|no end|error"):
        said.chat_stream(stream)
