#!/usr/bin/env python3
"""Records the output of Python's Jinja2 for every chat template of tests/data/chat-templates with twelve conversations: the five of
rendered.json and seven more from here. Texts are stored as their length and FNV-1a hash, errors unchanged. The same for messages with
members that are null or have other names, as apply_chat_template hands them to the template.

    tools/make_chat_renderings.py > tests/data/chat-templates/twelve.json
    tools/make_chat_renderings.py nulls > tests/data/chat-templates/nulls.json
    tools/make_chat_renderings.py NAME CONVERSATION      # prints one of the texts
"""
import json
import pathlib
import sys

from make_jinja_cases import environment

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/data/chat-templates"


def text(value):
    return {"type": "text", "text": value}


def call(name, arguments, number=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": number, **made} if number else made


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place, in \"plain\" words & numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, country"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1},
                "at": {"type": ["number", "null"]},
                "areas": {"type": "array", "items": {"type": "object", "properties": {"lat": {"type": "number"}}}},
            },
            "required": ["place"],
        },
        "return": {"type": "string"},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
MARKS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

CONVERSATIONS = {
    "long_unicode": {
        "messages": [{"role": "system", "content": "  Antworte kurz.\n\nUse “quotes” – and 日本語. "}]
        + [
            {"role": role, "content": content}
            for i in range(6)
            for role, content in (
                ("user", "Frage %d:\n\t<b>ß & ü</b> \\n {%% raw %%} {{ x }} 😀  " % i),
                ("assistant", "\n\nAntwort %d: naïve café, \"ja\"\n" % i),
            )
        ]
        + [{"role": "user", "content": "Ende?"}],
        "add_generation_prompt": True,
        **MARKS,
    },
    "tools_twice": {
        "messages": [
            {"role": "system", "content": "You may call tools."},
            {"role": "user", "content": "Weather in Oslo and the time?"},
            {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"place": "Oslo", "days": 2, "at": None}, "call00001"), call("clock", {}, "call00002")]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"sky\": \"clear\", \"t\": -3.5}"},
            {"role": "tool", "name": "clock", "tool_call_id": "call00002", "content": "12:00"},
            {"role": "assistant", "content": "Clear, -3.5 degrees, at noon."},
            {"role": "user", "content": "And Rome?"},
            {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Rome", "unit": "celsius", "areas": [{"lat": 41.9}], "ok": True}, "call00003")]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00003", "content": "rain"},
        ],
        "tools": [WEATHER, CLOCK],
        "add_generation_prompt": True,
        **MARKS,
    },
    "arguments_as_text": {
        "messages": [
            {"role": "user", "content": "Time?"},
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call("clock", "{\"zone\": \"UTC\"}", "abcdefghi")]},
            {"role": "tool", "tool_call_id": "abcdefghi", "content": "noon"},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": [CLOCK],
        "add_generation_prompt": False,
        **MARKS,
    },
    "thinking": {
        "messages": [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4", "reasoning_content": "Easy."},
            {"role": "user", "content": "3 + 3?"},
            {"role": "assistant", "content": "6", "reasoning_content": "Also\neasy.", "thinking": "Also\neasy."},
            {"role": "user", "content": "4 + 4? /no_think"},
        ],
        "add_generation_prompt": True,
        "enable_thinking": False,
        "thinking": True,
        "reasoning_effort": "high",
        **MARKS,
    },
    "parts": {
        "messages": [
            {"role": "system", "content": [text("See "), text("pictures.")]},
            {"role": "user", "content": [text("What is this?"), {"type": "image"}, {"type": "image_url", "image_url": {"url": "http://a/b.png"}}]},
            {"role": "assistant", "content": [text("A cat.")]},
            {"role": "user", "content": [text("Sure?")]},
        ],
        "add_generation_prompt": True,
        **MARKS,
    },
    "odd_order": {
        "messages": [
            {"role": "assistant", "content": "Hello."},
            {"role": "assistant", "content": "Anyone?"},
            {"role": "user", "content": ""},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Yes."},
            {"role": "user", "content": "Me too."},
        ],
        "add_generation_prompt": False,
        **MARKS,
    },
    "system_alone": {
        "messages": [{"role": "system", "content": "Nobody asked."}],
        "documents": [{"title": "One", "text": "First.", "contents": "First."}, {"title": "Two", "text": "Second.", "contents": "Second."}],
        "tools": None,
        "date_string": "01 Jan 2025",
        "add_generation_prompt": True,
        **MARKS,
    },
}

CALLED = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"place": "Oslo", "at": None}, "abc123XYZ")]},
    {"role": "tool", "name": "get_weather", "tool_call_id": "abc123XYZ", "content": "sunny"},
    {"role": "user", "content": "Thanks?"},
]
NOTHING = {"name": None, "tool_calls": None, "tool_call_id": None, "reasoning_content": None, "thinking": None, "refusal": None, "audio": None}

NULLS = {
    "no_content": {"messages": CALLED, "tools": [WEATHER]},
    "no_content_first": {"messages": [{"content": None, "refusal": None, **CALLED[1]}]},
    "no_calls": {
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello", "tool_calls": None},
            {"role": "user", "content": "ok?"},
        ],
    },
    "nothing_anywhere": {
        "messages": [
            {**NOTHING, "role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 + 2?", **NOTHING},
            {"role": "assistant", **NOTHING, "content": "4"},
            {"role": "user", "content": "Sure?", **NOTHING},
        ],
    },
    "other_names": {
        "messages": [
            {"role": "user", "content": "2 + 2?"},
            {"role": "assistant", "content": "4", "reasoning_content": None, "reasoning": "Easy."},
            {"role": "user", "content": "3 + 3?"},
            {"role": "assistant", "content": "6", "reasoning": None, "thinking": "Also\neasy."},
            {"role": "user", "content": "4 + 4?"},
            {"role": "assistant", "content": "8", "thinking": "no", "reasoning_content": "Yes."},
            {"role": "user", "content": "5 + 5?"},
            {"role": "assistant", "content": "10", "reasoning": {"effort": "low"}},
        ],
    },
}


def as_template_gets(message):
    """Without members that are None; what was thought under the name that templates know."""
    message = {key: value for key, value in message.items() if value is not None}
    if "reasoning_content" not in message:
        thought = message.get("reasoning", message.get("thinking"))
        if isinstance(thought, str):
            message["reasoning_content"] = thought
    return message


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def render(template, conversation):
    try:
        return environment().from_string(template).render(**conversation), None
    except Exception as error:  # whatever Python raises is the answer
        return None, "%s: %s" % (type(error).__name__, error)


def main():
    rendered = json.loads((FOLDER / "rendered.json").read_text())
    templates = {one["name"]: one["template"] for one in rendered["templates"]}
    known = set(templates.values())
    for one in json.loads((FOLDER / "e2e.json").read_text()):
        if one["chat_template"] not in known:
            templates["e2e: " + one["name"]] = one["chat_template"]
            known.add(one["chat_template"])
    conversations = {**rendered["contexts"], **CONVERSATIONS}
    stored = CONVERSATIONS
    if sys.argv[1:] == ["nulls"]:
        stored = {name: {"tools": None, "documents": None, **one, "add_generation_prompt": True, **MARKS} for name, one in NULLS.items()}
        conversations = {name: {**one, "messages": [as_template_gets(m) for m in one["messages"]]} for name, one in stored.items()}
    if len(sys.argv) == 3:
        print(*render(templates[sys.argv[1]], conversations[sys.argv[2]]), sep="\n")
        return
    results = {}
    for name, template in templates.items():
        results[name] = {}
        for which, conversation in conversations.items():
            output, error = render(template, conversation)
            data = None if output is None else output.encode()
            results[name][which] = error[:200] if output is None else "%d %016x" % (len(data), fnv(data))
    rows = ",\n".join("%s: %s" % (json.dumps(name), json.dumps(row)) for name, row in results.items())
    print('{"engine": "Jinja2 %s",\n"conversations": %s,\n"results": {\n%s\n}}'
          % (__import__("jinja2").__version__, json.dumps(stored), rows))


if __name__ == "__main__":
    main()
