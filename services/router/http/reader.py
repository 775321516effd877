"""Parses and validates JSON bodies. Error messages have OpenAI's wording, and say which field is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pydantic
import pydantic_core
from pydantic_core import ErrorDetails

from services.router.errors import ApiError, invalid, too_many
from services.router.http.body import Body
from services.router.http.integers import write_integers
from services.router.limits import LARGE_BODY_BYTES, check_json, num_values
from services.router.text import TextThreads

T = TypeVar("T", bound=pydantic.BaseModel)
B = TypeVar("B", bound=Body)
R = TypeVar("R")

# Cost of parsing a body; the unit is the cost of tokenizing one character. PARSED_BYTES_PER_CHAR bytes cost one unit,
# and each value costs _CHARS_PER_VALUE units.
PARSED_BYTES_PER_CHAR = 32
_CHARS_PER_VALUE = 2
# Maximum number of validations of one body. If a validation fails because numbers like 5.0 stand where integers are
# required, these numbers are replaced by integers, and the body is validated again. Several validations can be needed,
# because each stops at the first error in a list.
_MAX_REWRITES = 4
# Maximum length of a client's value in an error message.
_MAX_ECHO_CHARS = 64
_JSON_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_EXPECTED_BY_TYPE = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a decimal",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS = {
    "greater_than_equal": (">=", "ge", "below_min_value", "below minimum value"),
    "greater_than": (">", "gt", "below_min_value", "below minimum value"),
    "less_than_equal": ("<=", "le", "above_max_value", "above maximum value"),
    "less_than": ("<", "lt", "above_max_value", "above maximum value"),
}


async def read_body(threads: TextThreads, body: bytes, model: type[B]) -> B:
    """Parses a body with `parse_body`, on a thread if the body is long (see `parse_with`). Raises ApiError."""

    def parse(body: bytes) -> B:
        parsed = parse_body(body, model)
        # `num_ignored_fields` visits the whole body, so it is computed here, on a thread if the body is long. The
        # property caches its result.
        _ = parsed.num_ignored_fields
        return parsed

    return await parse_with(threads, body, parse)


async def parse_with(threads: TextThreads, body: bytes, parse: Callable[[bytes], R]) -> R:
    """Returns `parse(body)`. Long bodies are parsed on a thread; of the bodies above LARGE_BODY_BYTES, only one at a
    time. Raises ApiError if the body has too many values (json_bounds.py), or if too many large bodies wait
    (large_bodies.py)."""
    await threads.large_bodies.enter(len(body))

    def work() -> R:
        check_json(body)
        return parse(body)

    if len(body) <= LARGE_BODY_BYTES:
        return await threads.run(parsing_work(body), work)
    async with threads.large_bodies.conversion:
        return await threads.run_beside(work)


def parsing_work(body: bytes) -> int:
    """Returns the cost of parsing a body, as the number of characters that can be tokenized in the same time. This is
    the unit of TextThreads."""
    if len(body) > LARGE_BODY_BYTES:
        return len(body)
    return len(body) // PARSED_BYTES_PER_CHAR + _CHARS_PER_VALUE * num_values(body)


def parse_body(body: bytes, model: type[T]) -> T:
    """Parses a body as `model`. Raises ApiError if it is not valid JSON (NaN, lone surrogates and deep nesting are not
    allowed), if it is not an object, or if a field is missing, invalid or not implemented."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(value, dict):
        raise invalid(f"The JSON body of a request must be an object, but got {_json_name(value)} instead.")
    return validate(value, model)


def validate(value: dict[str, Any], model: type[T], *within: str) -> T:
    """Converts parsed JSON to `model`. `within`: path of the field of the request that the JSON is in. Raises ApiError
    if a field is missing, invalid or not implemented."""
    for _ in range(_MAX_REWRITES):
        try:
            return _built(model.model_validate(value))
        except pydantic.ValidationError as error:
            errors = error.errors(include_url=False)
        if not write_integers(value, errors):
            break
    raise _describe(errors[0], within)


def _built(parsed: T) -> T:
    if isinstance(parsed, Body):
        parsed.refuse_not_built()
    return parsed


def _describe(error: ErrorDetails, within: tuple[str, ...]) -> ApiError:
    param = _path((*within, *error["loc"]))
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "missing":
        return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if kind in _EXPECTED_BY_TYPE:
        return _wrong_type(param, _EXPECTED_BY_TYPE[kind], value)
    if kind == "wrong_type":
        return _wrong_type(param, error["msg"], value)
    if kind in _BOUNDS:
        sign, bound, code, words = _BOUNDS[kind]
        number = "integer" if isinstance(value, int) else "decimal"
        limit = context[bound]
        limit_text = f"{limit:g}" if abs(limit) < 1e6 else str(limit)
        expected = f"Expected a value {sign} {limit_text}, but got {_echo(value)} instead."
        return invalid(f"Invalid '{param}': {number} {words}. {expected}", param, f"{number}_{code}")
    if kind == "literal_error":
        message = f"Invalid value for '{param}': {_echo(value)}. Supported values are: {context['expected']}."
        return invalid(message, param, "invalid_value")
    if kind == "too_long":
        return too_many(param, context["max_length"], len(value), "object" if isinstance(value, dict) else "array")
    if kind in ("too_short", "string_too_short") and len(value) == 0:
        what = "string" if isinstance(value, str) else "array"
        return invalid(f"Invalid '{param}': it must not be empty.", param, f"empty_{what}")
    return invalid(f"Invalid '{param}': {error['msg']}.", param, "invalid_value")


def _wrong_type(param: str, expected: str, value: object) -> ApiError:
    message = f"Invalid type for '{param}': expected {expected}, but got {_json_name(value)} instead."
    return invalid(message, param, "invalid_type")


def _path(location: tuple[int | str, ...]) -> str:
    """Returns a field's path in OpenAI's notation, such as messages[0].content. Skips the parts of `location` that
    begin with #, because they name the member of a union, not a field."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("#"):
            path += f".{part[:_MAX_ECHO_CHARS]}" if path else part[:_MAX_ECHO_CHARS]
    return path


def _json_name(value: Any) -> str:
    return _JSON_NAMES.get(type(value), "null")


def _echo(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "…"
