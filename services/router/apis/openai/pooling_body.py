"""Base classes of the bodies of /v1/embeddings, /v1/score, /v1/rerank and /classify."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, Tag

from services.router.embedding import MAX_INPUTS, InputOptions
from services.router.http import Body, string_or_array, union

Text = Annotated[str, Field(min_length=1)]
TextOrTexts = Annotated[
    Annotated[Text, Tag("#string")] | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS), Tag("#array")],
    union(string_or_array, "a string or an array of strings"),
]


class PoolingBody(Body):
    known_extras = frozenset({"user", "metadata", "request_id"})
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "mm_processor_kwargs": (),
        "additional_data": (),
        "padding": (False, "do_not_pad"),
    }

    model: str | None = Field(
        None, description="Name or alias of a served model. Default: that of `--default-model`, or the only one."
    )
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        lt=2**31,
        description=(
            "Maximum number of tokens of an input; longer inputs are cut. -1: the maximum of the model. Default: "
            "inputs that are too long for the model are refused."
        ),
    )
    add_special_tokens: bool | None = Field(
        None, description="Whether the tokenizer adds special tokens to each input. Default: true."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Requests share cached prefixes only with requests that have the same salt.",
    )
    priority: int | None = Field(
        None,
        ge=-(2**31),
        lt=2**31,
        description="Scheduling priority, if the server schedules by priority; a lower value runs earlier.",
    )

    @property
    def input_options(self) -> InputOptions:
        return InputOptions(self.truncate_prompt_tokens, self.add_special_tokens is not False)


class ActivationFields(BaseModel):
    """Mixin of the bodies that ask for a classifier's scores."""

    use_activation: bool | None = Field(
        None,
        description=(
            "Whether a classifier's outputs become scores by the activation that the model was trained with, such as "
            "softmax. Default: true."
        ),
    )
    activation: bool | None = Field(None, description="vLLM's older name of `use_activation`.")

    @property
    def activates(self) -> bool:
        given = self.activation if self.use_activation is None else self.use_activation
        return given is not False


def usage_of(num_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
