"""Histories made by hand, each of which breaks one rule of the checker or none."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from tests.chaos.catalog import GrpcRequest, HttpRequest
from tests.chaos.checker import check
from tests.chaos.fleet import Shape
from tests.chaos.history import Call, Event, Exit, Fault, Phase, Record, Served, Skipped, parse

CHAT = HttpRequest("chat (quire-chat)", "/v1/chat/completions", {"stream": True})
TYPED = GrpcRequest("typed", "Generate", None)  # type: ignore[arg-type] # never sent
TOKENS = [("One", 1, -0.5), (" two", 2, -0.25), (" three", 3, -1.0)]


def chunk(text: str, token: int, logprob: float, **fields: Any) -> str:
    entry = {"token": text, "logprob": logprob, "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": text}, "token_ids": [token], "logprobs": {"content": [entry]}}
    return json.dumps({"id": "differs", "choices": [choice | fields]})


END = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}})
WHOLE = [*(chunk(*token) for token in TOKENS), END, USAGE, "[DONE]"]


# Two routers, schedulers and workers behind one gateway.
SHAPE = Shape(workers=2)


def call(
    id_: str, events: list[str], phase: Phase = "storm", request: str = "chat (quire-chat)", **fields: Any
) -> Call:
    timed = tuple(Event(10.0 + 0.1 * number, data) for number, data in enumerate(events))
    return dataclasses.replace(
        Call(id_, request, "gateway-0", phase, 9.9, 11.0, "ended", 200, None, "", timed), **fields
    )


REFERENCE = call("reference", WHOLE, "calm")


def rules(*records: Record) -> list[str]:
    return [finding.rule for finding in check([REFERENCE, *records], [CHAT, TYPED], SHAPE).findings]


def test_an_equal_answer_in_other_chunks_breaks_no_rule() -> None:
    both = json.dumps(
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "One two"},
                    "token_ids": [1, 2],
                    "logprobs": {
                        "content": [
                            {"token": "One", "logprob": -0.50005, "top_logprobs": []},
                            {"token": " two", "logprob": -0.25, "top_logprobs": []},
                        ]
                    },
                }
            ]
        }
    )
    verdict = check([REFERENCE, call("a", [both, *WHOLE[2:]])], [CHAT], SHAPE)
    assert verdict.findings == []
    assert verdict.calls == {"answered": 2}


@pytest.mark.parametrize(
    "events",
    [
        [*WHOLE[:2], *WHOLE[1:]],  # a token twice
        [WHOLE[0], *WHOLE[2:]],  # a token is missing
        [WHOLE[:3][-1], WHOLE[1], WHOLE[0], *WHOLE[3:]],  # another order
        [chunk("Two", 1, -0.5), *WHOLE[1:]],
        [chunk("One", 9, -0.5), *WHOLE[1:]],
        [chunk("One", 1, -0.5002), *WHOLE[1:]],
        [*WHOLE[:3], END.replace("length", "stop"), *WHOLE[4:]],
        [*WHOLE[:4], USAGE.replace("4", "5"), "[DONE]"],
        [*WHOLE[:4], chunk("!", 4, -0.1), *WHOLE[4:]],  # output after the end
        [*WHOLE[:4], END, *WHOLE[4:]],  # a second end
        [*WHOLE, WHOLE[-1]],  # a second [DONE]
    ],
)
def test_every_change_of_an_answer_is_found(events: list[str]) -> None:
    assert rules(call("a", events)) == ["different"]


def test_an_answer_of_the_typed_api_is_compared_too() -> None:
    delta = json.dumps({"delta": {"text": "One", "token_ids": [1], "finish_reason": "FINISH_REASON_LENGTH"}})
    final = json.dumps({"final": {"usage": {"prompt_tokens": 4, "completion_tokens": 1}}})
    first = call("a", [delta, final], "calm", "typed")
    assert rules(first, call("b", [delta, final], request="typed")) == []
    assert rules(first, call("b", [delta.replace("One", "Two"), final], request="typed")) == ["different"]
    assert rules(first, call("b", [delta], request="typed")) == ["lost"]


def test_calm_answers_must_be_equal_to_each_other() -> None:
    assert rules(call("a", [chunk("Two", 1, -0.5), *WHOLE[1:]], "calm")) == ["different"]


@pytest.mark.parametrize("events", [[], WHOLE[:2], WHOLE[:-1], [*WHOLE[:2], json.dumps({"error": {"message": "no"}})]])
def test_an_answer_that_breaks_off_is_lost(events: list[str]) -> None:
    assert rules(call("a", events)) == ["lost"]
    assert rules(call("a", events, outcome="cut")) == ["lost"]


def test_a_call_without_an_end_hangs() -> None:
    assert rules(call("a", WHOLE[:2], outcome="hung")) == ["hung"]


def test_a_client_that_leaves_breaks_no_rule() -> None:
    assert rules(call("a", WHOLE[:2], outcome="left")) == []


NOT_ITS_BEGINNING = [
    [WHOLE[0], WHOLE[0]],  # a token twice
    [WHOLE[1]],  # the first one is missing
    [chunk("One", 9, -0.5)],
    [chunk("One", 1, -0.6)],
    [*WHOLE[:3], chunk("!", 4, -0.1)],  # more than the whole answer has
    [*WHOLE[:2], END],  # an end that comes too early
    [*WHOLE[:3], END.replace("length", "stop")],
    [*WHOLE[:4], WHOLE[2]],  # output after the end
    [json.dumps({"choices": [{"index": 1, "delta": {"content": "One"}}]})],  # another choice
]


@pytest.mark.parametrize("events", NOT_ITS_BEGINNING)
@pytest.mark.parametrize("error", [[], [json.dumps({"error": {"message": "no"}})]])
def test_what_came_of_an_answer_that_is_not_whole_is_its_beginning(events: list[str], error: list[str]) -> None:
    assert rules(call("a", events, outcome="left")) == ["different"]
    assert rules(call("a", events + error, outcome="cut")) == ["different"]
    assert rules(call("a", events + error)) == ["different"]


@pytest.mark.parametrize("events", NOT_ITS_BEGINNING)
def test_an_excuse_does_not_excuse_another_answer(events: list[str]) -> None:
    served: list[Record] = [Served("a", "router-0"), Fault("kill", ("router-0",), 10.0, 10.5)]
    assert rules(call("a", WHOLE[:2], outcome="cut"), *served) == []
    assert rules(call("a", events, outcome="cut"), *served) == ["different"]


def test_answers_that_clients_always_leave_are_compared_with_each_other() -> None:
    """However much of them each client has received."""
    deltas = [json.dumps({"delta": {"text": text, "token_ids": [token]}}) for text, token, _ in TOKENS]
    first = call("first", deltas[:2], "calm", "typed", outcome="left")
    for events in (deltas[:1], deltas):
        assert rules(first, call("a", events, request="typed", outcome="left")) == []
    for events in (deltas[1:], [deltas[0], deltas[2]]):
        assert rules(first, call("a", events, request="typed", outcome="left")) == ["different"]


def test_a_tool_call_that_is_not_whole_is_its_beginning() -> None:
    def called(arguments: str, **fields: Any) -> str:
        function = {"name": "look", "arguments": arguments}
        return json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": function}]}} | fields]})

    whole = [called('{"at": 1}', finish_reason="tool_calls"), USAGE, "[DONE]"]
    tools = HttpRequest("tools", "/v1/chat/completions", {"stream": True})

    def found(event: str) -> list[str]:
        records = [call("reference", whole, "calm", "tools"), call("a", [event], request="tools", outcome="left")]
        return [finding.rule for finding in check(records, [tools], SHAPE).findings]

    assert found(called('{"at"')) == []
    assert found(called('{"to"')) == ["different"]


@pytest.mark.parametrize(
    ("status", "retry_after", "phase", "found"),
    [
        (429, 1.0, "storm", []),
        (429, 1.0, "calm", []),
        (503, None, "storm", ["refused wrongly"]),
        (503, 1.0, "storm", ["refused wrongly"]),
        (429, None, "storm", ["refused wrongly"]),
        (500, 1.0, "storm", ["refused wrongly"]),
        (404, None, "storm", ["refused wrongly"]),
    ],
)
def test_a_refusal_needs_a_status_and_a_time_to_retry(
    status: int, retry_after: float | None, phase: Phase, found: list[str]
) -> None:
    assert rules(call("a", ["{}"], phase, status=status, retry_after=retry_after)) == found


@pytest.mark.parametrize(
    ("targets", "end", "found"),
    [
        (("worker-0", "worker-1"), 10.5, []),
        # The workers start, and are claimed.
        (("worker-0", "worker-1"), 8.5, []),
        (("worker-0", "worker-1"), 7.5, ["refused wrongly"]),
        (("worker-0",), 10.5, ["refused wrongly"]),
        (("router-0",), 10.5, ["refused wrongly"]),
    ],
)
def test_a_call_is_refused_only_if_nobody_could_have_served_it(
    targets: tuple[str, ...], end: float, found: list[str]
) -> None:
    fault = Fault("kill of a tier", targets, 5.0, end)
    assert rules(fault, call("a", ["{}"], status=503, retry_after=1.0)) == found


@pytest.mark.parametrize(
    ("targets", "status", "is_excused"),
    [
        (("router-0",), 0, False),
        (("router-0",), 200, True),
        (("router-0", "router-1"), 0, True),
        (("gateway-0",), 0, True),
    ],
)
def test_a_call_that_has_not_begun_is_not_excused_by_its_router(
    targets: tuple[str, ...], status: int, is_excused: bool
) -> None:
    """The gateway can send it to another router, unless the response's headers have arrived."""
    broken = call("a", [], outcome="cut", status=status)
    verdict = check([REFERENCE, broken, Fault("kill", targets, 10.5, 11.0), Served("a", "router-0")], [CHAT], SHAPE)
    assert verdict.calls["excused"] == int(is_excused)


@pytest.mark.parametrize(
    ("target", "router", "start", "is_excused"),
    [
        ("router-0", "router-0", 10.0, True),
        ("gateway-0>router-0", "router-0", 10.0, True),
        ("gateway-0", "router-0", 10.0, True),
        ("gateway-0", None, 10.0, True),
        ("gateway-1", "router-0", 10.0, False),
        ("*>router-0", "router-0", 10.0, True),
        ("router-1", "router-0", 10.0, False),
        ("router-0", None, 10.0, False),
        ("router-0", "router-0", 12.0, False),
        ("scheduler-0", "router-0", 10.0, False),
        ("router-0>scheduler-0", "router-0", 10.0, False),
    ],
)
def test_only_streams_of_a_router_under_a_fault_may_break(
    target: str, router: str | None, start: float, is_excused: bool
) -> None:
    served = [] if router is None else [Served("a", router)]
    broken = call("a", WHOLE[:2], outcome="cut")
    verdict = check([REFERENCE, broken, Fault("kill", (target,), start, start + 0.5), *served], [CHAT], SHAPE)
    assert [finding.rule for finding in verdict.findings] == ([] if is_excused else ["lost"])
    assert verdict.calls["excused"] == int(is_excused)


@pytest.mark.parametrize(
    ("target", "was_last_release", "told_s", "lasted_s", "is_excused"),
    [
        ("router-0", False, 10.0, 11.0, True),
        ("router-0", False, 9.0, 11.0, False),
        # It began after the part was told to end.
        ("router-0", False, 10.0, 9.0, False),
        ("gateway-0", False, 10.0, 11.0, True),
        ("gateway-0", False, 9.0, 11.0, False),
        ("gateway-0", False, 10.0, 9.0, False),
        ("gateway-0", True, 10.0, 9.0, True),
    ],
)
def test_a_part_that_is_told_to_end_excuses_only_streams_longer_than_its_drain(
    target: str, was_last_release: bool, told_s: float, lasted_s: float, is_excused: bool
) -> None:
    """The part was told to end so long before the stream broke off."""
    broken = call("a", WHOLE[:2], outcome="cut")
    broken = dataclasses.replace(broken, start=broken.end - lasted_s)
    start = broken.end - told_s
    fault = Fault("rolling upgrade", (target,), start, start + 15.0, was_last_release)
    verdict = check([REFERENCE, broken, fault, Served("a", "router-0")], [CHAT], SHAPE)
    assert verdict.calls["excused"] == int(is_excused)


@pytest.mark.parametrize(
    ("was_last_release", "told_s", "detail", "is_served", "is_excused"),
    [
        (False, 5.0, "ClientConnectorError: Cannot connect", False, True),
        (False, 1.0, "ClientOSError: Connection reset by peer", False, True),
        # Only a gateway of the last release accepts connections although it does not serve them.
        (False, 5.0, "ClientOSError: Connection reset by peer", False, False),
        (True, 5.0, "ClientOSError: Connection reset by peer", False, True),
        # A router has it.
        (False, 5.0, "ClientConnectorError: Cannot connect", True, False),
        (True, 5.0, "ServerDisconnectedError: Server disconnected", True, True),
        (False, -0.6, "ClientConnectorError: Cannot connect", False, False),
        (True, -0.6, "ClientConnectorError: Cannot connect", False, False),
    ],
)
def test_a_gateway_that_is_told_to_end_refuses_connections(
    was_last_release: bool, told_s: float, detail: str, is_served: bool, is_excused: bool
) -> None:
    """The gateway was told to end so long before the call began."""
    broken = call("a", [], outcome="cut", detail=detail)
    fault = Fault("rolling upgrade", ("gateway-0",), broken.start - told_s, broken.start + 9.0, was_last_release)
    served = [Served("a", "router-0")] * is_served
    assert rules(broken, fault, *served) == ([] if is_excused else ["lost"])


@pytest.mark.parametrize(
    ("told_s", "lasted_s", "is_served", "is_excused"),
    [(0.1, 0.2, False, True), (0.1, 3.0, False, False), (0.1, 0.2, True, False), (0.8, 1.0, False, False)],
)
def test_a_gateway_that_is_told_to_end_resets_connections_that_wait_for_it(
    told_s: float, lasted_s: float, is_served: bool, is_excused: bool
) -> None:
    """The gateway was told to end so long after the call began."""
    broken = call("a", [], outcome="cut", detail="ClientOSError: Can not write request body")
    broken = dataclasses.replace(broken, end=broken.start + lasted_s)
    fault = Fault("terminate", ("gateway-0",), broken.start + told_s, broken.start + 9.0)
    served = [Served("a", "router-0")] * is_served
    assert rules(broken, fault, *served) == ([] if is_excused else ["lost"])


@pytest.mark.parametrize(("killed_s", "is_excused"), [(1.0, True), (3.0, False)])
def test_any_router_excuses_a_call_whose_line_in_the_access_log_is_lost(killed_s: float, is_excused: bool) -> None:
    broken = call("a", WHOLE[:2], outcome="cut")
    faults = Fault("stop", ("router-0",), 6.0, 15.0), Fault("kill", ("gateway-0",), broken.end + killed_s, 20.0)
    assert rules(broken, *faults) == ([] if is_excused else ["lost"])


@pytest.mark.parametrize(
    ("kind", "before_s", "is_excused"),
    [("stop", 4.0, False), ("stop", 5.0, True), ("link stall", 4.0, False), ("link stall", 5.0, True),
     ("link delay", 5.0, False), ("link cut", 0.1, True)],
)  # fmt: skip
def test_what_breaks_no_stream_excuses_none(kind: str, before_s: float, is_excused: bool) -> None:
    """The fault began so long before the stream broke off, and lasted on."""
    broken, served = call("a", WHOLE[:2], outcome="cut"), Served("a", "router-0")
    fault = Fault(kind, ("gateway-0>router-0",), broken.end - before_s, broken.end + 9.0)
    assert rules(broken, fault, served) == ([] if is_excused else ["lost"])


@pytest.mark.parametrize(
    ("kind", "begun_s", "is_excused"),
    [("kill", 0.1, True), ("kill", -1.0, False), ("link down", -1.0, False), ("memory limit", -1.0, True)],
)
def test_a_fault_excuses_no_call_that_began_later(kind: str, begun_s: float, is_excused: bool) -> None:
    """The call began so long before the fault. A memory limit can kill a part at any time."""
    broken, served = call("a", WHOLE[:2], outcome="cut"), Served("a", "router-0")
    fault = Fault(kind, ("router-0",), broken.start + begun_s, broken.end + 9.0)
    assert rules(broken, fault, served) == ([] if is_excused else ["lost"])


@pytest.mark.parametrize(("earlier_s", "is_excused"), [(1.9, True), (2.1, False)])
def test_a_fault_that_is_long_over_excuses_nothing(earlier_s: float, is_excused: bool) -> None:
    broken, served = call("a", WHOLE[:2], outcome="cut"), Served("a", "router-0")
    end = broken.end - earlier_s
    fault = Fault("kill", ("router-0",), end - 1, end)
    verdict = check([REFERENCE, dataclasses.replace(broken, start=end - 1), fault, served], [CHAT], SHAPE)
    assert verdict.excuses == ({"kill of a router": 1} if is_excused else {})


def test_a_router_under_a_fault_excuses_no_changed_answer_and_no_hang() -> None:
    fault, served = Fault("kill", ("router-0",), 10.0, 10.5), Served("a", "router-0")
    assert rules(call("a", [WHOLE[0], *WHOLE[2:]]), fault, served) == ["different"]
    assert rules(call("a", [chunk("Two", 1, -0.5), *WHOLE[1:]]), fault, served) == ["different"]
    assert rules(call("a", WHOLE[:1], outcome="hung"), fault, served) == ["hung"]


def test_a_part_that_ends_by_itself_is_found() -> None:
    assert rules(Exit("worker-0", 1.0, False, "ended with status 1")) == ["ended by itself"]
    assert rules(Exit("worker-0", 1.0, True, "was killed by SIGKILL")) == []


def test_a_history_can_be_read_again() -> None:
    records: list[Record] = [
        REFERENCE,
        Fault("kill", ("router-0",), 1.0, 2.0),
        Skipped("full disk", "mounting is not allowed"),
        Exit("worker-0", 1.0, False, "ended"),
        Served("a", "router-0"),
    ]
    lines = [json.dumps({"record": type(one).__name__, **dataclasses.asdict(one)}) for one in records]
    assert list(parse(lines)) == records
