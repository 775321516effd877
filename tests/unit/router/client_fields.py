"""What becomes of every field that the newest SDKs can send: served, refused, or ignored for a reason.

tests/e2e/clients/request_fields.py lists the fields of the SDKs that are installed. A field that no table has fails
test_client_fields.py: a field that changes the meaning of a request must never be dropped in silence.
"""

from __future__ import annotations

from tests.unit.router.client_tables import anthropic, cohere, ollama, openai, responses
from tests.unit.router.client_tables.fields import Fields

TABLE: dict[str, Fields] = openai.TABLE | responses.TABLE | anthropic.TABLE | ollama.TABLE | cohere.TABLE
