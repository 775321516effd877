"""The models that a router knows, and which one a name finds."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

import pytest

from services.router.dispatch.model_directory import AWAY_SECONDS, INCOMPLETE_SECONDS, SETTLE_SECONDS, ModelDirectory
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
    has_workers: bool = True
    num_hellos: int = 0
    model_weight: int = 100


class Fleet:
    """A directory with schedulers that a test connects and disconnects, and with a clock that it sets."""

    def __init__(self, tokenizer: Tokenizer, num_schedulers: int, *, default: str | None, wait: float) -> None:
        self.now = 0.0
        self.schedulers = [Scheduler() for _ in range(num_schedulers)]
        self._tokenizer = tokenizer
        self.is_discovering = False
        self.models = ModelDirectory(
            lambda: self.schedulers,
            wait=wait,
            default=default,
            is_discovering=lambda: self.is_discovering,
            clock=lambda: self.now,
        )

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


def model(name: str, *aliases: str, tokenizer: str = "t", version: str = "") -> ModelInfo:
    return ModelInfo(
        name, aliases, 128, 1000, frozenset(), SamplingParams(), tokenizer, 0, "Fake", "none", version=version
    )


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


async def test_a_model_is_ready_while_one_scheduler_has_a_worker_and_takes_requests(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a"), model("a"), model("b"))
    a, b = fleet.models.find_now("a"), fleet.models.find_now("b")
    first, second, _ = fleet.schedulers
    first.has_workers = False
    assert fleet.models.is_ready(a)
    second.is_draining = True
    assert not fleet.models.is_ready(a), "of its schedulers, one has no worker and one stops"
    assert fleet.models.is_ready(b)
    assert await fleet.listed() == ["a", "b"], "its requests wait for a worker"
    first.has_workers = True
    assert fleet.models.is_ready(a)


async def test_a_model_is_listed_only_while_a_scheduler_takes_its_requests(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a"), model("a"), model("b"))
    fleet.disconnect(0)
    assert await fleet.listed() == ["a", "b"]
    fleet.schedulers[1].is_draining = True
    assert await fleet.listed() == ["b"]
    fleet.disconnect(1)
    assert await fleet.listed() == ["b"]
    assert not fleet.models.is_ready(await fleet.models.find("a"))
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


async def test_a_model_whose_last_scheduler_drains_is_found_until_another_one_comes(tokenizer: Tokenizer) -> None:
    """As in a rolling restart, when the next scheduler stops before the router has reached the one before it."""
    fleet = fleet_of(tokenizer, model("llama"), num_schedulers=2)
    fleet.schedulers[0].is_draining = True
    assert await fleet.found("llama") == "llama"
    assert fleet.models.names == []
    fleet.connect(1, model("llama"))
    assert await fleet.found("llama") == "llama"


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


async def test_until_discovery_was_complete_once_an_unknown_model_may_come(tokenizer: Tokenizer) -> None:
    """As when a router starts while Redis is away. A router that knew all keeps its 404 when Redis goes away."""
    fleet = fleet_of(tokenizer, num_schedulers=1)
    fleet.is_discovering = True
    fleet.connect(0, model("a"))
    fleet.now = SETTLE_SECONDS
    assert await fleet.found("a") == "a"
    assert (await fleet.error("b")).kind is ErrorKind.UNAVAILABLE
    fleet.now = INCOMPLETE_SECONDS
    assert (await fleet.error("b")).kind is ErrorKind.MODEL_NOT_FOUND, "it might be a name that never answers"
    fleet.now = SETTLE_SECONDS
    fleet.is_discovering = False
    fleet.models.update()
    assert (await fleet.error("b")).kind is ErrorKind.MODEL_NOT_FOUND
    fleet.is_discovering = True
    fleet.models.update()
    assert (await fleet.error("b")).kind is ErrorKind.MODEL_NOT_FOUND


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


def weighted(tokenizer: Tokenizer, *weights: tuple[str, int], wait: float = 0.0) -> Fleet:
    """Returns a fleet with a scheduler of model "a" per pair of version and weight."""
    infos = (model("a", f"a-{version}", version=version) for version, _ in weights)
    fleet = fleet_of(tokenizer, *infos, wait=wait)
    for scheduler, (_, weight) in zip(fleet.schedulers, weights, strict=True):
        scheduler.model_weight = weight
    return fleet


async def versions_of(fleet: Fleet, name: str = "a", num_keys: int = 2000) -> dict[bytes, str]:
    """Returns the version that each of many conversations gets."""
    keys = [number.to_bytes(16, "big") for number in range(num_keys)]
    return {key: (await fleet.models.find(name, lambda key=key: key)).info.version for key in keys}  # type: ignore[misc]


async def test_versions_share_conversations_by_weight_alike_in_every_router(tokenizer: Tokenizer) -> None:
    fleet = weighted(tokenizer, ("v1", 90), ("v2", 10))
    chosen = await versions_of(fleet)
    share = sum(version == "v2" for version in chosen.values()) / len(chosen)
    assert share == pytest.approx(0.1, abs=0.03)
    assert await versions_of(weighted(tokenizer, ("v2", 10), ("v1", 90))) == chosen


async def test_a_weight_that_grows_takes_conversations_from_the_others_only(tokenizer: Tokenizer) -> None:
    before = await versions_of(weighted(tokenizer, ("v1", 100), ("v2", 10), ("v3", 50)))
    after = await versions_of(weighted(tokenizer, ("v1", 100), ("v2", 40), ("v3", 50)))
    assert {after[key] for key in before if before[key] != after[key]} == {"v2"}


async def test_the_lowest_weight_of_a_version_s_schedulers_counts(tokenizer: Tokenizer) -> None:
    fleet = weighted(tokenizer, ("v1", 100), ("v2", 100), ("v2", 0))
    assert set((await versions_of(fleet, num_keys=100)).values()) == {"v1"}


async def test_requests_that_name_a_version_get_it_whatever_its_weight(tokenizer: Tokenizer) -> None:
    fleet = weighted(tokenizer, ("v1", 100), ("v2", 0))
    assert set((await versions_of(fleet, num_keys=100)).values()) == {"v1"}
    named = await fleet.models.find("a@v2")
    assert (named.info.version, named.is_pinned) == ("v2", True)
    assert not (await fleet.models.find("a")).is_pinned
    assert (await fleet.models.find("a-v1@v1")).info.version == "v1"
    assert await fleet.listed() == ["a", "a-v1", "a@v1", "a@v2"], "no request for a-v2 would get it"
    assert (await fleet.error("a@v3")).message == "The model `a@v3` does not exist. Served here: `a@v1` and `a@v2`."
    only = weighted(tokenizer, ("v2", 0))
    assert (await only.error("a")).message == "The model `a` does not exist. Served here: `a@v2`."
    assert fleet.models.versions("a") == ["v1", "v2"]


async def test_a_name_with_an_at_sign_is_a_name_first(tokenizer: Tokenizer) -> None:
    fleet = fleet_of(tokenizer, model("a@v1"), model("a", version="v1"))
    found = await fleet.models.find("a@v1")
    assert (found.info.name, found.is_pinned) == ("a@v1", False)
    assert fleet.models.num_conflicts == 1


async def test_without_a_conversation_requests_get_the_version_with_the_greatest_weight(tokenizer: Tokenizer) -> None:
    fleet = weighted(tokenizer, ("v1", 10), ("v2", 90), ("v3", 20))
    assert (await fleet.models.find("a")).info.version == "v2"
    assert (await fleet.models.find("a-v3")).info.version == "v3", "an alias of one version alone"


async def test_a_version_that_drains_gives_its_conversations_to_the_others(tokenizer: Tokenizer) -> None:
    fleet = weighted(tokenizer, ("v1", 90), ("v2", 10))
    fleet.schedulers[0].is_draining = True
    assert set((await versions_of(fleet, num_keys=100)).values()) == {"v2"}
    fleet.disconnect(0)
    assert set((await versions_of(fleet, num_keys=100)).values()) == {"v2"}
    assert (await fleet.models.find("a@v1")).info.version == "v1", "it waits for its scheduler"


async def test_a_version_that_is_lost_keeps_its_conversations_until_nobody_waits_for_it(tokenizer: Tokenizer) -> None:
    """And its embeddings: clients could not compare those of another version."""
    fleet = weighted(tokenizer, ("v1", 90), ("v2", 10), wait=60.0)
    before = await versions_of(fleet, num_keys=100)
    fleet.now = 10.0
    fleet.disconnect(0)
    assert await versions_of(fleet, num_keys=100) == before
    assert (await fleet.models.find("a")).info.version == "v1"
    assert fleet.models.names == ["a"]
    assert fleet.models.is_ready(fleet.models.find_now("a")), "some requests for it need not wait"
    fleet.now = 69.0
    fleet.connect(0, model("a", version="v1"))
    fleet.disconnect(0)
    fleet.now = 128.0
    assert await versions_of(fleet, num_keys=100) == before
    fleet.now = 129.0
    assert set((await versions_of(fleet, num_keys=100)).values()) == {"v2"}
    assert (await fleet.models.find("a")).info.version == "v2"


@pytest.mark.parametrize("first", ["drains", "is lost"])
async def test_whether_a_version_s_last_scheduler_was_lost_decides(tokenizer: Tokenizer, first: str) -> None:
    fleet = weighted(tokenizer, ("v1", 90), ("v1", 90), ("v2", 10), wait=60.0)
    fleet.schedulers[0].is_draining = first == "drains"
    fleet.disconnect(0)
    fleet.schedulers[1].is_draining = first == "is lost"
    fleet.disconnect(1)
    assert (await fleet.models.find("a")).info.version == ("v1" if first == "drains" else "v2")


async def test_a_version_of_which_one_scheduler_drains_while_the_other_is_lost_is_waited_for(
    tokenizer: Tokenizer,
) -> None:
    fleet = weighted(tokenizer, ("v1", 90), ("v1", 90), ("v2", 10), wait=60.0)
    fleet.schedulers[0].is_draining = True
    fleet.disconnect(1)
    assert (await fleet.models.find("a")).info.version == "v1"


async def test_another_version_can_continue_only_with_the_same_tokens(tokenizer: Tokenizer) -> None:
    old = model("a", version="v1")
    fleet = fleet_of(tokenizer, old, model("a", version="v2", tokenizer="other"), model("b", version="v3"))
    assert fleet.models.other_version(old) is None
    fleet.connect(1, model("a", version="v2"))
    other = fleet.models.other_version(old)
    assert other is not None
    assert other.version == "v2"
