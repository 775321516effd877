"""What a router says of a prompt, in the words of the program that asked."""

from __future__ import annotations

import grpc
import pytest

from quire import QuireError
from quire.offline.refusals import name_prompt


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("text", "prompts[1]"),
        ("token_ids.ids", "prompts[1]"),
        ("token_ids.ids[3]", "prompts[1][3]"),
        ("inputs[0]", "prompts[1]"),
        ("inputs[0][3]", "prompts[1][3]"),
        ("chat.messages", "prompts[1]"),
    ],
)
def test_a_prompt_has_its_name_in_the_call(field: str, name: str) -> None:
    error = QuireError(grpc.StatusCode.INVALID_ARGUMENT, f"Too long. Please shorten '{field}'.", param=field)
    name_prompt(error, "prompts[1]")

    assert (error.param, error.message, str(error)) == (name, *(f"Too long. Please shorten '{name}'.",) * 2)


@pytest.mark.parametrize("field", [None, "options.stop.max_tokens", "text_1", "texts", "model"])
def test_other_errors_stay_as_they_are(field: str | None) -> None:
    error = QuireError(grpc.StatusCode.INVALID_ARGUMENT, f"Invalid '{field}' and 'text'.", param=field)
    name_prompt(error, "prompts[1]")

    assert (error.param, str(error)) == (field, f"Invalid '{field}' and 'text'.")
