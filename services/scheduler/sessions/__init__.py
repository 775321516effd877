"""The sessions of routers. A session is one router's stream: the router's unfinished sequences, and what must still be
sent to the router.
"""

from services.scheduler.sessions.routed_request import RoutedRequest
from services.scheduler.sessions.session import RouterSession, SequenceKey, hello_message
from services.scheduler.sessions.spans import SequenceSpans

__all__ = ["RoutedRequest", "RouterSession", "SequenceKey", "SequenceSpans", "hello_message"]
