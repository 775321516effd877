"""Code around every RPC: authentication, reading the request, and reporting errors with their details."""

from services.router.rpc.calls import Caller, Calls, Prepared, caller_of, metadata_of
from services.router.rpc.guard import Guarded, errors_for, public
from services.router.rpc.single_requests import SingleRequestServer
from services.router.rpc.status_details import details_metadata
from services.router.rpc.wire_bounds import BoundedServer

__all__ = [
    "BoundedServer",
    "Caller",
    "Calls",
    "Guarded",
    "Prepared",
    "SingleRequestServer",
    "caller_of",
    "details_metadata",
    "errors_for",
    "metadata_of",
    "public",
]
