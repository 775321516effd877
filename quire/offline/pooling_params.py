"""How `LLM` embeds, in vLLM's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from quire.client.options import EmbedOptions, embed_request


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """Meanings as in quire/inference/v1/inference.proto. Raises ValueError for a value that cannot be used."""

    # Longer prompts are cut to so many tokens, -1 for as many as the model takes; None: they are refused.
    truncate_prompt_tokens: int | None = None
    # The first values alone, for models that were trained for it.
    dimensions: int | None = None
    # Whether vectors are scaled to length 1; None: as the model says.
    normalize: bool | None = None

    def __post_init__(self) -> None:
        for name, value in self.options().items():
            try:
                embed_request("", [], cast(EmbedOptions, {name: value}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"PoolingParams.{name} is {value!r}: {error}") from None

    def options(self) -> EmbedOptions:
        """As the client takes them."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return cast(EmbedOptions, given)
