"""Options of `LLM.embed`, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from quire.client.options import EmbedOptions, embed_request


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """Options of embeddings. Their meanings are documented at EmbedRequest in quire/inference/v1/inference.proto.
    Raises ValueError for an invalid value."""

    # Maximum number of prompt tokens; longer prompts are cut. -1: the model's maximum. None: prompts longer than the
    # model's maximum are refused.
    truncate_prompt_tokens: int | None = None
    # Number of leading values to return, for models that were trained for shorter vectors. None: all.
    dimensions: int | None = None
    # Whether vectors are scaled to length 1. None: the model's default.
    normalize: bool | None = None

    def __post_init__(self) -> None:
        for name, value in self.options().items():
            try:
                embed_request("", [], cast(EmbedOptions, {name: value}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"PoolingParams.{name} is {value!r}: {error}") from None

    def options(self) -> EmbedOptions:
        """Returns the options that are not None, in the form in which quire.client takes them."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return cast(EmbedOptions, given)
