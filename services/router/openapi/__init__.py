"""The documentation of the HTTP APIs, as an OpenAPI document and as a page, made from the types of their JSON."""

from services.router.openapi.servicer import DocumentServicer

__all__ = ["DocumentServicer"]
