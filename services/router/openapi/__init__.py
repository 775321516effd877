"""The documentation of the HTTP APIs, as an OpenAPI document and as an HTML page. Both are made from the types of the
APIs' JSON bodies."""

from services.router.openapi.servicer import DocumentServicer

__all__ = ["DocumentServicer"]
