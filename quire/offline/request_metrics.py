"""The times of one request, under the names that vLLM's `RequestOutput.metrics` has for them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.client.results import Timings


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times and durations of one request. Times are seconds since the epoch, as in `time.time()`; durations are
    seconds. The names are those of vLLM's classes `RequestMetrics` and `RequestStateStats`. None: the event did not
    happen, or Quire does not measure it."""

    # Time of the call of `generate` or `chat`.
    arrival_time: float
    # Time at which a scheduler planned the first step for any of the request's sequences.
    first_scheduled_time: float | None
    # Times at which the router received the first and the last token of the answer.
    first_token_time: float | None
    last_token_time: float | None
    # Time at which `LLM` had received the complete answer.
    finished_time: float
    # Seconds from arrival_time to first_scheduled_time. Includes the wait for other prompts of the same call.
    time_in_queue: float | None
    # Number of tokens in all choices of the request.
    num_generation_tokens: int
    scheduler_time: float | None = None
    model_forward_time: float | None = None
    model_execute_time: float | None = None

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival_time to first_token_time."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def queued_ts(self) -> float:
        return self.arrival_time

    @property
    def scheduled_ts(self) -> float | None:
        return self.first_scheduled_time

    @property
    def first_token_ts(self) -> float | None:
        return self.first_token_time

    @property
    def last_token_ts(self) -> float | None:
        return self.last_token_time


def request_metrics(
    arrival_time: float, seconds: float, timings: Timings | None, num_generation_tokens: int
) -> RequestMetrics:
    """Builds the metrics. `seconds`: duration from `arrival_time` to the end of the answer, on a monotonic clock.

    The durations in `timings` begin when the router submits the request, an unknown time after `arrival_time`. The
    times of events are therefore counted back from the end of the answer, which the router sends without delay."""
    end = arrival_time + seconds

    def moment(duration: float | None) -> float | None:
        return None if duration is None else max(arrival_time, end - (known.total - duration))

    known = timings or Timings(None, None, None, 0.0)
    scheduled = moment(known.queue)
    return RequestMetrics(
        arrival_time=arrival_time,
        first_scheduled_time=scheduled,
        first_token_time=moment(known.first_token),
        last_token_time=moment(known.last_token),
        finished_time=end,
        time_in_queue=None if scheduled is None else scheduled - arrival_time,
        num_generation_tokens=num_generation_tokens,
    )
