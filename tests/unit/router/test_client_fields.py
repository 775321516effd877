"""No field that an SDK can send is dropped in silence, and every field that is served has an effect."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from services.router.errors import ApiError
from tests.e2e.clients import request_fields
from tests.unit.router.client_fields import TABLE
from tests.unit.router.client_samples import ONLY, SAMPLES, VALUES_BESIDE, Sample
from tests.unit.router.client_tables.fields import Fields
from tests.unit.router.converted_requests import Converter


def unknown_fields(found: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """`found`: as request_fields prints them. By request: those that the table lacks."""
    missing = {name: set(names) - (TABLE[name].names if name in TABLE else set()) for name, names in found.items()}
    return {name: names for name, names in missing.items() if names}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, list[Any]]]:
    """The fields of the installed SDKs' requests with the values that they list. Importing the types takes seconds."""
    return request_fields.main()


def test_every_field_of_the_installed_sdks_is_in_the_table(found: dict[str, dict[str, list[Any]]]) -> None:
    assert {"openai.chat", "anthropic.messages", "ollama.chat"} <= found.keys()
    assert unknown_fields(found) == {}


def test_a_field_that_a_new_version_brings_is_found() -> None:
    assert unknown_fields({"openai.chat": ["model", "telepathy"]}) == {"openai.chat": {"telepathy"}}


@pytest.fixture(scope="module")
def converter() -> Iterator[Converter]:
    converter = Converter()
    yield converter
    converter.close()


@pytest.mark.parametrize("name", TABLE)
async def test_the_table_says_what_the_code_does(converter: Converter, name: str) -> None:
    fields = TABLE[name]
    await converter.convert(fields.request, fields.inside({}))
    assert set(fields.served.split()) <= descriptions(fields).keys()
    for ignored, reason in fields.ignored.items():
        assert reason.endswith(".")
        assert ignored in fields.object.known_extras or is_without_effect(descriptions(fields)[ignored]), ignored
    for refused, value in fields.refused.items():
        assert await refused_param(converter, fields, {refused: value}) == refused


@pytest.mark.parametrize("name", TABLE)
def test_a_field_that_is_described_as_without_effect_is_not_served(name: str) -> None:
    described = descriptions(TABLE[name])
    assert [field for field in TABLE[name].served.split() if is_without_effect(described[field])] == []


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in TABLE for field in TABLE[name].served.split()])
async def test_a_served_field_has_an_effect(converter: Converter, name: str, field: str) -> None:
    fields, sample = TABLE[name], SAMPLES[name][field]
    given = {**sample.beside, field: sample.value}
    if sample.is_refused:
        await converter.convert(fields.request, fields.inside({**sample.beside}))
        if sample is ONLY:
            assert await refused_param(converter, fields, given) == field
        else:
            with pytest.raises(ApiError):
                await converter.convert(fields.request, fields.inside(given))
        return
    without = await converter.convert(fields.request, fields.inside({**sample.beside}))
    assert without == await converter.convert(fields.request, fields.inside({**sample.beside}))
    assert without != await converter.convert(fields.request, fields.inside(given))


def test_every_sample_is_of_a_served_field() -> None:
    assert {name: set(samples) for name, samples in SAMPLES.items()} == {
        name: set(fields.served.split()) for name, fields in TABLE.items()
    }


async def test_no_value_that_the_installed_sdks_list_is_dropped(
    converter: Converter, found: dict[str, dict[str, list[Any]]]
) -> None:
    assert {name: wrong for name in found if (wrong := await dropped_values(converter, name, found[name]))} == {}


async def test_a_value_that_a_new_version_brings_is_found(converter: Converter) -> None:
    found = {"reasoning_effort": ["low", "high"], "service_tier": ["gold"], "modalities": ["smell"], "tools": []}
    assert await dropped_values(converter, "openai.chat", found) == []
    # `input_text` is the same as `output_text`, and is named as such. A third one is refused.
    found = {"type": ["input_text", "output_text", "smell"]}
    assert await dropped_values(converter, "openai.responses.message.text", found) == []
    found = {"include": ["message.output_text.logprobs", "telepathy"]}
    assert await dropped_values(converter, "openai.responses", found) == ["include: telepathy has no effect"]
    found = {"type": ["adaptive", "enabled", "disabled", "omniscient"], "display": ["summarized", "omitted"]}
    assert await dropped_values(converter, "anthropic.thinking", found) == []


async def dropped_values(converter: Converter, name: str, values_by_field: Mapping[str, list[Any]]) -> list[str]:
    """Returns which of the values are dropped or refused against the table. The values of a served field differ in
    their effect, or are refused. If the field takes any value, each listed one has an effect. All values of an ignored
    field are accepted, and those of a refused one are refused, or are what the server does anyway."""
    fields = TABLE[name]
    wrong: list[str] = []
    for field, values in values_by_field.items():
        if field in fields.headers.split():
            continue
        sample, alike = SAMPLES[name].get(field, Sample(None)), fields.alike.get(field, frozenset())
        is_array = isinstance(fields.refused.get(field, sample.value), list)
        without = await converter.convert(fields.request, fields.inside({**sample.beside}))
        given = {**sample.beside, field: ["telepathy"] if is_array else "telepathy"}
        takes_any = not isinstance(await converted(converter, fields, given), ApiError)
        found: dict[str, list[Any]] = defaultdict(list)
        for value in values:
            beside = {**sample.beside, **VALUES_BESIDE.get((name, field, value), {})}
            given = {**beside, field: [value] if is_array else value}
            made = await converted(converter, fields, given)
            if isinstance(made, ApiError):
                # The error of a value that is served is about what it needs beside it.
                if field in fields.ignored or not any(one in (made.param or "") for one in given):
                    wrong.append(f"{field}: {value} is refused: {made.message}")
            elif field in fields.served.split():
                found[repr(made)].append(value)
                if takes_any and made == without and value not in alike:
                    wrong.append(f"{field}: {value} has no effect")
            # Some answers repeat an ignored field.
            elif made[0] != without[0]:
                wrong.append(f"{field}: {value} has an effect")
        wrong += [
            f"{field}: {' and '.join(same)} have the same effect"
            for same in found.values()
            if len(same) > 1 and not alike.issuperset(same)
        ]
    return wrong


async def converted(converter: Converter, fields: Fields, given: dict[str, Any]) -> list[Any] | ApiError:
    """Returns what a request with these fields becomes, or its error."""
    try:
        return await converter.convert(fields.request, fields.inside(given))
    except ApiError as error:
        return error


def descriptions(fields: Fields) -> dict[str, str]:
    """The descriptions of the object's declared fields, by name."""
    return {info.alias or name: info.description or "" for name, info in fields.object.model_fields.items()}


def is_without_effect(description: str) -> bool:
    return re.search(r"(^|; |\. )no effect[.:]|but has no effect", description, re.IGNORECASE) is not None


async def refused_param(converter: Converter, fields: Fields, given: dict[str, Any]) -> str:
    """The last part of the name of the field that the error is about."""
    try:
        await converter.convert(fields.request, fields.inside(given))
    except ApiError as error:
        return (error.param or "").rpartition(".")[2]
    return f"{given} is not refused"
