"""What is served over HTTP, as an OpenAPI document and as a page: made from the bodies and replies of each API."""

from services.router.openapi.servicer import DocumentServicer

__all__ = ["DocumentServicer"]
