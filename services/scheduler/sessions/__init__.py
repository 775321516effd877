"""The streams of routers: which router each sequence belongs to, and which news that router has not been sent yet."""

from services.scheduler.sessions.routed_request import RoutedRequest
from services.scheduler.sessions.session import RouterSession, SequenceKey, hello_message
from services.scheduler.sessions.spans import SequenceSpans

__all__ = ["RoutedRequest", "RouterSession", "SequenceKey", "SequenceSpans", "hello_message"]
