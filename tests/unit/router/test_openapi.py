"""The document says what the gateway's routes, the bodies and the answers are, and follows them when they change."""

from __future__ import annotations

import html.parser
import json
import re
from typing import Any

import jsonschema
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass
from pydantic import BaseModel, Field

from deploy.envoy.routes import GRPC_PREFIXES, http_annotations
from services.router.http.operation import Operation
from services.router.http.reader import parse_body
from services.router.http.replies import Reply, may_lack
from services.router.openapi.document import document
from services.router.openapi.messages import schema_name
from services.router.openapi.page import code, page, paragraphs, type_of
from services.router.openapi.paths import OPERATIONS

DOCUMENT = document(OPERATIONS, "1.2.3")
WITH_BODY = [operation for operation in OPERATIONS if isinstance(operation.body, type)]
TYPED = [operation for operation in OPERATIONS if isinstance(operation.body, Descriptor)]


def test_it_has_the_paths_of_the_protos_and_no_others() -> None:
    annotated = {(verb, path.replace("=**}", "}")) for paths in http_annotations().values() for verb, path in paths}
    described = {(verb.upper(), path) for path, verbs in DOCUMENT["paths"].items() for verb in verbs}
    assert described == annotated


def test_names_of_operations_are_unique() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(set(names)) == len(names)


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DOCUMENT)))
    assert references == set(schemas)
    # Pydantic's name for what has a class's name and is not the only one.
    assert not [name for name in schemas if "__" in name]


def test_a_new_field_is_in_the_document() -> None:
    class Body(BaseModel):
        number: int = Field(ge=3, description="How many.")
        later: str | None = None

    class Answer(Reply):
        total: int

    made = document([Operation("POST", "/sum", "sum", "Sums", "Adds up", body=Body, reply=Answer)], "1")
    assert made["components"]["schemas"]["Body"]["properties"] == {
        "number": {"type": "integer", "minimum": 3, "description": "How many."},
        "later": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    answered = made["paths"]["/sum"]["post"]["responses"]["200"]["content"]["application/json"]
    assert answered == {"schema": {"$ref": "#/components/schemas/Answer"}}


def test_every_field_of_a_request_says_what_it_means() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    names = {operation.body.__name__ for operation in WITH_BODY if isinstance(operation.body, type)}
    names |= {schema_name(operation.body) for operation in TYPED if isinstance(operation.body, Descriptor)}
    while more := set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps([schemas[n] for n in names]))) - names:
        names |= more
    silent = [
        f"{name}.{field}"
        for name in names
        for field, schema in schemas[name].get("properties", {}).items()
        if not re.fullmatch(r"[A-Z`\w].*\.", schema.get("description", ""))
    ]
    assert silent == []


def test_an_api_may_have_streams_and_errors_of_its_own() -> None:
    class Line(Reply):
        text: str

    class Fault(Reply):
        reason: str

    operation = Operation(
        "POST", "/say", "say", "Says", "Says it", reply=Line, event=Line, event_type="application/x-ndjson", error=Fault
    )
    responses = document([operation], "1")["paths"]["/say"]["post"]["responses"]
    assert set(responses["200"]["content"]) == {"application/json", "application/x-ndjson"}
    assert responses["400"]["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Fault"}}}


def test_where_nothing_is_ever_found_no_answer_is_promised() -> None:
    operation = Operation("GET", "/lost/{id}", "lost", "Lost", "Finds nothing", is_always_missing=True)
    responses = document([operation], "1")["paths"]["/lost/{id}"]["get"]["responses"]
    assert "200" not in responses
    assert responses["404"]["description"] == "The server stores no such object."


def test_a_field_that_may_lack_may_not_be_null() -> None:
    class Answer(Reply):
        note: str = may_lack("If there is one.")

    made = document([Operation("GET", "/note", "note", "Notes", "Reads", reply=Answer)], "1")
    schema = made["components"]["schemas"]["Answer"]
    assert schema["properties"] == {"note": {"type": "string", "description": "If there is one."}}
    assert "required" not in schema


def test_what_a_method_that_is_not_there_gets_is_said_once() -> None:
    assert "405" in DOCUMENT["info"]["description"]
    operations = [one for verbs in DOCUMENT["paths"].values() for one in verbs.values()]
    assert not any("405" in one["responses"] for one in operations)


def test_errors_are_those_that_can_happen() -> None:
    def statuses(path: str, verb: str) -> set[str]:
        return set(DOCUMENT["paths"][path][verb]["responses"])

    assert {"200", "400", "401", "403", "404", "413", "415", "429", "503"} <= statuses("/v1/chat/completions", "post")
    assert not {"401", "404", "413", "415", "429"} & statuses("/health", "get")
    retry = DOCUMENT["paths"]["/v1/completions"]["post"]["responses"]["429"]["headers"]
    assert set(retry) == {"Retry-After"}


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_examples_are_bodies_by_the_schema_and_by_the_parser(operation: Operation) -> None:
    assert isinstance(operation.body, type)
    assert operation.examples
    schema = {"$ref": f"#/components/schemas/{operation.body.__name__}", "components": DOCUMENT["components"]}
    for example in operation.examples:
        jsonschema.validate(operation.body_of(example), schema)
        parse_body(json.dumps(operation.body_of(example)).encode(), operation.body)


@pytest.mark.parametrize("operation", TYPED, ids=lambda operation: operation.name)
def test_examples_of_the_typed_api_are_messages_by_the_schema_and_by_protobuf(operation: Operation) -> None:
    assert isinstance(operation.body, Descriptor)
    assert operation.examples
    schema = {"$ref": f"#/components/schemas/{schema_name(operation.body)}", "components": DOCUMENT["components"]}
    for example in operation.examples:
        jsonschema.validate(example.value, schema)
        message = json_format.ParseDict(dict(example.value), GetMessageClass(operation.body)())
        assert json_format.MessageToDict(message) == example.value


def test_a_messages_schema_is_protobufs_json() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    sampling = schemas["InferenceSamplingParams"]["properties"]
    assert sampling["topK"]["type"] == "integer"
    assert {"type": "string", "pattern": "^[0-9]+$"} in sampling["seed"]["anyOf"]
    assert sampling["logitBias"]["items"] == {"$ref": "#/components/schemas/InferenceLogitBias"}
    assert "FINISH_REASON_STOP" in schemas["InferenceDelta"]["properties"]["finishReason"]["enum"]
    answer = DOCUMENT["paths"]["/quire.inference.v1.InferenceService/Chat"]["post"]["responses"]["200"]
    item = {"$ref": "#/components/schemas/InferenceChatResponse"}
    assert answer["content"] == {"application/json": {"schema": {"type": "array", "items": item}}}


def test_it_lists_the_grpc_services_of_the_port() -> None:
    services = {service["name"]: service for service in DOCUMENT["x-grpc-services"]}
    prefixes = tuple(prefix.lstrip("/") for prefix in GRPC_PREFIXES)
    assert all(f"{name}/".startswith(prefixes) for name in services)
    assert len(services) == len(prefixes)
    chat = next(one for one in services["quire.inference.v1.InferenceService"]["methods"] if one["name"] == "Chat")
    assert chat["streams"]
    assert chat["description"].startswith("Answers a conversation")


def test_the_page_lists_the_grpc_services_and_renders_markdown() -> None:
    written = page(DOCUMENT)
    assert '<h3 id="quire.inference.v1.InferenceService">' in written
    assert '<td>a stream of <a href="#schema-InferenceChatResponse">' in written
    assert "<code>data: [DONE]</code>" in written
    text = re.sub(r"<pre>.*?</pre>", "", written, flags=re.DOTALL)
    assert "`" not in text
    assert str(code("a `b<c>` d")) == "a <code>b&lt;c&gt;</code> d"
    assert str(paragraphs("a\n\nb & c")) == "<p>a</p>\n<p>b &amp; c</p>"


@pytest.mark.parametrize(
    "prompt", ["text", ["a", "b"], [1, 2], [[1], [2]], []], ids=["text", "texts", "tokens", "token lists", "empty"]
)
def test_a_union_takes_what_the_parser_takes(prompt: Any) -> None:
    schema = {"$ref": "#/components/schemas/CompletionRequest", "components": DOCUMENT["components"]}
    jsonschema.validate({"prompt": prompt}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"prompt": {"prompt": prompt}}, schema)


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.targets: set[str] = set()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.tags.add(tag)
        self.ids |= {given["id"] or ""} if "id" in given else set()
        self.targets |= {str(given[name]) for name in ("href", "src") if name in given}


def test_the_page_shows_every_path_and_loads_nothing() -> None:
    written = page(DOCUMENT)
    links = _Links()
    links.feed(written)
    assert {operation.name for operation in OPERATIONS} <= links.ids
    assert {f"schema-{name}" for name in DOCUMENT["components"]["schemas"]} <= links.ids
    assert "script" not in links.tags
    inside = {target.removeprefix("#") for target in links.targets if target.startswith("#")}
    assert inside <= links.ids
    assert links.targets - {f"#{target}" for target in inside} == {"data:,", "openapi.json"}
    assert "src=" not in written
    assert "url(" not in written


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 4}, "integer (≥ 1, ≤ 4)"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/A"}}, 'array of <a href="#schema-A">A</a>'),
        ({"enum": ["<a>", 1]}, "<code>&#34;&lt;a&gt;&#34;</code> or <code>1</code>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
    ],
)
def test_a_type_in_words(schema: dict[str, Any], text: str) -> None:
    assert str(type_of(schema)) == text
