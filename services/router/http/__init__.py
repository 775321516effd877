"""Code that all HTTP APIs share: reading bodies, writing JSON and streams, and answering chats."""

from services.router.http.answers import EVENT_STREAM, JSON, Answers, Written, write_pieces
from services.router.http.body import Body, string_or_array, union
from services.router.http.chat_batch import answer_all, prepare_all
from services.router.http.chats import ChatService, MessageWriter
from services.router.http.json import Items, array, dump, dumps, in_pieces, texts_of
from services.router.http.logprobs import TokenNames, chat_logprobs, finite
from services.router.http.operation import Example, Operation, Shape
from services.router.http.reader import parse_body, parse_with, parsing_work, read_body, validate
from services.router.http.replies import ErrorReply, Reply, Seconds, TokenLogprob, may_lack
from services.router.http.sampling_fields import (
    TEMPERATURE,
    FrequencyPenalty,
    MinP,
    PresencePenalty,
    SamplingFields,
    Seed,
    Temperature,
    TopP,
    sampling_params,
)
from services.router.http.segments import Segment, SegmentChange, Segmenter, SegmentEvent, SegmentKind, segments_of

__all__ = [
    "EVENT_STREAM",
    "JSON",
    "TEMPERATURE",
    "Answers",
    "Body",
    "ChatService",
    "ErrorReply",
    "Example",
    "FrequencyPenalty",
    "Items",
    "MessageWriter",
    "MinP",
    "Operation",
    "PresencePenalty",
    "Reply",
    "SamplingFields",
    "Seconds",
    "Seed",
    "Segment",
    "SegmentChange",
    "SegmentEvent",
    "SegmentKind",
    "Segmenter",
    "Shape",
    "Temperature",
    "TokenLogprob",
    "TokenNames",
    "TopP",
    "Written",
    "answer_all",
    "array",
    "chat_logprobs",
    "dump",
    "dumps",
    "finite",
    "in_pieces",
    "may_lack",
    "parse_body",
    "parse_with",
    "parsing_work",
    "prepare_all",
    "read_body",
    "sampling_params",
    "segments_of",
    "string_or_array",
    "texts_of",
    "union",
    "validate",
    "write_pieces",
]
