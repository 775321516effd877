"""The bodies of /v2/models/NAME/generate and generate_stream (Triton's generate extension), and their conversion."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, Tag

from services.router.constraints import MAX_BAD_WORDS
from services.router.errors import ApiError, ErrorKind, invalid
from services.router.generation import GenerationOptions
from services.router.http import Body, SamplingFields, Seed, string_or_array, union, validate
from services.router.parameters import (
    MAX_STOP_STRINGS,
    StopConditions,
    check_stop_strings,
)

# Maximum length of `sampling_parameters`, which is JSON inside a string. json_bounds.py limits the number of values in
# a body, but does not count the values inside a string. Usual parameters take at most a few hundred characters.
MAX_SAMPLING_PARAMETERS_CHARS = 8192
# Maximum length of an unknown field's name in an error message.
_MAX_NAME_CHARS = 64
_StopTexts = Annotated[
    Annotated[str, Tag("#string")] | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS), Tag("#array")],
    union(string_or_array, "a string or an array of strings"),
]
_BadWords = Annotated[
    Annotated[str, Tag("#string")] | Annotated[list[str], Field(max_length=MAX_BAD_WORDS), Tag("#array")],
    union(string_or_array, "a string or an array of strings"),
]


class KserveGenerateParameters(Body, SamplingFields):
    """Generation parameters, with the names of Triton's backends for TensorRT-LLM and vLLM."""

    max_tokens: int | None = Field(
        None,
        ge=1,
        le=2**31 - 1,
        description="Maximum number of tokens in the answer. Default: as many as fit in the context.",
    )
    min_tokens: int | None = Field(
        None,
        ge=0,
        le=2**31 - 1,
        description="Minimum number of tokens: end tokens and stop strings do not end the answer earlier.",
    )
    random_seed: Seed = Field(None, description="TensorRT-LLM's name of `seed`.")
    stop: _StopTexts | None = Field(
        None,
        description="Stop strings: up to 16, each of at most 512 characters. The first one found ends the answer.",
    )
    stop_words: _StopTexts | None = Field(None, description="TensorRT-LLM's name of `stop`; empty strings are ignored.")
    bad_words: _BadWords | None = Field(
        None, description="Strings that the answer must not contain; empty strings are ignored."
    )
    ignore_eos: bool | None = Field(None, description="Whether generation continues after the model's own end tokens.")
    end_id: int | None = Field(None, ge=0, le=2**31 - 1, description="Id of an additional token that ends the answer.")
    pad_id: int | None = Field(None, description="No effect: nothing is padded.")
    exclude_input_in_output: bool | None = Field(
        None, description="If false, `text_output` begins with `text_input`. Default: true."
    )
    stream: bool | None = Field(
        None, description="Only for `generate_stream`: if false, the whole answer is one event."
    )
    sampling_parameters: str | None = Field(
        None,
        max_length=MAX_SAMPLING_PARAMETERS_CHARS,
        description="Any of these fields as a JSON object in a string, as vLLM's Triton backend takes them.",
    )

    def check_known(self) -> None:
        """Raises ApiError for an unknown field, because it might be meant to change the answer."""
        for name in self.model_extra or ():
            shown = name[:_MAX_NAME_CHARS]
            raise ApiError(ErrorKind.UNSUPPORTED, f"'{shown}' is not supported by this server.", shown)

    def merged(self) -> KserveGenerateParameters:
        """Returns the parameters of this object together with those in the JSON of `sampling_parameters`. If both set a
        parameter, this object's value is used. Raises ApiError."""
        self.check_known()
        if not self.sampling_parameters:
            return self
        given = _json_object(self.sampling_parameters)
        # Triton's examples write numbers as strings, so strings are parsed like JSON.
        values = {name: _value(name, value) for name, value in given.items()}
        inner = validate(values, KserveGenerateParameters, "sampling_parameters")
        inner.check_known()
        return self.over(inner)

    def over(self, others: KserveGenerateParameters) -> KserveGenerateParameters:
        """Returns a copy of `others` with the values of all parameters that are set in this object."""
        own = {name: getattr(self, name) for name in KserveGenerateParameters.model_fields}
        return others.model_copy(update={name: value for name, value in own.items() if value is not None})

    def options(self) -> GenerationOptions:
        """Returns the generation options. Raises ApiError."""
        seed = self.random_seed if self.seed is None else self.seed

        stops = _texts(self.stop) + _texts(self.stop_words)
        check_stop_strings(stops, "stop")
        end_ids = () if self.end_id is None else (self.end_id,)
        return GenerationOptions(
            sampling=self.sampling_params(seed=seed),
            stop=StopConditions(self.max_tokens, end_ids, bool(self.ignore_eos), self.min_tokens or 0),
            stop_strings=stops,
            bad_words=_texts(self.bad_words),
        )


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A generation request of the Open Inference Protocol. HTTP and gRPC requests are both converted to this type."""

    id: str | None
    text: str
    options: GenerationOptions
    # Whether the answer begins with the prompt.
    echoes: bool
    # Whether to stream the answer; None: decided by the path.
    stream: bool | None


class KserveGenerateBody(KserveGenerateParameters):
    id: str | None = Field(None, description="Request id; repeated in the answer.")
    text_input: str = Field(min_length=1, description="Prompt to continue. No chat template is applied.")
    parameters: KserveGenerateParameters | None = Field(
        None, description="The other fields may also be given here. Fields outside of `parameters` take precedence."
    )

    def asked(self) -> TextRequest:
        """Converts the body to a TextRequest, including the JSON in `sampling_parameters`. Raises ApiError."""
        settings = self.merged()
        if self.parameters is not None:
            settings = settings.over(self.parameters.merged())
        echoes = settings.exclude_input_in_output is False
        return TextRequest(self.id, self.text_input, settings.options(), echoes, settings.stream)


def _texts(given: str | list[str] | None) -> tuple[str, ...]:
    texts = [given] if isinstance(given, str) else given or []
    return tuple(text for text in texts if text)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid("Invalid 'sampling_parameters': expected a JSON object.", "sampling_parameters")
    return value


def _value(name: str, value: Any) -> Any:
    if not isinstance(value, str) or name in ("stop", "stop_words", "bad_words"):
        return value
    try:
        return json.loads(value.lower())
    except (ValueError, RecursionError):
        return value
