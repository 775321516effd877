"""The paths of the document itself, and all that the document describes."""

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
        "GET", "/openapi.json", "getOpenApi", "Documentation", "This document, OpenAPI 3.1", needs_key=False,
    ),
    Operation(
        "GET", "/docs", "getDocs", "Documentation", "This document as a page, which loads nothing else",
        content_type="text/html", needs_key=False,
    ),
)  # fmt: skip

# By API, in the page's order. Every path of the gateway is in here: a test holds it against the protos.
OPERATIONS = (*OPENAI, *POOLING, *RESPONSES, *ANTHROPIC, *OLLAMA, *INFERENCE, *KSERVE, *_DOCUMENT)
