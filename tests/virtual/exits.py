"""Which processes of workers have exited, and which requests may be blamed for it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import grpc

from quire.worker.v1 import worker_pb2
from tests.virtual.network import Host, Stream

Prompt = tuple[int, ...]
# A stream that ends with one of these was ended by a worker that still runs, or by the scheduler.
_GOODBYES = (grpc.StatusCode.OK, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(slots=True)
class _Plans:
    """What a scheduler has sent over one stream. `in_flight`: the sequences of each step without a result."""

    prompts: dict[int, Prompt] = field(default_factory=dict)
    in_flight: dict[int, set[int]] = field(default_factory=dict)


class Exits:
    """A scheduler may blame a request only for the exit of a worker that was computing nothing else."""

    def __init__(self) -> None:
        self._plans: dict[Stream, _Plans] = {}
        # The workers whose streams have broken while they were computing one request.
        self._broken: list[tuple[Host, Prompt]] = []
        self._exited: set[Host] = set()

    # What schedulers see of the network (Watch).

    def written(self, stream: Stream, message: worker_pb2.RunRequest) -> None:
        if message.HasField("plan"):
            plans, plan = self._plans.setdefault(stream, _Plans()), message.plan
            plans.prompts |= {new.wire_id: prompt_of(new) for new in plan.new_sequences}
            plans.in_flight[plan.step_id] = {*array("I", plan.rows.wire_ids)}

    def read(self, stream: Stream, message: worker_pb2.RunResponse) -> None:
        if message.HasField("result"):
            self._plans[stream].in_flight.pop(message.result.step_id, None)

    def ended(self, stream: Stream, code: grpc.StatusCode) -> None:
        plans = self._plans.pop(stream, _Plans())
        if code not in _GOODBYES:
            computed = {plans.prompts[wire_id] for step in plans.in_flight.values() for wire_id in step}
            if len(computed) == 1:
                self._broken.append((stream.server, computed.pop()))

    # What happens in truth.

    def add(self, worker: Host) -> None:
        """Takes note that a process has exited, or that another one has taken its place."""
        self._exited.add(worker)

    def num_for(self, prompt: Prompt) -> int:
        """Number of exits that a request with this prompt may be blamed for."""
        return sum(worker in self._exited and computed == prompt for worker, computed in self._broken)


def prompt_of(new: worker_pb2.NewSequence) -> Prompt:
    token_ids = array("I", new.token_ids)
    return tuple(token_ids[: new.num_prompt_tokens])
