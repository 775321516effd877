"""The models that this router's schedulers serve, and the names by which requests find them.

A model is served while a scheduler that announced it is connected and takes new requests. A model whose last scheduler
has left is away: it is not listed any more, but requests for it still wait for a scheduler, because one that restarts
announces it again within seconds. So do requests for a version whose last scheduler was lost, although others could
take them: only a version whose last scheduler drained gives its share to the others at once. Every decision depends
only on the schedulers, so routers agree without communicating.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from services.router.dispatch.versions import Key, Offer, find
from services.router.errors import ApiError, ErrorKind, model_not_found, served_models, unavailable
from services.router.model import DEFAULT_WEIGHT, ModelInfo, ModelKey, ServedModel
from services.router.text import Tokenizer
from shared.model_label import model_label

logger = logging.getLogger(__name__)

# Maximum number of models that are away and still known.
_MAX_AWAY = 8
# Seconds after which a model that is away is forgotten. Until then, a request for it waits and fails with a 503, which
# clients retry; later, it fails with a 404, or with a 503 if no model is known.
AWAY_SECONDS = 300.0
# After the router's start, an unknown model might be that of a scheduler that has not answered yet. So during these
# seconds, a request for it waits until each scheduler has answered.
SETTLE_SECONDS = 5.0
# As long as discovery has not been complete since the router's start, an unknown model might be there all the same. So
# during these seconds, a request for it fails with a 503, which clients retry. Longer than it takes to restart Redis.
INCOMPLETE_SECONDS = 60.0


class ModelScheduler(Protocol):
    """What the directory needs to know of a scheduler."""

    # Number of hellos received since the router's start.
    num_hellos: int
    # Weight of the model's version; once the scheduler is lost, its last weight.
    model_weight: int

    @property
    def info(self) -> ModelInfo | None:
        """The model that the scheduler serves; None if the scheduler is not connected."""

    @property
    def is_draining(self) -> bool:
        """Whether the scheduler refuses new requests because it is stopping. Stays true once it has left."""

    @property
    def has_workers(self) -> bool:
        """Whether the scheduler has a worker group that can compute."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model under one of the names that requests can give."""

    name: str
    model: ServedModel


class ModelDirectory:
    """Knows the models, on one event loop. Only the coroutine methods await."""

    def __init__(
        self,
        schedulers: Callable[[], Iterable[ModelScheduler]],
        *,
        wait: float,
        default: str | None = None,
        is_discovering: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = lambda: asyncio.get_running_loop().time(),
    ) -> None:
        """`schedulers`: returns all schedulers of this router. `wait`: maximum seconds that a request waits for a
        model. `default`: name of the model for requests that name none. `is_discovering`: returns whether there may be
        schedulers that discovery has not found yet. `clock`: returns seconds that never
        decrease."""
        self._schedulers = schedulers
        self._default = default
        self._is_discovering = is_discovering
        self._wait = wait
        self._clock = clock
        self._started_at = 0.0
        # Whether discovery has been complete since the start.
        self._was_complete = False
        # In the order in which the models were last announced.
        self._known: dict[ModelKey, ServedModel] = {}
        self._tokenizers: dict[str, Tokenizer] = {}
        # When the last scheduler of a known model left, in seconds on the clock.
        self._away_since: dict[ModelKey, float] = {}
        # The model of each scheduler that was connected at the last change.
        self._served_by: dict[ModelScheduler, ModelKey] = {}
        # Of the known models, those whose last scheduler was lost without a drain: their weight, and when that was.
        self._lost: dict[ModelKey, tuple[int, float]] = {}
        self._name_conflicts: dict[str, tuple[str, ...]] = {}
        # Set at the next change of schedulers, then replaced.
        self._next_change = asyncio.Event()

    def start(self) -> None:
        """Takes note of the router's start."""
        self._started_at = self._clock()

    # Changes.

    def has_tokenizer(self, info: ModelInfo) -> bool:
        return info.tokenizer_sha256 in self._tokenizers

    def add_tokenizer(self, sha256: str, tokenizer: Tokenizer) -> None:
        self._tokenizers[sha256] = tokenizer

    def announce(self, info: ModelInfo) -> None:
        """Records the model that a scheduler has announced. Its tokenizer must have been added."""
        known = self._known.pop(info.key, None)
        created = int(time.time()) if known is None else known.created
        self._known[info.key] = ServedModel(info, self._tokenizers[info.tokenizer_sha256], created)

    def update(self) -> None:
        """Takes note of a scheduler that has connected or left, or of an answer of discovery."""
        self._was_complete = self._was_complete or not self._is_discovering()
        connected = {scheduler.info.key for scheduler in self._schedulers() if scheduler.info is not None}
        now = self._clock()
        self._away_since = {key: self._away_since.get(key, now) for key in self._known if key not in connected}
        self._note_losses(now)
        self._forget()
        self._log_conflicts()
        self._next_change.set()
        self._next_change = asyncio.Event()

    def _note_losses(self, now: float) -> None:
        """Takes note of models whose last scheduler has left without a drain, and drops those that are served again."""
        for scheduler, key in self._served_by.items():
            if scheduler.info is None and not scheduler.is_draining:
                self._lost.setdefault(key, (scheduler.model_weight, now))
        for key in self._lost.keys() & self._weights().keys():
            del self._lost[key]
        self._served_by = {
            scheduler: scheduler.info.key for scheduler in self._schedulers() if scheduler.info is not None
        }

    # Questions.

    @property
    def names(self) -> list[str]:
        """The names of the models that are served now, without aliases. A version that only requests for it get has
        its name with the version."""
        served = self._served()
        weighted = {offer.name for offer in served if offer.weight}
        return list(dict.fromkeys(offer.name if offer.name in weighted else offer.names[-1] for offer in served))

    def versions(self, name: str) -> list[str]:
        """Returns the versions that requests for the model `name` can name, in alphabetical order."""
        return [offer.version for offer in self._served() if offer.name == name and offer.version]

    def is_ready(self, model: ServedModel) -> bool:
        """Returns whether a scheduler of this model takes new requests and has a worker now."""
        return any(
            scheduler.info is not None
            and scheduler.info.key == model.info.key
            and not scheduler.is_draining
            and scheduler.has_workers
            for scheduler in self._schedulers()
        )

    def other_version(self, info: ModelInfo) -> ModelInfo | None:
        """Returns the main one of the other versions that understand the tokens of this model; None if there is none.
        A request can continue on it."""
        others = [offer for offer in self._served() if offer.model.info.tokenizer_sha256 == info.tokenizer_sha256]
        model = find([offer for offer in others if offer.version != info.version], info.name)
        return None if model is None else model.info

    @property
    def num_conflicts(self) -> int:
        """Number of names that more than one served model claims, as of the last change. Threads may read it."""
        return len(self._name_conflicts)

    async def listed(self) -> list[ListedModel]:
        """Returns the served models under all their names. If no model is served, waits for one. Raises ApiError if
        none comes in time."""
        await self._until(lambda: bool(self._served()), "No scheduler is connected.")
        served = self._served()
        names = dict.fromkeys(name for offer in served for name in offer.names)
        listed = ((name, find(served, name)) for name in names)
        return [ListedModel(name, model) for name, model in listed if model is not None]

    async def find(self, name: str | None, key: Key | None = None, *, may_be_away: bool = True) -> ServedModel:
        """Returns the model with this name or alias, or NAME@VERSION. If `name` is None, returns the default model, or
        else the only one. `key`: returns the placement key of the request's conversation, which decides between
        versions; without one, the request gets the main version. `may_be_away`: whether the model's schedulers may all
        have left a moment ago. Raises ApiError."""
        self._forget()
        if may_be_away:
            await self._until(lambda: bool(self._known), "No scheduler is connected yet.")
        else:
            await self._until(lambda: bool(self._served()), "No scheduler is connected.")
        name = name if name is not None else self._default_name()
        if name is None:
            message = f"Missing required parameter: 'model'.{served_models(self.names)}"
            raise ApiError(ErrorKind.INVALID_REQUEST, message, "model")
        model = self._find(name, key, may_be_away)
        if model is None and not self._is_settled:
            await self._until_settled(lambda: self._find(name, key, may_be_away) is not None)
            model = self._find(name, key, may_be_away)
        if model is None and self._is_incomplete:
            message = f"The model `{name}` is not known: this router has just started, and may not know all models yet."
            raise unavailable(f"{message} Try again.")
        if model is None:
            raise self.not_found(name)
        return model

    def find_now(self, name: str) -> ServedModel:
        """Returns the main version of a model, of those that are served if there is one. Does not wait. Raises
        ApiError."""
        self._forget()
        model = self._find(name, None, may_be_away=False) or self._find(name, None, may_be_away=True)
        if model is None:
            raise self.not_found(name)
        return model

    def not_found(self, name: str) -> ApiError:
        """Returns the error for a name that finds no model. It names what there is: of a model whose version is wrong,
        the versions, and else the models."""
        base, _, version = name.rpartition("@")
        versions = [model_label(base, one) for one in self.versions(base)] if version else []
        return model_not_found(name, versions or self.names)

    def _find(self, name: str, key: Key | None, may_be_away: bool) -> ServedModel | None:
        served = self._served()
        model = find([*served, *self._lost_now(served)] if may_be_away else served, name, key)
        if model is None and may_be_away:
            # Besides the models that are away, these are the models whose schedulers are all draining.
            versions = {(offer.name, offer.version) for offer in served}
            newest = {
                (key.name, key.version): model
                for key, model in self._known.items()
                if (key.name, key.version) not in versions
            }
            model = find([Offer(model, DEFAULT_WEIGHT) for model in newest.values()], name, key)
        return model

    def _default_name(self) -> str | None:
        names = self.names or list(dict.fromkeys(key.name for key in self._known))
        return self._default or (names[0] if len(names) == 1 else None)

    def _lost_now(self, served: list[Offer]) -> list[Offer]:
        """Returns the versions that keep their share, because a scheduler of theirs may still come back."""
        versions, now = {(offer.name, offer.version) for offer in served}, self._clock()
        return [
            Offer(self._known[key], weight)
            for key, (weight, since) in self._lost.items()
            if (key.name, key.version) not in versions and now - since < self._wait
        ]

    def _served(self) -> list[Offer]:
        """Returns the versions that schedulers serve now: the default model first, then by name and version. During a
        rolling update, schedulers can serve one version with two tokenizers. Requests then get the one that was
        announced last."""
        weights = self._weights()
        newest = {
            (key.name, key.version): Offer(model, weights[key]) for key, model in self._known.items() if key in weights
        }
        return sorted(newest.values(), key=lambda offer: (offer.name != self._default, offer.name, offer.version))

    def _weights(self) -> dict[ModelKey, int]:
        """Returns the models that schedulers serve now, and the weight of each."""
        weights: dict[ModelKey, int] = {}
        for scheduler in self._schedulers():
            if scheduler.info is not None and not scheduler.is_draining:
                key = scheduler.info.key
                weights[key] = min(scheduler.model_weight, weights.get(key, scheduler.model_weight))
        return weights

    @property
    def _is_settled(self) -> bool:
        is_old = self._clock() - self._started_at >= SETTLE_SECONDS
        have_answered = all(scheduler.num_hellos for scheduler in self._schedulers())
        return is_old or (have_answered and not self._is_discovering())

    @property
    def _is_incomplete(self) -> bool:
        is_young = self._clock() - self._started_at < INCOMPLETE_SECONDS
        return is_young and not self._was_complete and self._is_discovering()

    async def _until_settled(self, condition: Callable[[], bool]) -> None:
        left = self._started_at + SETTLE_SECONDS - self._clock()
        await self._wait_for(lambda: condition() or self._is_settled, min(left, self._wait))

    async def _until(self, condition: Callable[[], bool], message: str) -> None:
        """Waits until `condition` is true. Raises ApiError with `message` if it does not become true in time."""
        await self._wait_for(condition, self._wait)
        if not condition():
            raise unavailable(message)

    async def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        if condition():
            return
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    await self._next_change.wait()
        except TimeoutError:
            pass

    def _forget(self) -> None:
        """Forgets models that have been away for long, and the tokenizers that only they used."""
        oldest = self._clock() - AWAY_SECONDS
        away = sorted(self._away_since, key=self._away_since.__getitem__)
        forgotten = [*away[:-_MAX_AWAY], *(key for key in away[-_MAX_AWAY:] if self._away_since[key] < oldest)]
        for key in forgotten:
            del self._known[key], self._away_since[key]
            self._lost.pop(key, None)
        used = {key.tokenizer_sha256 for key in self._known} if forgotten else set()
        for key in forgotten:
            if key.tokenizer_sha256 not in used:
                self._tokenizers.pop(key.tokenizer_sha256, None)

    def _conflicts(self) -> dict[str, tuple[str, ...]]:
        """Returns the models that claim each name that several claim, the one that requests get first."""
        served = self._served()
        claims: dict[str, set[str]] = {}
        for offer in served:
            for name in offer.names:
                claims.setdefault(name, set()).add(offer.name)
        conflicts = {}
        for name, claimants in claims.items():
            winner = find(served, name)
            if len(claimants) > 1 and winner is not None:
                conflicts[name] = (winner.info.name, *sorted(claimants - {winner.info.name}))
        return conflicts

    def _log_conflicts(self) -> None:
        conflicts = self._conflicts()
        for name, (winner, *others) in conflicts.items():
            if self._name_conflicts.get(name) != (winner, *others):
                logger.warning(
                    "the models %s claim the name %r: requests for it get %s. Give each model names of its own with "
                    "--served-model-name.",
                    ", ".join((winner, *others)),
                    name,
                    winner,
                )
        self._name_conflicts = conflicts
