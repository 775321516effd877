"""Texts with calls in every form, and what is read from each."""

from __future__ import annotations

import json
from typing import Any

WEATHER = ("get_weather", {"city": 'Kö"ln\n', "days": [1, {"b": []}]})
TIME: tuple[str, Any] = ("get_time", {})
ARGUMENTS = json.dumps(WEATHER[1], ensure_ascii=False)
DEEPSEEK_BEGIN, DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

# Of both of Gemma's forms.
GEMMA_TEXTS: list[tuple[str, str, list[tuple[str, Any]]]] = [
    (
        'Sure.\n<BEGIN>call:get_weather{city:<Q>Kö"ln\n<Q>,days:[1,{b:[]}]}<END><BEGIN>call:get_time{}<END>',
        "Sure.",
        [WEATHER, TIME],
    ),
    (
        "<BEGIN>call:get_weather{ city: <Q>a < <esc |> {b}, c<Q> days : [<Q>1<Q> , true,false] "
        "x:{<Q>y:z<Q>:-1.5e3, n:null} }",
        "",
        [("get_weather", {"city": "a < <esc |> {b}, c", "days": ["1", True, False], "x": {"y:z": -1500.0, "n": None}})],
    ),
    ("<BEGIN>call:get_weather{city:<Q>5<Q>,days:<Q>[1]<Q>}<END>", "", [("get_weather", {"city": "5", "days": [1]})]),
    ("<BEGIN>call:get_weather{city:Köln}<END> Done.", " Done.", [("get_weather", {"city": "Köln"})]),
    ("<BEGIN>call:get_time{a,b:}<END>", "", [("get_time", {"a": "", "b": ""})]),
    ("<BEGIN>get_time{}<END>", "<BEGIN>get_time{}<END>", []),
    ("<BEGIN>call:get_weather{ci", "<BEGIN>call:get_weather{ci", []),
    # What closes the arguments is missing.
    (
        "<BEGIN>call:get_weather{city:<Q>K<Q><END>Done: it is, well. {ok}",
        "Done: it is, well. {ok}",
        [("get_weather", {"city": "K"})],
    ),
    ("<BEGIN>call:get_weather{days:3<END><BEGIN>call:get_time{}<END>", "", [("get_weather", {"days": 3}), TIME]),
    ("<BEGIN>call:get_weather{days:3<BEGIN>call:get_time{}<END>", "", [("get_weather", {"days": 3}), TIME]),
    ("<BEGIN>call:get_weather{city:Köln<END> hi", " hi", [("get_weather", {"city": "Köln"})]),
    ("<BEGIN>call:get_weather{days:[1,{a:[2 <END> hi", " hi", [("get_weather", {"days": [1, {"a": [2]}]})]),
    ("<BEGIN>call:get_time{<END> hi", " hi", [TIME]),
    (
        "<BEGIN>call:get_weather{days:1}<END><BEGIN>call:get_time{<Q>",
        "<BEGIN>call:get_time{<Q>",
        [("get_weather", {"days": 1})],
    ),
    ("<BEGIN>call:get_time{a<END> hi", " hi", [("get_time", {"a": ""})]),
    ("<BEGIN>call:get_weather{city<Q>K<Q>}<END>", "", [("get_weather", {"city": "K"})]),
    ("<BEGIN>call:get_weather{days:1 <Q>city<Q>:<Q>K<Q>}", "", [("get_weather", {"days": 1, "city": "K"})]),
    ("<BEGIN>call:get_time{a<b:c<d<e>}<END>", "", [("get_time", {"a<b": "c<d<e>"})]),
    ("<BEGIN>call:get_weather{city:<Q>K<END>", "", [("get_weather", {"city": "K"})]),
    (
        "<BEGIN>call:get_weather{city:<Q>K<END>\n<BEGIN>call:get_time{}<END> hi",
        " hi",
        [("get_weather", {"city": "K"}), TIME],
    ),
    # A string may quote the token.
    ("<BEGIN>call:get_weather{city:<Q>a <END> b<Q>}<END>", "", [("get_weather", {"city": "a <END> b"})]),
    ("<BEGIN>call:get_weather{city:<Q>a <END><Q>}<END>", "", [("get_weather", {"city": "a <END>"})]),
]


GEMMA_TOKENS = {
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
}


def in_form(text: str, tokens: tuple[str, str, str]) -> str:
    begin, end, quote = tokens
    return text.replace("<BEGIN>", begin).replace("<END>", end).replace("<Q>", quote)


def calls_in_form(calls: list[tuple[str, Any]], tokens: tuple[str, str, str]) -> list[tuple[str, Any]]:
    def value_in_form(value: Any) -> Any:
        return in_form(value, tokens) if isinstance(value, str) else value

    return [(name, {key: value_in_form(value) for key, value in arguments.items()}) for name, arguments in calls]


# (form, text, content, calls)
TEXTS: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    (
        "hermes",
        f'Let me see.\n\n<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
        '<tool_call>{"arguments": {}, "name": "get_time"}</tool_call>\n',
        "Let me see.",
        [WEATHER, TIME],
    ),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call> Done.', " Done.", [TIME]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": 1}"}', "", [("get_time", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": null}}</tool_call>', "", [TIME]),
    ("hermes", "2 <3 and <tool_calm> < <tool_call", "2 <3 and <tool_calm> < <tool_call", []),
    ("hermes", "<tool_call>what?</tool_call>", "<tool_call>what?</tool_call>", []),
    ("hermes", '<tool_call>{"name": 7}</tool_call>', '<tool_call>{"name": 7}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "get_ti', '<tool_call>{"name": "get_ti', []),
    (
        "qwen3_coder",
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nKö\"ln\n\n</parameter>\n<parameter=days>\n"
        '[1, {"b": []}]\n</parameter>\n</function>\n</tool_call>\n'
        "<tool_call><function=get_time></function></tool_call>",
        "Sure.",
        [WEATHER, TIME],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=get_weather><parameter=days>NaN</parameter></function></tool_call>",
        "",
        [("get_weather", {"days": "NaN"})],
    ),
    ("qwen3_coder", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>", []),
    (
        "seed_oss",
        "Sure.\n\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>\nKö\"ln\n\n</parameter>\n<parameter=days>"
        '[1, {"b": []}]</parameter>\n</function>\n</seed:tool_call>\n'
        "<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
        "Sure.",
        [WEATHER, TIME],
    ),
    (
        "seed_oss",
        "<function=get_weather>\n<parameter=city>Köln\nKalk\n<parameter=days>[True]</parameter>\n</function>",
        "",
        [("get_weather", {"city": "Köln\nKalk", "days": [True]})],
    ),
    ("seed_oss", "<seed:think> <seed:tool_call>?", "<seed:think> <seed:tool_call>?", []),
    ("llama3_json", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "", [WEATHER]),
    (
        "llama3_json",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}; '
        '{"name": "get_time", "parameters": {}}',
        "",
        [WEATHER, TIME],
    ),
    ("llama3_json", '\n<|python_tag|>{"name": "get_time"}', "", [TIME]),
    ("llama3_json", '{"name": "John", "parameters": {}} is', '{"name": "John", "parameters": {}} is', []),
    ("llama3_json", 'Look: {"name": "get_time"}', 'Look: {"name": "get_time"}', []),
    ("llama3_json", '{"name": "get_time"}; {"na', '; {"na', [TIME]),
    ("llama4_json", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "", [WEATHER]),
    (
        "llama4_json",
        f'<|python_start|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}; {{"name": "get_time"}}<|python_end|>',
        "",
        [WEATHER, TIME],
    ),
    (
        "llama4_json",
        f'<|python_start|>Let me see.<|python_end|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
        '{"name": "get_time", "parameters": {}}',
        "<|python_start|>Let me see.",
        [WEATHER, TIME],
    ),
    ("llama4_json", '<|python_start|><|python_end|>{"name": "get_time"}', "", [TIME]),
    ("llama4_json", "<|python_start|>print(1)<|python_end|>", "<|python_start|>print(1)<|python_end|>", []),
    (
        "granite",
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time"}}]',
        "",
        [WEATHER, TIME],
    ),
    ("granite", 'Sure. <tool_call> [{"name": "get_time", "arguments": {}}]\n</tool_call>', "Sure.", [TIME]),
    ("granite", ' [{"name": "get_time", "arguments": {}}]', "", [TIME]),
    ("granite", '{"name": "get_time"} is how', " is how", [TIME]),
    ("granite", '[{"name": "rm", "arguments": {}}]', '[{"name": "rm", "arguments": {}}]', []),
    ("granite", "<|tool_call|>[1]<|tool_call", "<|tool_call|>[1]<|tool_call", []),
    (
        "internlm",
        "I will look.\n<|action_start|><|plugin|>\n"
        f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}<|action_end|>',
        "I will look.",
        [WEATHER],
    ),
    (
        "internlm",
        f'<|action_start|><|plugin|>{{"name": "get_weather", "parameters": {ARGUMENTS}}}<|action_end|>\n'
        '<|action_start|> <|plugin|>\n{"name": "get_time"}\n<|action_end|>\n',
        "",
        [WEATHER, TIME],
    ),
    (
        "internlm",
        "<|action_start|><|interpreter|>1<|action_end|>",
        "<|action_start|><|interpreter|>1<|action_end|>",
        [],
    ),
    (
        "hunyuan_a13b",
        f'I will. <tool_calls>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time", '
        '"arguments": {}}]</tool_calls>\n',
        "I will.",
        [WEATHER, TIME],
    ),
    ("hunyuan_a13b", '<tool_calls>[\n    {"name": "get_time", "arguments": {}}\n]\n</tool_calls>', "", [TIME]),
    ("hunyuan_a13b", "助手：你好", "你好", []),
    ("hunyuan_a13b", "<tool_calls>none</tool_calls>", "<tool_calls>none</tool_calls>", []),
    (
        "xlam",
        f'[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time", "arguments": {{}}}}]',
        "",
        [WEATHER, TIME],
    ),
    *(
        ("xlam", f'I will.\n{begin}[{{"name": "get_weather", "arguments": {ARGUMENTS}}}]{end}', "I will.", [WEATHER])
        for begin, end in (
            ("```json\n", "\n```"),
            ("```", "```"),
            ("<tool_call>", "</tool_call>"),
            ("[TOOL_CALLS]", ""),
        )
    ),
    ("xlam", '{"name": "get_time", "arguments": {}}', "", [TIME]),
    *(("xlam", text, text, []) for text in ('```python\n[1]\n``` [1] <tool_call>[{"name": "rm"}]', "[1] [TOOL_CALLS")),
    *(
        (form, in_form(text, tokens), in_form(content, tokens), calls_in_form(calls, tokens))
        for form, tokens in GEMMA_TOKENS.items()
        for text, content, calls in GEMMA_TEXTS
    ),
    ("pythonic", "[get_weather(city='Kö\"ln\\n', days=[1, {'b': ()}]), get_time()]", "", [WEATHER, TIME]),
    ("pythonic", "<|python_start|>[get_time()]<|python_end|>", "", [TIME]),
    (
        "pythonic",
        "[get_weather(city=a.b, days=None, x=-1.5e3, y=1e999)]",
        "",
        [("get_weather", {"city": "a.b", "days": None, "x": -1500.0, "y": "1e999"})],
    ),
    ("pythonic", "[get_weather(city='x', oops]", ", oops", [("get_weather", {"city": "x"})]),
    (
        "pythonic",
        f"[get_weather(city='{'x' * 20_000}', days=[{'1, ' * 8_000}])]",
        "",
        [("get_weather", {"city": "x" * 20_000, "days": f"[{'1, ' * 8_000}]"})],
    ),
    # A literal of this length would hold up the event loop; JSON does not.
    (
        "pythonic",
        f"[get_weather(city='x', days=[{'1, ' * 1_500}], x=[{'1, ' * 8_000}1], y=[{'-1, ' * 900}])]",
        "",
        [("get_weather", {"city": "x", "days": f"[{'1, ' * 1_500}]", "x": [1] * 8_001, "y": [-1] * 900})],
    ),
    (
        "pythonic",
        "[get_weather(city=true, days=null, x=NaN)]",
        "",
        [("get_weather", {"city": True, "days": None, "x": "NaN"})],
    ),
    ("pythonic", r"[get_weather(city='\d+')]", "", [("get_weather", {"city": "\\d+"})]),
    ("pythonic", "[1, 2](see) [get_time]", "[1, 2](see) [get_time]", []),
    ("pythonic", "[rm(path='/')]", "[rm(path='/')]", []),
    (
        "mistral",
        f'I will.[TOOL_CALLS] [{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time", '
        '"arguments": {}}]',
        "I will.",
        [WEATHER, TIME],
    ),
    ("mistral", f"[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]get_time{{}}", "", [WEATHER, TIME]),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{ARGUMENTS}", "", [WEATHER]),
    ("mistral", "[1] and [TOOL_CALLS] nothing", "[1] and [TOOL_CALLS] nothing", []),
    (
        "deepseek_v3",
        f"Wait.{DEEPSEEK_BEGIN}<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGUMENTS}\n```"
        f"<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{{}}\n```<｜tool▁call▁end｜>"
        f"{DEEPSEEK_END}",
        "Wait.",
        [WEATHER, TIME],
    ),
    (
        "deepseek_v31",
        f"{DEEPSEEK_BEGIN}<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{{}}<｜tool▁call▁end｜>{DEEPSEEK_END}",
        "",
        [WEATHER, TIME],
    ),
    ("deepseek_v31", f"{DEEPSEEK_BEGIN}none", f"{DEEPSEEK_BEGIN}none", []),
    ("plain", f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}', "", [WEATHER]),
    ("plain", f'```json\n[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, {{"name": "get_time"}}]\n```\n', "",
     [WEATHER, TIME]),
    ("plain", '[{"name": "get_time"}, {"name": "rm"}]', ', {"name": "rm"}]', [TIME]),
    ("plain", '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
    ("plain", " Hello ", " Hello ", []),
    ("required", f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}}, {{"name": "get_time", "parameters": {{}}}}]',
     "", [WEATHER, TIME]),
    ("named", f" {ARGUMENTS} ", "", [WEATHER]),
    ("named", "", "", []),
    ("required", '[  {"name": "get_wea', "", []),
    ("required", f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}} ,  {{"name":', "", [WEATHER]),
    ("required", '[{"name": "get_time", "parameters": {}', "", [TIME]),
]  # fmt: skip
