"""Errors name fields as the proto does, and no enum takes a value that it does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.inference.v1 import inference_pb2
from quire.kserve.v1 import open_inference_pb2
from quire.scheduler.v1 import scheduler_pb2
from services.router.apis.kserve.generation.body import KserveGenerateParameters
from services.router.errors import ApiError, invalid
from services.router.rpc import request_fields
from services.router.rpc.request_fields import check_enums, in_proto_terms, proto_path

GENERATE = inference_pb2.GenerateRequest.DESCRIPTOR
CHAT = inference_pb2.ChatRequest.DESCRIPTOR
INFER = open_inference_pb2.ModelInferRequest.DESCRIPTOR
TOKENIZE = inference_pb2.TokenizeRequest.DESCRIPTOR


@pytest.mark.parametrize(
    ("descriptor", "param", "path"),
    [
        (GENERATE, "options.logit_bias", "options.sampling.logit_bias"),
        (GENERATE, "options.stop_token_ids", "options.stop.stop_token_ids"),
        (GENERATE, "options.min_tokens", "options.stop.min_tokens"),
        (GENERATE, "options.bad_words", "options.bad_words"),
        (GENERATE, "token_ids.ids[3]", "token_ids.ids[3]"),
        (TOKENIZE, "messages[2].role", "chat.messages[2].role"),
        (TOKENIZE, "chat_template", "chat.template.chat_template"),
        (TOKENIZE, "template.documents[1]", "chat.template.documents[1]"),
        (open_inference_pb2.ModelReadyRequest.DESCRIPTOR, "model", "name"),
        (INFER, "model", "model_name"),
        (CHAT, "chat_template_kwargs.messages", "template.chat_template_kwargs"),
        (CHAT, "chat_template_kwargs", "template.chat_template_kwargs"),
        (CHAT, "tools[3].parameters.properties.city", "tools[3].parameters"),
        (GENERATE, "model[0]", None),
        (GENERATE, "nothing", None),
        (GENERATE, "", None),
        (GENERATE, "options.sampling.nothing", None),
    ],
)
def test_a_field_is_found_by_what_an_error_calls_it(descriptor: Any, param: str, path: str | None) -> None:
    assert proto_path(descriptor, param) == path


def test_the_text_of_an_error_names_the_same_field() -> None:
    error = in_proto_terms(invalid("Invalid 'options.logit_bias': no.", "options.logit_bias"), GENERATE)
    assert (error.message, error.param) == ("Invalid 'options.sampling.logit_bias': no.", "options.sampling.logit_bias")
    param = "chat_template_kwargs.messages"
    error = in_proto_terms(invalid(f"Invalid '{param}': no.", param), CHAT)
    assert error.message == "Invalid 'template.chat_template_kwargs.messages': no."
    assert error.param == "template.chat_template_kwargs"
    unknown = invalid("Invalid 'x'.", "x")
    assert in_proto_terms(unknown, GENERATE) is unknown


@pytest.mark.parametrize("param", ["a." * 2000, "a." * 16 + "a", "a" * 257, "options." * 40 + "logit_bias"])
def test_a_path_as_long_as_the_client_likes_is_not_looked_for(param: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(descriptor: Any, path: str) -> Any:
        raise AssertionError(f"{path[:20]}… was looked for")

    monkeypatch.setattr(request_fields, "_resolved", resolved)
    assert proto_path(GENERATE, param) is None
    error = in_proto_terms(invalid("Invalid.", param), GENERATE)
    assert error.param is not None
    assert len(error.param) <= 257
    assert error.param[:256] == param[:256]


def test_a_name_of_the_clients_own_is_cut_in_an_error() -> None:
    with pytest.raises(ApiError) as caught:
        KserveGenerateParameters.model_validate({"a." * 2000: 1}).check_known()
    assert caught.value.param == "a." * 32


def enum_fields(descriptor: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for field in descriptor.fields:
        if field.enum_type is not None:
            yield path + field.name, field
        elif field.message_type is not None:
            yield from enum_fields(field.message_type, f"{path}{field.name}.")


def requests_with_enums() -> list[tuple[Any, str]]:
    messages = [
        method.input_type
        for file in (inference_pb2.DESCRIPTOR, open_inference_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    ]
    return [(message, path) for message in messages for path, _ in enum_fields(message)]


@pytest.mark.parametrize(("descriptor", "path"), requests_with_enums(), ids=lambda part: getattr(part, "name", part))
def test_no_enum_of_a_typed_request_takes_an_unknown_value(descriptor: Any, path: str) -> None:
    request = getattr(inference_pb2, descriptor.name)()
    *outer, name = path.split(".")
    message = request
    for part in outer:
        message = getattr(message, part)
    setattr(message, name, 77)
    with pytest.raises(ApiError, match=f"Invalid value for '{path}': 77. Supported values of .* are: ") as caught:
        check_enums(request)
    assert (caught.value.param, caught.value.code) == (path, "invalid_value")
    setattr(message, name, 1)
    check_enums(request)


def test_there_are_enums_to_try() -> None:
    assert {path for _, path in requests_with_enums()} >= {"options.truncation_side", "chat.tool_choice.mode"}


def test_enums_in_lists_are_read() -> None:
    """Wherever a message stands that may hold one."""
    model = inference_pb2.Model(tasks=[1, 77])  # type: ignore[list-item]
    with pytest.raises(ApiError) as caught:
        check_enums(inference_pb2.ListModelsResponse(models=[inference_pb2.Model(), model]))
    assert caught.value.param == "models[1].tasks[1]"
    check_enums(scheduler_pb2.Submit())


@pytest.mark.parametrize("name", ["allowed_token_ids", "stop_strings", "bad_words"])
def test_lists_that_hold_no_enums_are_not_read(name: str) -> None:
    class Unread:
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("it was read")

    class Options:
        DESCRIPTOR = inference_pb2.GenerationOptions.DESCRIPTOR

        def ListFields(self) -> list[tuple[Any, Any]]:  # noqa: N802  # as messages have it
            return [(self.DESCRIPTOR.fields_by_name[name], Unread())]

    check_enums(Options())
