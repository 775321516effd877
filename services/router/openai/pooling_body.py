"""What the bodies of /v1/embeddings, /v1/score and /v1/rerank have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, Tag

from services.router.embedding.inputs import MAX_INPUTS, InputOptions
from services.router.openai.body import Body, string_or_array
from services.router.openai.union import union

Text = Annotated[str, Field(min_length=1)]
TextOrTexts = Annotated[
    Annotated[Text, Tag("#string")] | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS), Tag("#array")],
    union(string_or_array, "a string or an array of strings"),
]


class PoolingBody(Body):
    known_extras = frozenset({"user", "metadata", "request_id"})
    not_built: ClassVar[Mapping[str, tuple[object, ...]]] = {"mm_processor_kwargs": (), "additional_data": ()}

    model: str | None = Field(None, description="A served name or alias. Left out: the one model that is served.")
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        lt=2**31,
        description=(
            "Cuts longer inputs to so many tokens; -1: to as many as the model takes. Left out: they are refused."
        ),
    )
    add_special_tokens: bool | None = Field(
        None, description="Whether special tokens are added to each input; true unless told otherwise."
    )
    cache_salt: str | None = Field(
        None, min_length=1, max_length=1024, description="Prompts share cached beginnings only where it is equal."
    )
    priority: int | None = Field(
        None, ge=-(2**31), lt=2**31, description="Less is sooner, where the server schedules by priority."
    )

    @property
    def input_options(self) -> InputOptions:
        return InputOptions(self.truncate_prompt_tokens, self.add_special_tokens is not False)


def usage_of(num_tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
