"""The body of /api/chat."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from itertools import product
from typing import Any, Literal

from pydantic import Field

from services.router.apis.ollama.options import OllamaBody, refuse
from services.router.chat import ChatRequest, Tool, thought
from services.router.errors import invalid
from services.router.http import Body
from services.router.prompt import MAX_CALLS, MAX_MESSAGES


class CalledFunction(Body):
    name: str = Field(description="Name of the function.")
    arguments: dict[str, Any] = Field(description="Arguments of the call.")


class CallParam(Body):
    id: str | None = Field(
        None, description="Id of the call, to which its result may refer. Calls without one are numbered."
    )
    function: CalledFunction = Field(description="The function that was called, with its arguments.")


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"] = Field(description="Role of the author.")
    content: str | None = Field(None, description="The text.")
    thinking: str | None = Field(None, description="Reasoning of the assistant.")
    images: list[Any] | None = Field(None, description="Not supported.")
    tool_calls: list[CallParam] | None = Field(None, max_length=MAX_CALLS, description="Tool calls of the assistant.")
    tool_name: str | None = Field(
        None,
        description=(
            "For a tool message: name of the function that it is the result of. Default: the first call without a "
            "result."
        ),
    )
    tool_call_id: str | None = Field(None, description="For a tool message: id of the call that it is the result of.")


class FunctionParam(Body):
    name: str = Field(min_length=1, description="Name of the function.")
    description: str | None = Field(None, description="Description of the function, for the model.")
    parameters: dict[str, Any] | None = Field(None, description="JSON schema of the arguments.")


class OllamaTool(Body):
    type: Literal["function"] = Field("function", description="Always `function`.")
    function: FunctionParam = Field(description="Definition of the function.")


class ChatBody(OllamaBody):
    messages: list[OllamaMessage] | None = Field(
        None,
        max_length=MAX_MESSAGES,
        description="Messages of the conversation. If there are none, the answer says that the model is loaded.",
    )
    tools: list[OllamaTool] | None = Field(None, description="Functions that the model may call, at most 128.")

    def to_chat(self, model: str) -> ChatRequest:
        """Converts the body to a chat request. `model`: the model's name or alias. Raises ApiError."""
        return ChatRequest(
            model=model,
            messages=_to_template(self.messages or []),
            options=self.generation_options(),
            tools=tuple(
                Tool(tool.function.name, tool.function.description or "", tool.function.parameters)
                for tool in self.tools or ()
            ),
            template_kwargs=self.template_kwargs,
            max_tokens_param="options.num_predict",
            clamps_max_tokens=True,
        )


def _to_template(messages: list[OllamaMessage]) -> list[dict[str, Any]]:
    """Returns the messages as chat templates expect them. A call without an id gets one, made of the call's number. A
    result without an id belongs to the first call that has no result yet. If the result names a function, only calls of
    that function count."""
    rendered: list[dict[str, Any]] = []
    open_calls = _OpenCalls()
    num_calls = 0
    for index, message in enumerate(messages):
        refuse(f"messages[{index}].images", message.images)
        if message.content is None and not message.tool_calls:
            param = f"messages[{index}].content"
            raise invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        entry: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            thought(entry, message.thinking)
        if message.tool_calls:
            entry["tool_calls"] = []
            for call in message.tool_calls:
                num_calls += 1
                # Mistral's templates require ids of nine letters and digits.
                call_id = call.id or f"call{num_calls:05}"
                open_calls.add(call_id, call.function.name)
                arguments = json.dumps(call.function.arguments, ensure_ascii=False)
                function = {"name": call.function.name, "arguments": arguments}
                entry["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if message.role == "tool":
            call_id, name = open_calls.take(message.tool_call_id, message.tool_name)
            entry |= {"tool_call_id": call_id, "name": name}
        rendered.append(entry)
    return rendered


class _OpenCalls:
    """The calls that have no result yet. Each is found by any of what a result can say of its call, so that the time of
    a result does not grow with their number."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, str]] = []
        # Numbers of the calls with an id, a name, both, or neither of them given, oldest first.
        self._numbers: defaultdict[tuple[str | None, str | None], deque[int]] = defaultdict(deque)
        self._answered: set[int] = set()

    def add(self, call_id: str, name: str) -> None:
        for key in product((None, call_id), (None, name)):
            self._numbers[key].append(len(self._calls))
        self._calls.append((call_id, name))

    def take(self, call_id: str | None, name: str | None) -> tuple[str, str]:
        """Returns (id, name) of the oldest call to which a result belongs, and removes the call. If there is no such
        call, returns the result's own id and name."""
        numbers = self._numbers.get((call_id, name), deque())
        while numbers:
            number = numbers.popleft()
            if number not in self._answered:
                self._answered.add(number)
                return self._calls[number]
        return call_id or "", name or ""
