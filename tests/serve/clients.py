"""Clients against `mneme serve`: openai, anthropic, huggingface_hub, langchain-openai, litellm, openai-agents and curl, each a whole answer and a stream, and
errors as the exceptions of the client; /metrics as prometheus_client reads it. Every answer is what `mneme run` says to the same conversation.

usage: clients.py MNEME MODEL [--record FOLDER] [--only NAMES]     MODEL: "tiny" (the embedded checkpoint with a chat template), or as for mneme
--record writes the bytes of each request to FOLDER/CLIENT-CASE.http (tests/data/serve/README.md).

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import wave

HERE = os.path.dirname(os.path.abspath(__file__))
if "MNEME_TEST_RUN" not in os.environ:  # an environment of its own
    os.execv(HERE + "/../run", ["run", sys.executable, *sys.argv])
KEY = "a-key-of-the-clients-0123"
CONVERSATION = [{"role": "user", "content": "Once upon a time"}]
MOST = 16
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


class Skip(Exception):
    pass


def tiny_model(work):
    """The embedded model's files with a chat template."""
    source = os.path.join(HERE, "../../models-embedded/stories260K")
    folder = os.path.join(work, "tiny")
    os.mkdir(folder)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy(os.path.join(source, name), folder)
    template = ("{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>\n{% endfor %}"
                "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}{% endfor %}\n"
                "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}, f)
    return folder


def tiny_speech(work):
    """The tiny Whisper checkpoint with a tokenizer, as tests/support/speech/spelled.c makes it."""
    source = os.path.join(HERE, "../data/golden/whisper/tiny80")
    folder = os.path.join(work, "spelled")
    os.mkdir(folder)
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(os.path.join(source, name), folder)
    vocab = {("", "\u0120", "(", ")")[i // 94] + chr(33 + i % 94): i for i in range(312)} | {"\u0120": 312}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}, f)
    return folder


def short_recording(work, seconds):
    """The beginning of a recording of the test data."""
    path = os.path.join(work, "speech.wav")
    with wave.open(os.path.join(HERE, "../data/audio/test_speech.wav")) as whole, wave.open(path, "wb") as part:
        part.setparams(whole.getparams())
        part.writeframes(whole.readframes(int(seconds * whole.getframerate())))
    return path


class Server:
    """`mneme serve` on a free port."""

    def __init__(self, mneme, model, keys, *options):
        self.process = subprocess.Popen([mneme, "serve", model, "--port", "0", "--api-key-file", keys, *options], stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            found = re.match(r"listening on http://127\.0\.0\.1:(\d+) ", line)
            if found:
                break
        else:
            sys.exit("mneme serve did not start: " + "".join(said))
        self.port = int(found[1])
        self.log = ""  # after close, all that it said
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        self.log = self.process.stderr.read()

    def close(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            sys.exit(f"mneme serve ended with {self.process.returncode}")
        self.reader.join()


class Relay:
    """Passes requests on, one a connection, and writes the bytes of each to FOLDER/NAME.http while a name is set."""

    def __init__(self, port, folder):
        self.upstream, self.folder, self.name = port, folder, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.pass_on, args=(self.listener.accept()[0],), daemon=True).start()

    def pass_on(self, client):
        data = b""
        while b"\r\n\r\n" not in data:
            part = client.recv(65536)
            if not part:
                return
            data += part
        length = re.search(rb"\r\ncontent-length: *(\d+)", data, re.I)
        end = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
        while len(data) < end:
            data += client.recv(65536)
        name, self.name = self.name, None  # a case's first request
        if name:
            with open(os.path.join(self.folder, name + ".http"), "wb") as f:
                f.write(data)
        with socket.create_connection(("127.0.0.1", self.upstream)) as server:
            server.sendall(data)
            while part := server.recv(65536):
                client.sendall(part)
        client.close()


def expect(value, wanted):
    if value != wanted:
        raise AssertionError(f"{value!r}, not {wanted!r}")


def expect_error(kind, status, part, call):
    try:
        call()
    except kind as e:
        expect(e.status_code, status)
        if part not in str(e):
            raise AssertionError(f"{e!s} lacks {part!r}") from e
    else:
        raise AssertionError(f"no {kind.__name__}")


# ---- clients: functions of the address, the model's name and the text that is right ----


def open_openai(url, key=KEY):
    import openai
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


def open_anthropic(url, key=KEY):
    import anthropic
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def open_hub(url):
    import huggingface_hub
    return huggingface_hub.InferenceClient(base_url=url + "/v1", api_key=KEY)


def openai_chat_plain(url, model, wanted):
    r = open_openai(url).chat.completions.create(model=model, messages=CONVERSATION, max_tokens=MOST, temperature=0)
    expect(r.choices[0].message.content, wanted)
    expect(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)


def openai_chat_stream(url, model, wanted):
    text, usage = "", None
    with open_openai(url).chat.completions.create(model=model, messages=CONVERSATION, max_tokens=MOST, temperature=0, stream=True,
                                                  stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(c.delta.content or "" for c in chunk.choices)
    expect(text, wanted)
    expect(usage.prompt_tokens_details.cached_tokens > 0, True)  # it was asked before


def openai_completion_plain(url, model, wanted):
    r = open_openai(url).completions.create(model=model, prompt=CONVERSATION[0]["content"], max_tokens=MOST, temperature=0)
    expect(r.choices[0].text, CONTINUED["text"])
    expect(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)


def openai_completion_stream(url, model, wanted):
    text, usage = "", None
    with open_openai(url).completions.create(model=model, prompt=CONVERSATION[0]["content"], max_tokens=MOST, temperature=0, stream=True,
                                             stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            text += "".join(c.text for c in chunk.choices)
    expect(text, CONTINUED["text"])
    expect(usage.prompt_tokens_details.cached_tokens > 0, True)


def openai_responses_plain(url, model, wanted):
    r = open_openai(url).responses.create(model=model, input=CONVERSATION[0]["content"], max_output_tokens=MOST, temperature=0)
    expect(r.output_text, wanted)
    expect(r.usage.input_tokens_details.cached_tokens > 0, True)


def openai_responses_stream(url, model, wanted):
    text, last, numbers = "", None, []
    with open_openai(url).responses.create(model=model, input=CONVERSATION, max_output_tokens=MOST, temperature=0, stream=True) as stream:
        for event in stream:
            numbers.append(event.sequence_number)
            last = event
            if event.type == "response.output_text.delta":
                text += event.delta
    expect(text, wanted)
    expect(numbers, list(range(len(numbers))))
    expect(last.response.output_text, wanted)


def openai_responses_continued(url, model, wanted):
    c = open_openai(url)
    first = c.responses.create(model=model, input=CONVERSATION, max_output_tokens=MOST, temperature=0)
    second = c.responses.create(model=model, input="Go on", previous_response_id=first.id, max_output_tokens=MOST, temperature=0)
    conversation = CONVERSATION + [{"role": "assistant", "content": wanted}, {"role": "user", "content": "Go on"}]
    whole = c.chat.completions.create(model=model, messages=conversation, max_tokens=MOST, temperature=0)
    expect(second.output_text, whole.choices[0].message.content)
    expect(second.usage.input_tokens, whole.usage.prompt_tokens)


def openai_responses_schema(url, model, wanted):
    with open_openai(url).responses.stream(model=model, input=CONVERSATION, temperature=0, text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}) as stream:
        final = [event for event in stream][-1].response
    expect(final.status, "completed")
    expect(type(json.loads(final.output_text)["ok"]), bool)


# A regular expression makes the model think.
def openai_responses_reasoning(url, model, wanted):
    ask = {"model": model, "input": CONVERSATION, "extra_body": {"regex": "<think>[ab]{4}</think>[xy]{3}", "temperature": 0}}
    whole = open_openai(url).responses.create(**ask)
    with open_openai(url).responses.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        last = stream.get_final_response()
    for r in (whole, last):
        expect([item.type for item in r.output], ["reasoning", "message"])
        expect(len(r.output[0].content[0].text), 4)
        expect(set(r.output_text) <= set("xy") and len(r.output_text), 3)
        expect(r.usage.output_tokens_details.reasoning_tokens > 0, True)
    expect(whole.output[0].content[0].text, last.output[0].content[0].text)
    expect(kinds.index("response.reasoning_text.delta") < kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta"), True)


def openai_responses_tools(url, model, wanted):
    """A call, streamed, and its result, for which the response before is continued."""
    c, ask = open_openai(url), {"model": model, "max_output_tokens": 100, "temperature": 0}
    function = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    arguments, last = "", None
    with c.responses.create(**ask, input=CONVERSATION, tools=[function], tool_choice={"type": "function", "name": "weather"}, stream=True) as stream:
        for event in stream:
            last = event
            if event.type == "response.function_call_arguments.delta":
                arguments += event.delta
    [call] = last.response.output
    expect((call.type, call.name, call.arguments), ("function_call", "weather", arguments))
    expect(json.loads(arguments)["city"] in ("Rome", "Oslo"), True)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
    second = c.responses.create(**ask, previous_response_id=last.response.id, input=[result])
    whole = c.responses.create(**ask, input=CONVERSATION + [call.model_dump(), result])
    expect(second.output_text, whole.output_text)
    expect(second.usage.input_tokens, whole.usage.input_tokens)


def openai_chat_tools(url, model, wanted):
    c, ask = open_openai(url), {"model": model, "max_tokens": 100, "temperature": 0}
    function = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
    message = c.chat.completions.create(**ask, messages=CONVERSATION, tools=[function], tool_choice="required").choices[0].message
    [call] = message.tool_calls
    expect(json.loads(call.function.arguments)["city"] in ("Rome", "Oslo"), True)
    conversation = CONVERSATION + [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "warm"}]
    expect(type(c.chat.completions.create(**ask, messages=conversation).choices[0].message.content), str)


def openai_errors(url, model, wanted):
    import openai
    c, ask = open_openai(url), {"model": model, "messages": CONVERSATION}
    expect_error(openai.NotFoundError, 404, "there is no model 'none'", lambda: c.chat.completions.create(**ask | {"model": "none"}))
    expect_error(openai.BadRequestError, 400, "'top_p' is 3", lambda: c.chat.completions.create(**ask, top_p=3))
    expect_error(openai.BadRequestError, 400, "previous_response_id", lambda: c.responses.create(model=model, input="a", previous_response_id="resp_none"))
    expect_error(openai.AuthenticationError, 401, "API key", lambda: open_openai(url, "another-key-0123456789").chat.completions.create(**ask))
    expect([m.id for m in c.models.list()], [model, SPEECH["model"]])


def anthropic_messages_plain(url, model, wanted):
    r = open_anthropic(url).messages.create(model=model, messages=CONVERSATION, max_tokens=MOST, extra_body={"temperature": 0})
    expect([b.text for b in r.content], [wanted])
    expect(r.usage.cache_read_input_tokens > 0 and r.usage.input_tokens > 0, True)


def anthropic_messages_stream(url, model, wanted):
    conversation = [{"role": "user", "content": [{"type": "text", "text": CONVERSATION[0]["content"], "cache_control": {"type": "ephemeral"}}]}]
    with open_anthropic(url).messages.stream(model=model, messages=conversation, max_tokens=MOST, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    expect(text, wanted)
    expect([b.text for b in final.content], [wanted])
    expect(final.usage.output_tokens > 0 and final.usage.cache_read_input_tokens > 0, True)


# As openai_responses_reasoning; thinking that is sent back is taken.
def anthropic_thinking(url, model, wanted):
    ask = {"model": model, "messages": CONVERSATION, "max_tokens": 100, "extra_body": {"regex": "<think>[ab]{4}</think>[xy]{3}", "temperature": 0}}
    c = open_anthropic(url)
    whole = c.messages.create(**ask)
    with c.messages.stream(**ask) as stream:
        thought = "".join(event.thinking for event in stream if event.type == "thinking")
        last = stream.get_final_message()
    for r in (whole, last):
        expect([block.type for block in r.content], ["thinking", "text"])
        expect((r.content[0].thinking, set(r.content[1].text) <= set("xy"), len(r.content[1].text)), (thought, True, 3))
    expect(len(thought), 4)
    again = CONVERSATION + [{"role": "assistant", "content": [block.model_dump() for block in whole.content]}, {"role": "user", "content": "So?"}]
    expect(c.messages.create(**ask | {"messages": again}).content[1].type, "text")


def anthropic_count(url, model, wanted):
    c = open_anthropic(url)
    r = c.messages.create(model=model, messages=CONVERSATION, system="Be brief", max_tokens=1)
    expect(c.messages.count_tokens(model=model, messages=CONVERSATION, system="Be brief").input_tokens, r.usage.input_tokens + r.usage.cache_read_input_tokens)


def anthropic_stops(url, model, wanted):
    stop = wanted[len(wanted) // 2:len(wanted) // 2 + 3]
    r = open_anthropic(url).messages.create(model=model, messages=CONVERSATION, max_tokens=MOST, stop_sequences=["none such", stop], extra_body={"temperature": 0})
    expect((r.stop_reason, r.stop_sequence), ("stop_sequence", stop))
    expect(r.content[0].text, wanted[:wanted.index(stop)])


def anthropic_tools(url, model, wanted):
    """A call, streamed, and its result."""
    c, ask = open_anthropic(url), {"model": model, "max_tokens": 100, "extra_body": {"temperature": 0}}
    tool = {"name": "weather", "description": "The weather.", "input_schema": CITY, "cache_control": {"type": "ephemeral"}}
    with c.messages.stream(**ask, messages=CONVERSATION, tools=[tool], tool_choice={"type": "any", "disable_parallel_tool_use": True}) as stream:
        partial = "".join(e.delta.partial_json for e in stream if e.type == "content_block_delta" and e.delta.type == "input_json_delta")
        final = stream.get_final_message()
    [use] = final.content
    expect((final.stop_reason, use.type, use.name, use.input), ("tool_use", "tool_use", "weather", json.loads(partial)))
    expect(use.input["city"] in ("Rome", "Oslo"), True)
    conversation = CONVERSATION + [{"role": "assistant", "content": [use.model_dump(include={"type", "id", "name", "input"})]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "warm"}]}]}]
    r = c.messages.create(**ask, messages=conversation, tools=[tool])
    count = c.messages.count_tokens(model=model, messages=conversation, tools=[tool]).input_tokens
    expect(count, r.usage.input_tokens + r.usage.cache_read_input_tokens)


def anthropic_errors(url, model, wanted):
    import anthropic
    c, ask = open_anthropic(url), {"model": model, "messages": CONVERSATION, "max_tokens": MOST}
    image = [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}]}]
    expect_error(anthropic.BadRequestError, 400, "image", lambda: c.messages.create(**ask | {"messages": image}))
    expect_error(anthropic.NotFoundError, 404, "there is no model 'none'", lambda: c.messages.create(**ask | {"model": "none"}))
    expect_error(anthropic.AuthenticationError, 401, "API key", lambda: open_anthropic(url, "another-key-0123456789").messages.create(**ask))


def hub_chat_plain(url, model, wanted):
    r = open_hub(url).chat_completion(model=model, messages=CONVERSATION, max_tokens=MOST, temperature=0)
    expect(r.choices[0].message.content, wanted)


def hub_chat_stream(url, model, wanted):
    client = open_hub(url)  # it closes its streams when it goes
    chunks = client.chat_completion(model=model, messages=CONVERSATION, max_tokens=MOST, temperature=0, stream=True)
    expect("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), wanted)


def langchain_chat_plain(url, model, wanted):
    expect(open_langchain(url, model).invoke(CONVERSATION[0]["content"]).content, wanted)


def langchain_chat_stream(url, model, wanted):
    expect("".join(c.content for c in open_langchain(url, model).stream(CONVERSATION[0]["content"])), wanted)


def open_langchain(url, model):
    try:
        from langchain_openai import ChatOpenAI
    except ImportError as e:
        raise Skip("langchain-openai is not installed") from e
    return ChatOpenAI(base_url=url + "/v1", api_key=KEY, model=model, temperature=0, max_tokens=MOST, max_retries=0)


def open_litellm():
    try:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would load one from the network
        import litellm
    except ImportError as e:
        raise Skip("litellm is not installed") from e
    return litellm


def litellm_chat_plain(url, model, wanted):
    r = open_litellm().completion(model="openai/" + model, api_base=url + "/v1", api_key=KEY, messages=CONVERSATION, max_tokens=MOST, temperature=0)
    expect(r.choices[0].message.content, wanted)


def litellm_chat_stream(url, model, wanted):
    chunks = open_litellm().completion(model="openai/" + model, api_base=url + "/v1", api_key=KEY, messages=CONVERSATION, max_tokens=MOST, temperature=0, stream=True)
    expect("".join(c.choices[0].delta.content or "" for c in chunks), wanted)


def agents_run(url, model, wanted):
    """openai-agents: an agent whose first turn has to call its function; it gets the result and answers."""
    try:
        import agents
    except ImportError as e:
        raise Skip("openai-agents is not installed") from e
    import openai
    agents.set_tracing_disabled(True)
    called = []

    @agents.function_tool
    def weather(days: int) -> str:
        """The weather of some days."""
        called.append(days)
        return "warm"

    client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    settings = agents.ModelSettings(temperature=0, max_tokens=100, tool_choice="required")
    agent = agents.Agent("a", instructions="Be brief.", tools=[weather], model=agents.OpenAIChatCompletionsModel(model, client), model_settings=settings)
    result = agents.Runner.run_sync(agent, CONVERSATION[0]["content"], max_turns=3)
    expect(len(called) > 0, True)
    expect(type(result.final_output), str)


def run_curl(url, path, body):
    if not shutil.which("curl"):
        raise Skip("curl is not installed")
    command = ["curl", "-sS", "--fail-with-body", "-N", url + path, "-H", "Content-Type: application/json", "-H", "Authorization: Bearer " + KEY]
    return subprocess.run(command + ["-d", json.dumps(body)], check=True, capture_output=True, text=True).stdout


def curl_chat_plain(url, model, wanted):
    answer = json.loads(run_curl(url, "/v1/chat/completions", {"messages": CONVERSATION, "max_tokens": MOST, "temperature": 0}))
    expect(answer["choices"][0]["message"]["content"], wanted)


def curl_chat_stream(url, model, wanted):
    events = run_curl(url, "/v1/chat/completions", {"messages": CONVERSATION, "max_tokens": MOST, "temperature": 0, "stream": True}).split("\n\n")
    expect(events[-2:], ["data: [DONE]", ""])
    expect("".join(json.loads(e[6:])["choices"][0]["delta"].get("content", "") for e in events[:-2]), wanted)


def curl_completion_plain(url, model, wanted):
    answer = json.loads(run_curl(url, "/v1/completions", {"prompt": CONVERSATION[0]["content"], "max_tokens": MOST, "temperature": 0}))
    expect(answer["choices"][0]["text"], CONTINUED["text"])


def curl_completion_stream(url, model, wanted):
    events = run_curl(url, "/v1/completions", {"prompt": CONVERSATION[0]["content"], "max_tokens": MOST, "temperature": 0, "stream": True}).split("\n\n")
    expect(events[-2:], ["data: [DONE]", ""])
    expect("".join(json.loads(e[6:])["choices"][0]["text"] for e in events[:-2]), CONTINUED["text"])


def prometheus_metrics(url, model, wanted):
    """prometheus_client's strict reader of the text format, and the counts of an answer."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as e:
        raise Skip("prometheus_client is not installed") from e
    import urllib.request

    def read():
        request = urllib.request.Request(url + "/metrics", headers={"Authorization": "Bearer " + KEY})
        with urllib.request.urlopen(request) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        expect(len({f.name for f in families}), len(families))
        for family in families:
            expect((family.type in ("counter", "gauge", "histogram"), bool(family.documentation), bool(family.samples)), (True, True, True))
        return {(s.name, s.labels.get("finished_reason"), s.labels.get("le")): s.value for f in families for s in f.samples}

    before = read()
    usage = open_openai(url).completions.create(model=model, prompt=CONVERSATION[0]["content"], max_tokens=MOST, temperature=0).usage
    after = read()
    for name, n in (("prompt", usage.prompt_tokens), ("generation", usage.completion_tokens)):
        expect(after[f"mneme_{name}_tokens_total", None, None] - before[f"mneme_{name}_tokens_total", None, None], n)
    expect(after["mneme_e2e_request_latency_seconds_bucket", None, "+Inf"] - before["mneme_e2e_request_latency_seconds_bucket", None, "+Inf"], 1)


def transcribe(url, **more):
    with open(SPEECH["file"], "rb") as f:
        return open_openai(url).audio.transcriptions.create(file=f, model=SPEECH["model"], **more)


def openai_speech_plain(url, model, wanted):
    r = transcribe(url)
    expect(r.text, SPEECH["text"])
    expect(r.usage.seconds, SPEECH["seconds"])


def openai_speech_words(url, model, wanted):
    r = transcribe(url, response_format="verbose_json", timestamp_granularities=["segment", "word"], temperature=0)
    expect((r.text, r.duration), (SPEECH["text"], SPEECH["seconds"]))
    expect("".join(s.text for s in r.segments).strip(), SPEECH["text"])
    expect([(w.word, w.start, w.end) for w in r.words], SPEECH["words"])


def openai_speech_stream(url, model, wanted):
    events = list(transcribe(url, stream=True))
    expect("".join(e.delta for e in events if e.type == "transcript.text.delta"), SPEECH["text"])
    expect((events[-1].type, events[-1].text), ("transcript.text.done", SPEECH["text"]))


def openai_speech_errors(url, model, wanted):
    import openai
    client = open_openai(url).audio
    expect_error(openai.BadRequestError, 400, "cannot be read as audio", lambda: client.transcriptions.create(file=("a.wav", b"no audio at all, though it is long enough"), model=SPEECH["model"]))
    expect_error(openai.NotFoundError, 404, "there is no speech model", lambda: client.transcriptions.create(file=("a.wav", b"RIFF"), model="whisper-1"))
    expect_error(openai.AuthenticationError, 401, "API key", lambda: open_openai(url, "another-key-0123456789").audio.translations.create(file=("a.wav", b"RIFF"), model="a"))


CONTINUED = {}  # what `mneme run` says to the text itself: text
SPEECH = {}  # what is transcribed: file, model, and what `mneme transcribe` says: text, seconds, words

CASES = [openai_speech_plain, openai_speech_words, openai_speech_stream, openai_speech_errors, openai_chat_plain, openai_chat_stream, openai_completion_plain,
         openai_completion_stream, openai_responses_plain, openai_responses_stream, openai_responses_continued, openai_responses_schema, openai_responses_reasoning,
         openai_responses_tools, openai_chat_tools, openai_errors, anthropic_messages_plain, anthropic_messages_stream, anthropic_thinking, anthropic_count, anthropic_stops, anthropic_tools, anthropic_errors, hub_chat_plain,
         hub_chat_stream, langchain_chat_plain, langchain_chat_stream, litellm_chat_plain, litellm_chat_stream, agents_run, curl_chat_plain, curl_chat_stream, curl_completion_plain, curl_completion_stream,
         prometheus_metrics]


def busy_servers_say_so(mneme, model, name, keys):
    """Both clients raise RateLimitError while the queue is full."""
    import anthropic
    import openai
    server = Server(mneme, model, keys, "--max-queue", "1")
    url = f"http://127.0.0.1:{server.port}"
    try:
        long = open_openai(url).chat.completions.create(model=name, messages=CONVERSATION, max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
        next(iter(long))
        expect_error(openai.RateLimitError, 429, "are not taken now", lambda: open_openai(url).chat.completions.create(model=name, messages=CONVERSATION))
        expect_error(anthropic.RateLimitError, 429, "rate_limit_error", lambda: open_anthropic(url).messages.create(model=name, messages=CONVERSATION, max_tokens=1))
        long.close()
    finally:
        server.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mneme")
    parser.add_argument("model")
    parser.add_argument("--record")
    parser.add_argument("--only", default="", help="a regular expression of names of cases")
    a = parser.parse_args()
    counts = {"passed": 0, "failed": 0, "skipped": 0}

    def run(name, case):
        try:
            case()
            counts["passed"] += 1
        except Skip as e:
            counts["skipped"] += 1
            print(f"  {name}: skipped: {e}")
        except Exception as e:
            counts["failed"] += 1
            print(f"  {name}: {type(e).__name__}: {e}")

    with tempfile.TemporaryDirectory() as work:
        model = tiny_model(work) if a.model == "tiny" else a.model
        name = os.path.basename(model)
        keys, conversation = os.path.join(work, "keys"), os.path.join(work, "conversation.json")
        with open(keys, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
            f.write(KEY + "\n")
        with open(conversation, "w") as f:
            json.dump(CONVERSATION, f)
        said = subprocess.run([a.mneme, "run", model, "--messages", conversation, "-n", str(MOST), "--greedy", "--json"], check=True, capture_output=True)
        wanted = json.loads(said.stdout)["sequences"][0]["text"]
        said = subprocess.run([a.mneme, "run", model, "--raw", CONVERSATION[0]["content"], "-n", str(MOST), "--greedy", "--json"], check=True, capture_output=True)
        CONTINUED.update(text=json.loads(said.stdout)["sequences"][0]["text"])
        speech = os.path.join(os.environ["MNEME_TEST_MODELS"], "whisper-tiny.en")
        if a.model == "tiny" or not os.path.exists(speech):
            speech = tiny_speech(work)
        SPEECH.update(file=short_recording(work, 0.8 if a.model == "tiny" else 60), model=os.path.basename(speech))
        transcript = subprocess.run([a.mneme, "transcribe", "-m", speech, SPEECH["file"], "--timestamps", "word", "--json"], check=True, capture_output=True)
        transcript = json.loads(transcript.stdout)
        words = [(w["word"].lstrip(" "), w["start"], w["end"]) for s in transcript["segments"] for w in s["words"]]
        SPEECH.update(text=transcript["text"].lstrip(" "), seconds=transcript["duration"], words=words)
        server = Server(a.mneme, model, keys, "--speech-model", speech)
        relay = Relay(server.port, a.record) if a.record else None
        url = f"http://127.0.0.1:{relay.port if relay else server.port}"
        for case in (case for case in CASES if re.search(a.only, case.__name__) and (a.model == "tiny" or not re.search("tools|agents", case.__name__))):  # SmolLM2's template takes no tools
            if relay:
                relay.name = None if re.search("errors|continued|schema|stops|langchain|litellm|agents|prometheus", case.__name__) else case.__name__.replace("_", "-")
                if relay.name and relay.name.endswith("-tools"):
                    relay.name = "tools/" + relay.name
                if relay.name and "-speech-" in relay.name:
                    relay.name = "speech/" + relay.name
            run(case.__name__, lambda case=case: case(url, name, wanted))
        server.close()
        if a.model != "tiny" and "litellm" not in os.path.basename(sys.prefix):  # whose texts end at once
            run("busy_servers_say_so", lambda: busy_servers_say_so(a.mneme, model, name, keys))
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return counts["failed"] != 0


if __name__ == "__main__":
    sys.exit(main())
