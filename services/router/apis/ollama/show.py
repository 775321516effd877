"""The body of /api/show."""

from __future__ import annotations

from pydantic import Field

from services.router.http.body import Body


class ShowBody(Body):
    known_extras = frozenset({"verbose", "options", "system", "template"})

    model: str | None = Field(
        None, min_length=1, description="Name or alias of a served model, with or without `:latest`."
    )
    name: str | None = Field(None, min_length=1, description="Older name of `model`.")
