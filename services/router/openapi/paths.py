"""The list of all operations that the OpenAPI document describes, including those that serve the document itself."""

from __future__ import annotations

from services.router.apis.anthropic import OPERATIONS as ANTHROPIC
from services.router.apis.kserve.generation import OPERATIONS as KSERVE
from services.router.apis.ollama import OPERATIONS as OLLAMA
from services.router.apis.openai import OPERATIONS as OPENAI
from services.router.apis.openai import POOLING_OPERATIONS as POOLING
from services.router.apis.responses import OPERATIONS as RESPONSES
from services.router.http import Operation
from services.router.openapi.typed_paths import OPERATIONS as INFERENCE

_DOCUMENT = (
    Operation(
        "GET", "/openapi.json", "getOpenApi", "Documentation", "Returns this document, OpenAPI 3.1", needs_key=False,
    ),
    Operation(
        "GET", "/docs", "getDocs", "Documentation", "Returns this document as one HTML page",
        content_type="text/html", needs_key=False,
    ),
)  # fmt: skip

# Operations by API, in the page's order. A test compares them with the protos, so that no path is missing.
OPERATIONS = (*OPENAI, *POOLING, *RESPONSES, *ANTHROPIC, *OLLAMA, *INFERENCE, *KSERVE, *_DOCUMENT)
