"""For which exits of workers a scheduler may blame a request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import grpc

from quire.worker.v1 import worker_pb2
from tests.virtual.network import Stream, Watch

Prompt = tuple[int, ...]
# A stream that ends with one of these was ended by a worker that still runs, or by the scheduler.
_GOODBYES = (grpc.StatusCode.OK, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(slots=True)
class _Plans:
    """What a scheduler has sent over one stream. `in_flight`: the sequences of each step without a result."""

    prompts: dict[int, Prompt] = field(default_factory=dict)
    in_flight: dict[int, set[int]] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Loss:
    """A stream that broke while plans of one request alone were in flight. `was_cut`: whether the scheduler has reached
    the same process again. If so, the process had not exited."""

    stream: Stream
    prompt: Prompt
    was_cut: bool = False


class Exits(Watch):
    """Looks at the streams between schedulers and workers. A request is to blame only if workers exited while they had
    plans of this request alone. A worker that the scheduler does not reach again counts as one that has exited."""

    def __init__(self) -> None:
        self._plans: dict[Stream, _Plans] = {}
        self._losses: list[_Loss] = []

    def written(self, stream: Stream, message: worker_pb2.RunRequest) -> None:
        if message.HasField("plan"):
            plans, plan = self._plans.setdefault(stream, _Plans()), message.plan
            plans.prompts |= {new.wire_id: prompt_of(new) for new in plan.new_sequences}
            plans.in_flight[plan.step_id] = {*array("I", plan.rows.wire_ids)}

    def read(self, stream: Stream, message: worker_pb2.RunResponse) -> None:
        if message.HasField("result"):
            self._plans[stream].in_flight.pop(message.result.step_id, None)
        elif message.HasField("hello") or message.HasField("refused"):
            for loss in self._losses:
                loss.was_cut |= (loss.stream.client, loss.stream.server) == (stream.client, stream.server)

    def ended(self, stream: Stream, code: grpc.StatusCode) -> None:
        plans = self._plans.pop(stream, _Plans())
        if code not in _GOODBYES:
            computed = {plans.prompts[wire_id] for step in plans.in_flight.values() for wire_id in step}
            if len(computed) == 1:
                self._losses.append(_Loss(stream, computed.pop()))

    def alone(self) -> dict[Stream, Prompt]:
        """The streams on which plans of a single request are in flight, with its prompt."""
        computed = {
            stream: {plans.prompts[wire_id] for step in plans.in_flight.values() for wire_id in step}
            for stream, plans in self._plans.items()
            if stream.is_whole
        }
        return {stream: next(iter(prompts)) for stream, prompts in computed.items() if len(prompts) == 1}

    def num_for(self, prompt: Prompt) -> int:
        """Number of exits that a request with this prompt may be blamed for."""
        return sum(loss.prompt == prompt and not loss.was_cut for loss in self._losses)


def prompt_of(new: worker_pb2.NewSequence) -> Prompt:
    token_ids = array("I", new.token_ids)
    return tuple(token_ids[: new.num_prompt_tokens])
