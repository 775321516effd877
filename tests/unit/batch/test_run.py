"""A batch keeps its order and its bounds, and goes on from whatever a killed run has left."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.batch import run as run_module
from quire.batch.format import Answer, BatchRequest, RequestError
from quire.batch.lines import Line
from quire.batch.output import BatchError, BatchOutput
from quire.batch.run import WINDOW, Ask, BatchRun, Tally, skip_answered


def request(custom_id: str, **body: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}).encode()


async def lines_of(texts: list[bytes]) -> AsyncIterator[Line]:
    for number, text in enumerate(texts, 1):
        yield Line(number, text)


async def echo(asked: BatchRequest) -> Answer:
    await asyncio.sleep(0)
    return Answer(400 if b'"bad"' in asked.body else 200, "", asked.body)


async def run(texts: list[bytes], path: Path, ask: Ask = echo, max_concurrency: int = 4) -> Tally:
    tally = Tally()
    with BatchOutput(str(path)) as output:
        lines = lines_of(texts)
        await skip_answered(lines, output, tally)
        await BatchRun(ask, output, tally, max_concurrency, lambda: None).run(lines)
    return tally


def answers(path: Path) -> list[Any]:
    """Without the ids, which are drawn."""
    return [{**json.loads(line), "id": ""} for line in path.read_bytes().splitlines()]


async def test_answers_stand_in_the_order_of_requests_whatever_comes_first(tmp_path: Path) -> None:
    rng = random.Random(0)

    async def ask(asked: BatchRequest) -> Answer:
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        return Answer(200, "", asked.body)

    texts = [request(str(number)) for number in range(200)]
    tally = await run(texts, tmp_path / "out", ask, max_concurrency=16)

    assert [answer["custom_id"] for answer in answers(tmp_path / "out")] == [str(number) for number in range(200)]
    assert (tally.succeeded, tally.failed, tally.kept) == (200, 0, 0)


async def test_a_bad_line_costs_its_own_answer_and_no_other(tmp_path: Path) -> None:
    async def ask(asked: BatchRequest) -> Answer:
        if asked.custom_id == "lost":
            raise RequestError("unavailable", "the server did not answer")
        return await echo(asked)

    tally = await run([request("a"), b"nonsense", request("lost"), request("b", bad=1)], tmp_path / "out", ask)

    codes = [
        (answer["custom_id"], answer["response"] and answer["response"]["status_code"], answer["error"])
        for answer in answers(tmp_path / "out")
    ]
    assert codes == [
        ("a", 200, None),
        (None, None, {"code": "invalid_json", "message": "the line is not JSON: Expecting value: line 1 column 1 "
                      "(char 0)"}),
        ("lost", None, {"code": "unavailable", "message": "the server did not answer"}),
        ("b", 400, None),
    ]  # fmt: skip
    assert (tally.succeeded, tally.failed) == (1, 3)


async def test_no_more_are_under_way_than_allowed_nor_wait_behind_a_long_one(tmp_path: Path) -> None:
    under_way = most = num_asked = 0
    release = asyncio.Event()

    async def ask(asked: BatchRequest) -> Answer:
        nonlocal under_way, most, num_asked
        under_way, num_asked = under_way + 1, num_asked + 1
        most = max(most, under_way)
        if asked.custom_id == "0":
            await release.wait()
        await asyncio.sleep(0)
        under_way -= 1
        return Answer(200, "", b"{}")

    limit = 3
    running = asyncio.create_task(run([request(str(number)) for number in range(500)], tmp_path / "out", ask, limit))
    for _ in range(3000):
        await asyncio.sleep(0)
    assert (most, num_asked) == (limit, WINDOW * limit + 2)  # the first, which the writer waits for, and one that waits
    release.set()
    await running
    assert len(answers(tmp_path / "out")) == 500


async def test_long_lines_wait_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_HELD_BYTES", 5000)
    num_asked = 0
    release = asyncio.Event()

    async def ask(asked: BatchRequest) -> Answer:
        nonlocal num_asked
        num_asked += 1
        await release.wait()
        return Answer(200, "", b"{}")

    texts = [request(str(number), prompt="x" * 2000) for number in range(10)]
    running = asyncio.create_task(run(texts, tmp_path / "out", ask, 8))
    for _ in range(100):
        await asyncio.sleep(0)
    assert num_asked == 3
    release.set()
    await running
    assert num_asked == 10


LINES = [request("ü"), b"nonsense", request("b", bad=1), request("c", prompt="long " * 10), b"{}", request("d")]


@pytest.fixture(scope="module")
def whole() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(LINES, Path(directory, "out")))
        return Path(directory, "out").read_bytes()


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_run_killed_at_any_byte_goes_on_to_the_same_answers(whole: bytes, data: st.DataObject) -> None:
    """Killed twice, each time wherever it was."""
    asked = []

    async def ask(one: BatchRequest) -> Answer:
        asked.append(one.custom_id)
        return await echo(one)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "out")
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)), "first kill")])
        for again in (True, False):
            before = path.read_bytes()
            kept = before[: before.rfind(b"\n") + 1]
            asked.clear()
            tally = asyncio.run(run(LINES, path, ask))

            after = path.read_bytes()
            assert after.startswith(kept)
            assert answers(path) == [{**json.loads(line), "id": ""} for line in whole.splitlines()]
            assert (tally.kept, tally.written, tally.failed) == (kept.count(b"\n"), len(LINES), 3)
            good = [json.loads(line).get("custom_id") for line in LINES[tally.kept :] if line not in (b"nonsense",)]
            assert sorted(asked) == sorted(one for one in good if one)
            if again:
                path.write_bytes(after[: data.draw(st.integers(0, len(after)), "second kill")])


async def test_a_run_that_is_stopped_leaves_whole_lines_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "out"
    texts = [request(str(number)) for number in range(10)]

    async def ask(asked: BatchRequest) -> Answer:
        if asked.custom_id == "6":
            await asyncio.Event().wait()
        return await echo(asked)

    running = asyncio.create_task(run(texts, path, ask))
    while not path.exists() or path.read_bytes().count(b"\n") < 6:  # noqa: ASYNC110 - nobody tells when it has grown
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await run(texts, path)).kept == 6
    assert [answer["custom_id"] for answer in answers(path)] == [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        (b"my thesis\n", "cannot be continued: it has a line that run-batch did not write"),
        (b'{"custom_id": "z", "response": null}\n', "cannot be continued: it has 'z' where the input has 'a'"),
        (b'{"custom_id": "a", "response": null}\n' * 2, "cannot be continued: it has more lines than the input"),
    ],
)
async def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, there: bytes, complaint: str) -> None:
    path = tmp_path / "out"
    path.write_bytes(there)

    with pytest.raises(BatchError, match=complaint):
        await run([request("a")], path)

    assert path.read_bytes() == there


async def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        BatchOutput(str(tmp_path / "out")),
        pytest.raises(BatchError, match="another run-batch is writing"),
    ):
        BatchOutput(str(tmp_path / "out"))


async def test_a_full_disk_is_told() -> None:
    with pytest.raises(BatchError, match=r"^/dev/full cannot be written: No space left on device$"):
        await run([request(str(number)) for number in range(3)], Path("/dev/full"))


def test_an_output_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="cannot be written: Is a directory"):
        BatchOutput(str(tmp_path))
