"""The models that a router knows, and which one a name finds."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

import pytest

from services.router.dispatch.model_directory import AWAY_SECONDS, SETTLE_SECONDS, ModelDirectory
from services.router.errors import ApiError, ErrorKind
from services.router.model import ModelInfo
from services.router.parameters import SamplingParams
from services.router.text import TextThreads, Tokenizer
from tests.integration.router.small_tokenizers import byte_level


@dataclass(slots=True, eq=False)
class Scheduler:
    """What a directory sees of a scheduler."""

    info: ModelInfo | None = None
    is_draining: bool = False
    num_hellos: int = 0


class Fleet:
    """A directory with schedulers that a test connects and disconnects, and with a clock that it sets."""

    def __init__(self, tokenizer: Tokenizer, num_schedulers: int, *, default: str | None, wait: float) -> None:
        self.now = 0.0
        self.schedulers = [Scheduler() for _ in range(num_schedulers)]
        self._tokenizer = tokenizer
        self.models = ModelDirectory(lambda: self.schedulers, wait=wait, default=default, clock=lambda: self.now)

    def connect(self, index: int, info: ModelInfo) -> Scheduler:
        scheduler = self.schedulers[index]
        self.models.add_tokenizer(info.tokenizer_sha256, self._tokenizer)
        self.models.announce(info)
        scheduler.info = info
        scheduler.num_hellos += 1
        self.models.update()
        return scheduler

    def disconnect(self, index: int) -> None:
        self.schedulers[index].info = None
        self.models.update()

    async def listed(self) -> list[str]:
        return [entry.name for entry in await self.models.listed()]

    async def found(self, name: str | None) -> str:
        return (await self.models.find(name)).info.name

    async def error(self, name: str | None) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.models.find(name)
        return caught.value


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level().to_str().encode(), b"{}", TextThreads(1))


def fleet_of(
    tokenizer: Tokenizer, *infos: ModelInfo, num_schedulers: int = 0, default: str | None = None, wait: float = 0.0
) -> Fleet:
    """Returns a fleet with a scheduler per model, and more schedulers that have not answered up to `num_schedulers`."""
    fleet = Fleet(tokenizer, max(num_schedulers, len(infos)), default=default, wait=wait)
    for index, info in enumerate(infos):
        fleet.connect(index, info)
    return fleet


def model(name: str, *aliases: str, tokenizer: str = "t") -> ModelInfo:
    return ModelInfo(name, aliases, 128, 1000, frozenset(), SamplingParams(), tokenizer, 0, "Fake", "none")


async def test_each_model_is_found_by_its_names(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("b", "b-alias"), model("a", "a-alias"))
    assert await fleet.listed() == ["a", "a-alias", "b", "b-alias"]
    assert [await fleet.found(name) for name in ("a", "a-alias", "b", "b-alias")] == ["a", "a", "b", "b"]


async def test_an_unknown_model_gets_the_names_of_those_that_are_served(tokenizer: Tokenizer) -> None:
    error = await fleet_of(tokenizer, model("b", "b-alias"), model("a")).error("c")
    assert error.kind is ErrorKind.MODEL_NOT_FOUND
    assert error.message == "The model `c` does not exist. Served here: `a` and `b`."
    many = [model("x" * 1000), *(model(f"m{index}") for index in range(20))]
    error = await fleet_of(tokenizer, *many).error("y" * 10_000)
    assert error.message.endswith("`m15` and 13 more."), "names come in alphabetical order"
    assert len(error.message) < 1000


async def test_a_request_without_a_model_gets_the_default_or_the_only_one(tokenizer: Tokenizer) -> None:
    assert await fleet_of(tokenizer, model("a")).found(None) == "a"
    error = await fleet_of(tokenizer, model("a"), model("b")).error(None)
    assert (error.kind, error.param) == (ErrorKind.INVALID_REQUEST, "model")
    assert error.message == "Missing required parameter: 'model'. Served here: `a` and `b`."
    fleet = fleet_of(tokenizer, model("a"), model("b"), default="b")
    assert await fleet.found(None) == "b"
    assert await fleet.listed() == ["b", "a"], "clients that take the first one get the default"
    assert (await fleet_of(tokenizer, model("a"), default="b").error(None)).kind is ErrorKind.MODEL_NOT_FOUND


async def test_a_model_is_listed_only_while_a_scheduler_takes_its_requests(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a"), model("a"), model("b"))
    fleet.disconnect(0)
    assert await fleet.listed() == ["a", "b"]
    fleet.schedulers[1].is_draining = True
    assert await fleet.listed() == ["b"]
    fleet.disconnect(1)
    assert await fleet.listed() == ["b"]
    assert not fleet.models.is_served(await fleet.models.find("a"))
    assert await fleet.found("a") == "a", "a request for it waits for its scheduler"
    with pytest.raises(ApiError):
        await fleet.models.find("a", may_be_away=False)


async def test_a_model_that_has_been_away_for_long_does_not_exist(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a", tokenizer="t1"), model("b", tokenizer="t2"))
    fleet.disconnect(0)
    fleet.now += AWAY_SECONDS
    assert await fleet.found("a") == "a"
    fleet.now += 1
    assert (await fleet.error("a")).message == "The model `a` does not exist. Served here: `b`."
    assert not fleet.models.has_tokenizer(model("a", tokenizer="t1"))
    assert fleet.models.has_tokenizer(model("b", tokenizer="t2"))


async def test_a_scheduler_that_comes_back_brings_its_model_back(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a"), model("b"))
    created = (await fleet.models.find("a")).created
    fleet.disconnect(0)
    fleet.now += AWAY_SECONDS
    fleet.connect(0, model("a"))
    fleet.now += AWAY_SECONDS
    assert await fleet.listed() == ["a", "b"]
    assert (await fleet.models.find("a")).created == created


async def test_few_models_that_are_away_are_remembered(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, *(model(f"m{index:02}") for index in range(20)), model("served"))
    for index in range(20):
        fleet.now += 1
        fleet.disconnect(index)
    assert [(await fleet.models.find(f"m{index}")).info.name for index in range(12, 20)] == [
        f"m{index}" for index in range(12, 20)
    ]
    assert (await fleet.error("m11")).kind is ErrorKind.MODEL_NOT_FOUND


async def test_without_any_model_a_list_waits_for_one(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a"), wait=60.0)
    fleet.disconnect(0)
    listed = asyncio.create_task(fleet.listed())
    await asyncio.sleep(0)
    assert not listed.done()
    fleet.connect(0, model("b"))
    assert await listed == ["b"]
    empty = fleet_of(tokenizer, num_schedulers=1)
    with pytest.raises(ApiError) as caught:
        await empty.models.listed()
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert (await empty.error("a")).kind is ErrorKind.UNAVAILABLE


async def test_after_the_start_an_unknown_model_waits_for_schedulers_that_have_not_answered(
    tokenizer: Tokenizer,
) -> None:
    fleet = fleet_of(tokenizer, model("a"), num_schedulers=3, wait=60.0)
    found = asyncio.create_task(fleet.found("b"))
    missing = asyncio.create_task(fleet.error("c"))
    await asyncio.sleep(0)
    fleet.connect(1, model("b"))
    assert await found == "b"
    assert not missing.done(), "one scheduler has not answered"
    fleet.connect(2, model("b"))
    assert (await missing).kind is ErrorKind.MODEL_NOT_FOUND
    # A scheduler that never answers delays the error only for a while.
    fleet.schedulers.append(Scheduler())
    fleet.now = SETTLE_SECONDS
    assert (await fleet.error("c")).kind is ErrorKind.MODEL_NOT_FOUND


async def test_of_models_that_claim_one_name_the_same_wins_in_every_router(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    infos = [model("b", "shared", "a"), model("a", "shared"), model("c", "shared")]
    for order in (infos, infos[::-1]):
        fleet = fleet_of(tokenizer, *order)
        assert await fleet.found("shared") == "a", "the first in alphabetical order"
        assert await fleet.found("a") == "a", "a name takes precedence over an alias"
        assert fleet.models.num_conflicts == 2
        assert (await fleet.listed()).count("shared") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fleet = fleet_of(tokenizer, *infos[:2])
        fleet.models.update()
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in messages] == [
        "the models a, b claim the name 'a'",
        "the models a, b claim the name 'shared'",
    ]
    fleet.disconnect(1)
    assert await fleet.found("shared") == "b"
    assert fleet.models.num_conflicts == 0


async def test_a_name_that_is_announced_with_a_new_tokenizer_gets_the_new_one(tokenizer: Tokenizer) -> None:
    old, new = model("a", tokenizer="old"), model("a", tokenizer="new")
    fleet = fleet_of(tokenizer, old, new)
    assert (await fleet.models.find("a")).info == new
    assert await fleet.listed() == ["a"]
    fleet.disconnect(1)
    assert (await fleet.models.find("a")).info == old
    assert replace(old, max_model_len=64).key == old.key
