"""What LLM refuses before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from quire import LLM
from quire.offline import llm as module


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_model_length": 5}, "LLM has no option 'max_model_length'; quire serve --help lists the options"),
        ({"port": 8000}, "port is an option of the gateway, which LLM does not start"),
        ({"max_header_kib": 64}, "max_header_kib is an option of the gateway"),
        ({"max_model_len": 2.5}, "--max-model-len is '2.5': use a whole number"),
        ({"dtype": "float8"}, "--dtype is 'float8': use one of auto"),
        ({"enable_prefix_caching": "maybe"}, "--enable-prefix-caching is 'maybe': use true or false"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size is not implemented yet"),
        ({"worker": "host:1"}, "--worker is for parts started one by one"),
    ],
)
def test_a_bad_option_is_told_before_anything_starts(
    options: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OwnStack", None)

    with pytest.raises(ValueError, match=told):
        LLM("./model", **options)


def test_options_in_python_form_are_flags() -> None:
    options = {"max_model_len": 5, "enable_prefix_caching": False, "dtype": None, "served_model_name": ("a", "b")}

    assert module._flags("m", options) == {
        "model": "m", "max_model_len": "5", "enable_prefix_caching": False, "served_model_name": ["a", "b"],
    }  # fmt: skip
