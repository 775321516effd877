"""Measures requests. The hot path only adds to plain numbers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.errors import ErrorKind
from shared.metrics import Histogram, Metric, catalog

if TYPE_CHECKING:
    from services.router.dispatch import SubmittedSequence

# Histograms of the requests for one model.
_OF_REQUESTS = (
    catalog.TIME_TO_FIRST_TOKEN, catalog.INTER_TOKEN_LATENCY, catalog.REQUEST_TIME_PER_OUTPUT_TOKEN,
    catalog.E2E_REQUEST_LATENCY, catalog.REQUEST_QUEUE_TIME, catalog.REQUEST_PREFILL_TIME,
    catalog.REQUEST_DECODE_TIME, catalog.REQUEST_INFERENCE_TIME, catalog.REQUEST_PROMPT_TOKENS,
    catalog.REQUEST_GENERATION_TOKENS, catalog.REQUEST_MAX_NUM_GENERATION_TOKENS,
    catalog.REQUEST_PREFILL_KV_COMPUTED_TOKENS, catalog.REQUEST_PARAMS_N, catalog.REQUEST_PARAMS_MAX_TOKENS,
    catalog.REQUEST_NUM_PREEMPTIONS, catalog.RECOVERY_PAUSE, catalog.DELIVERY,
)  # fmt: skip

# Each has a series from the start: `rate()` does not see a counter's first value.
_ERROR_STATUSES = tuple(kind.status.name.lower() for kind in ErrorKind)

# Models and versions with series of their own. A fleet that gets a new version every day would otherwise have ever more
# series, some 390 each.
MAX_MODELS = 100


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How one choice of a request ended."""

    reason: str  # stop, length or error
    num_prompt_tokens: int
    num_tokens: int = 0  # generated
    max_num_tokens: int = 0  # that it might have generated; 0: it generates none
    num_cached_tokens: int = 0  # of the prompt, found in a cache
    num_host_cached_tokens: int = 0  # among them, found in the host's memory
    num_preemptions: int = 0
    num_losses: int = 0  # how often a part was lost that worked on it
    scheduled_at: float | None = None  # time of its first planned step on the monotonic clock, if known

    @classmethod
    def of(cls, sequence: SubmittedSequence, reason: str, num_tokens: int = 0, max_num_tokens: int = 0) -> ChoiceEnd:
        """Returns the end of the choice that `sequence` is."""
        return cls(
            reason,
            len(sequence.submission.prompt_token_ids),
            num_tokens,
            max_num_tokens,
            sequence.num_cached_tokens,
            sequence.num_host_cached_tokens,
            sequence.num_preemptions,
            sequence.num_parts_lost,
            sequence.scheduled_at,
        )


class ModelMetrics:
    """Metrics of the requests that this router handled for one model."""

    def __init__(self) -> None:
        self.histograms = {metric: Histogram(metric) for metric in _OF_REQUESTS}
        self.num_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_recovered = 0
        self.num_lost = 0
        # Prompt tokens of the choices that ended, by source.
        self.by_source: Counter[str] = Counter(local_compute=0, local_cache_hit=0, external_kv_transfer=0)
        self.finished: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)
        # Number of requests that were refused because too much was waiting, by the limit that they met.
        self.rejections: Counter[str] = Counter(max_num_queued_reqs=0, max_num_requests=0)
        # When a request last asked for the model, in seconds on the monotonic clock.
        self.asked_at = 0.0


class RequestMetrics:
    """Metrics of all requests, by model, and counts of errors and ignored fields."""

    def __init__(self) -> None:
        # By name and version. A scrape reads them in another thread.
        self.models: dict[tuple[str, str], ModelMetrics] = {}
        self.event_loop_lag = Histogram(catalog.EVENT_LOOP_LAG)
        # Number of errors, by gRPC status in lower case.
        self.errors: Counter[str] = Counter(dict.fromkeys(_ERROR_STATUSES, 0))
        # Number of unknown request fields that were ignored, by method.
        self.ignored_fields: Counter[str] = Counter()

    def of_model(self, name: str, version: str) -> ModelMetrics:
        """Returns the metrics of a model that has a scheduler. If there are too many, drops those of the model that was
        asked for longest ago."""
        metrics = self.models.get((name, version))
        if metrics is None:
            if len(self.models) >= MAX_MODELS:
                self.models.pop(min(self.models, key=lambda model: self.models[model].asked_at))
            metrics = self.models[name, version] = ModelMetrics()
        metrics.asked_at = time.monotonic()
        return metrics

    def start(self, model: str, version: str = "", n: int = 1) -> RequestTimer:
        """Starts to measure a request. `n`: choices of each prompt."""
        metrics = self.of_model(model, version)
        metrics.histograms[catalog.REQUEST_PARAMS_N].observe(n)
        return RequestTimer(metrics)


class RequestTimer:
    """Measures one request, from its submission to its end. What vLLM measures for each child request is measured for
    each choice."""

    __slots__ = ("_failure", "_first", "_first_of_all", "_last", "_longest", "_metrics", "_start")

    def __init__(self, metrics: ModelMetrics) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        # Times at which each choice first and last got tokens.
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._first_of_all: float | None = None
        self._longest = 0
        self._failure: ErrorKind | None = None

    def tokens(self, choice: int, count: int, now: float, prompt: Sized, *, is_recovered: bool = False) -> None:
        """Takes note of new tokens of a choice. `prompt`: the tokens of its prompt. `is_recovered`: the new tokens are
        the first since a part that worked on the choice was lost."""
        histograms = self._metrics.histograms
        last = self._last.get(choice)
        if last is not None:
            histograms[catalog.INTER_TOKEN_LATENCY].observe((now - last) / count, count)
            if is_recovered:
                histograms[catalog.RECOVERY_PAUSE].observe(now - last)
        else:
            if self._first_of_all is None:
                self._first_of_all = now
            histograms[catalog.TIME_TO_FIRST_TOKEN].observe(now - self._start)
            self._metrics.num_prompt_tokens += len(prompt)
            self._first[choice] = now
        self._last[choice] = now
        self._metrics.num_generation_tokens += count

    def delivered(self, seconds: float) -> None:
        """Takes note of a delivery. `seconds`: time from the arrival of new tokens in this router until the client's
        transport accepted them."""
        self._metrics.histograms[catalog.DELIVERY].observe(seconds)

    @property
    def start(self) -> float:
        """Time of the request's submission, in seconds on the monotonic clock."""
        return self._start

    @property
    def first_token_at(self) -> float | None:
        """Time of the first token, in seconds on the monotonic clock; None before the first token."""
        return self._first_of_all

    @property
    def last_token_at(self) -> float | None:
        return max(self._last.values(), default=None)

    @property
    def seconds_to_first_token(self) -> float:
        """Seconds from the submission to the first token; 0 before the first token."""
        first = self.first_token_at
        return 0.0 if first is None else first - self._start

    def ended(self, choice: int, end: ChoiceEnd) -> None:
        """Takes note of the end of a choice."""
        metrics = self._metrics
        metrics.finished[end.reason] += 1
        if choice not in self._first:  # An input of an embedding, or a choice that was to have no tokens.
            metrics.num_prompt_tokens += end.num_prompt_tokens
        metrics.num_recovered += end.num_losses > 0
        self._longest = max(self._longest, end.num_tokens)
        computed = end.num_prompt_tokens - end.num_cached_tokens
        metrics.by_source["local_compute"] += computed
        metrics.by_source["local_cache_hit"] += end.num_cached_tokens - end.num_host_cached_tokens
        metrics.by_source["external_kv_transfer"] += end.num_host_cached_tokens
        observed: list[tuple[Metric, float]] = [
            (catalog.E2E_REQUEST_LATENCY, time.monotonic() - self._start),
            (catalog.REQUEST_PROMPT_TOKENS, end.num_prompt_tokens),
            (catalog.REQUEST_PREFILL_KV_COMPUTED_TOKENS, computed),
            (catalog.REQUEST_NUM_PREEMPTIONS, end.num_preemptions),
        ]
        if end.max_num_tokens:
            observed += [
                (catalog.REQUEST_GENERATION_TOKENS, end.num_tokens),
                (catalog.REQUEST_PARAMS_MAX_TOKENS, end.max_num_tokens),
            ]
        first, last, scheduled = self._first.get(choice), self._last.get(choice), end.scheduled_at
        if first is not None and last is not None:
            observed.append((catalog.REQUEST_DECODE_TIME, last - first))
            if end.num_tokens > 1:
                observed.append((catalog.REQUEST_TIME_PER_OUTPUT_TOKEN, (last - first) / (end.num_tokens - 1)))
        if scheduled is not None:
            # The scheduler's clock says how long it was; a first token may be noted a moment before that has passed.
            observed.append((catalog.REQUEST_QUEUE_TIME, max(0.0, scheduled - self._start)))
            if first is not None and last is not None:
                observed.append((catalog.REQUEST_PREFILL_TIME, max(0.0, first - scheduled)))
                observed.append((catalog.REQUEST_INFERENCE_TIME, max(0.0, last - scheduled)))
        for metric, value in observed:
            metrics.histograms[metric].observe(value)

    def failed(self, kind: ErrorKind) -> None:
        """Takes note of the error that ends the request."""
        self._failure = kind

    def closed(self, completed: bool, losses: Sequence[int] = ()) -> None:
        """Ends the measurement. `completed`: whether all output was generated. A request that neither completed nor
        failed was aborted by its client, and one that ran out of its client's time counts as such. One that was
        refused has not begun, and counts nowhere here. `losses`: for each choice that has not ended, how often a part
        was lost that worked on it."""
        metrics = self._metrics
        if completed:
            if self._last:
                metrics.histograms[catalog.REQUEST_MAX_NUM_GENERATION_TOKENS].observe(self._longest)
            return
        if self._failure is not None and self._failure.is_own_fault:
            metrics.finished["error"] += max(1, len(losses))
            metrics.num_lost += sum(count > 0 for count in losses)
        elif self._failure in (None, ErrorKind.TIMEOUT):
            metrics.finished["abort"] += max(1, len(losses))
