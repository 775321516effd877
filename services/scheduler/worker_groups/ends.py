"""Tells routers how sequences have ended."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from services.scheduler.core import FinishedSequence
from services.scheduler.sessions import RoutedRequest, SequenceSpans

logger = logging.getLogger(__name__)


def report(ends: Iterable[FinishedSequence[RoutedRequest]], spans: SequenceSpans) -> None:
    """Adds the ends to the next frames of the sequences' routers."""
    for end in ends:
        key = end.sequence.request.key
        if end.failure is not None:
            logger.warning("request %s failed: %s", key.request_id, end.failure.message)
        key.session.add_finished(key, end.reason, end.failure, end.embedding)
        spans.end(key, end.reason.name.lower())
