"""Every answer is one that our own document promises: its status, its content type, its JSON to the last field."""

from __future__ import annotations

from services.router.openapi.document import document
from services.router.openapi.paths import OPERATIONS
from tests.fidelity.answer import Answer
from tests.fidelity.document_check import DocumentCheck

DOCUMENT = document(OPERATIONS, "0")
_CHECK = DocumentCheck(DOCUMENT)


def problems(answer: Answer) -> list[str]:
    name = f"{answer.verb} {answer.path}"
    responses = _CHECK.responses(answer)
    if answer.verb == "HEAD":
        return []  # as GET, which the document has, and without anything to look at
    if responses is None:
        return [] if answer.status in (404, 405) else [f"{name}: answered {answer.status} and is not in the document"]
    if str(answer.status) not in responses:
        return [f"{name}: the document knows no {answer.status}"]
    content = responses[str(answer.status)]["content"]
    if answer.media_type not in content:
        return [f"{name} {answer.status}: the document knows no {answer.media_type}"]
    error_schema = responses["500"]["content"]["application/json"]["schema"] if answer.is_stream else None
    return _CHECK.problems(answer, content[answer.media_type]["schema"], error_schema)
