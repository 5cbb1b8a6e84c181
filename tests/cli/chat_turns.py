"""`mneme chat`: what a conversation computes, every command, on pipes and on a terminal. usage: chat_turns.py MNEME

The embedded model has no chat template; its files with a template of our own make the second model here. Oracles are `mneme run` (each
turn alone, without a past) and the arithmetic of tokens: what was computed is cached, nothing more and nothing less.
SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import re
import shutil
import signal
import stat
import sys
import time

from chat_driver import (ENV, WORK, SMOLLM2, Skip, Terminal, answer_of, background, chat, messages_of, mneme, plain, prompt_of, run,
                         template_model, turns)

SIXTY = ["--min-new-tokens", "60", "-n", "60"]  # answers of that many tokens, none of them special
TEMPLATE = None  # the folder of the model with a template


def computed(turn):
    """The tokens of a session after a turn: the prompt and the answer except its last token, which was not fed yet."""
    return len(prompt_of(turn)) + len(answer_of(turn)) - 1


def assert_said(folder, wanted):
    """The user's messages of a saved conversation."""
    said = [m[1] for m in messages_of(folder) if m[0] == "user"]
    assert said == wanted, said


# ---- computed and cached tokens ----


def second_turn_computes_what_is_new():
    for model in (TEMPLATE, "embedded"):
        replies, _ = turns(model, "-n", "12", lines=["Tell me of a cat", "And of a dog?", "And of both?"])
        assert replies[0]["usage"]["cached_tokens"] == 0
        for before, after in zip(replies, replies[1:]):
            assert after["usage"]["cached_tokens"] == computed(before), (model, after["usage"], computed(before))
            held = prompt_of(before) + answer_of(before)
            assert prompt_of(after)[:len(held)] == held
            assert after["usage"]["prompt_tokens"] == len(prompt_of(after))


def answers_are_those_of_a_run_without_past():
    lines = ["Tell me of a cat", "And of a dog?", "What did they say?"]
    for cache in ("dynamic", "static", "none", "offloaded"):
        replies, _ = turns(TEMPLATE, "-n", "20", "--cache", cache, lines=lines)
        for turn in replies:
            ids = ",".join(map(str, prompt_of(turn)))
            alone = mneme("run", TEMPLATE, "--ids", ids, "-n", "20", "--json").objects()[0]
            assert answer_of(turn) == answer_of(alone), cache


def every_way_of_decoding_goes_on():
    for way in (["--num-beams", "3"], ["--num-beams", "4", "--num-beam-groups", "2", "--diversity-penalty", "0.5"], ["--prompt-lookup-num-tokens", "3"],
                ["--do-sample", "--seed", "3"]):
        replies, _ = turns(TEMPLATE, "-n", "16", *way, lines=["Tell me of a cat", "And of a dog?"])
        assert replies[1]["usage"]["cached_tokens"] == computed(replies[0]), way
        ids = ",".join(map(str, prompt_of(replies[1])))
        alone = mneme("run", TEMPLATE, "--ids", ids, "-n", "16", *way, "--json").objects()[0]
        assert answer_of(replies[1]) == answer_of(alone), way
        shown = chat(TEMPLATE, "-n", "16", *way, lines=["Tell me of a cat"])
        assert shown.out.strip() == replies[0]["sequences"][0]["text"].strip(), (way, shown.out)


def rendered_conversation_gives_the_same_prompt():
    replies, _ = turns(TEMPLATE, "-n", "20", lines=["Tell me of a cat", "And of a dog?"])
    path = os.path.join(WORK, "messages.json")
    import json
    with open(path, "w") as f:
        json.dump([{"role": "user", "content": "Tell me of a cat"}, {"role": "assistant", "content": replies[0]["sequences"][0]["text"]},
                   {"role": "user", "content": "And of a dog?"}], f)
    alone = mneme("run", TEMPLATE, "--messages", path, "-n", "20", "--json").objects()[0]
    assert prompt_of(replies[1]) == prompt_of(alone)
    assert answer_of(replies[1]) == answer_of(alone)


def generated_ids_are_kept():
    """At high temperature ids differ from the tokenization of their text; the next prompt keeps the generated ids."""
    differ = 0
    for seed in range(12):
        replies, _ = turns(TEMPLATE, "-n", "24", "--do-sample", "--temperature", "3", "--top-k", "0", "--seed", str(seed), lines=["Tell me", "More"])
        held = prompt_of(replies[0]) + answer_of(replies[0])
        text = mneme("tokenize", TEMPLATE, "--decode", "--ids", ",".join(map(str, prompt_of(replies[1])))).out
        fresh = mneme("tokenize", TEMPLATE, "-p", text.rstrip("\n"), "--no-special-tokens").out.strip()
        differ += fresh != ",".join(map(str, prompt_of(replies[1])))
        if any(i < 3 for i in answer_of(replies[0])): # special tokens in the middle are not shown, and so not rendered again
            continue
        kept = 0
        while kept < len(held) and prompt_of(replies[1])[kept] == held[kept]:
            kept += 1
        # An answer that ends in the middle of a character cannot be kept to its end.
        assert kept >= len(held) - 4, (seed, kept, len(held))
        assert replies[1]["usage"]["cached_tokens"] == min(kept, computed(replies[0]))
    assert differ >= 4, f"only {differ} of 12 answers were cut otherwise than generated"


def answers_end_with_the_context_alone():
    """No limit is built in, and one that was set can be taken away."""
    replies, err = turns(TEMPLATE, "--ignore-eos", lines=["Tell me of a cat"])
    assert len(prompt_of(replies[0])) + len(answer_of(replies[0])) == 512 and "the answer was cut: the conversation has 512 tokens" in err, err
    replies, _ = turns(TEMPLATE, "--ignore-eos", "-n", "5", lines=["Tell me of a cat", "/set n=null", "And of a dog?"])
    assert len(answer_of(replies[0])) == 5 and len(answer_of(replies[1])) > 256


def undo_computes_nothing_again():
    replies, err = turns(TEMPLATE, "-n", "12", lines=["Tell me of a cat", "And of a dog?", "/undo", "And of a dog?", "/undo", "/undo", "Tell me of a cat"])
    assert "taken back" in err
    assert prompt_of(replies[1]) == prompt_of(replies[2]) and answer_of(replies[1]) == answer_of(replies[2])
    assert replies[2]["usage"]["cached_tokens"] == len(prompt_of(replies[0])) + len(answer_of(replies[0])) # the first turn, all of it
    # Back to the start: what every conversation begins with ("<s>user:") is held, the text is computed.
    assert answer_of(replies[3]) == answer_of(replies[0])
    assert 0 < replies[3]["usage"]["cached_tokens"] < len(prompt_of(replies[0])) - 1


def clear_keeps_the_system_message():
    system = "You are a cat that tells stories to children every evening."
    replies, _ = turns(TEMPLATE, "-n", "8", "--system", system, lines=["Hello", "Who are you?", "/clear", "Hello"])
    assert prompt_of(replies[2]) == prompt_of(replies[0])
    assert replies[2]["usage"]["cached_tokens"] > 20, "the system message was computed again"


def regen_crops_and_draws_anew():
    options = ["-n", "16", "--do-sample", "--seed", "7"]
    replies, err = turns(TEMPLATE, *options, lines=["Tell me of a cat", "And of a dog?", "/regen", "/regen", "More"])
    assert [t["seed"] for t in replies] == [7, 7, 8, 9, 7]
    assert prompt_of(replies[1]) == prompt_of(replies[2]) == prompt_of(replies[3])
    assert len({tuple(answer_of(t)) for t in replies[1:4]}) == 3
    assert replies[2]["usage"]["cached_tokens"] == len(prompt_of(replies[1])) - 1 # its last token is fed for its logits
    assert prompt_of(replies[4])[:len(prompt_of(replies[3]))] == prompt_of(replies[3])
    assert replies[4]["usage"]["cached_tokens"] == computed(replies[3])
    _, err = turns(TEMPLATE, "-n", "4", lines=["Hello", "/regen"])
    assert "will be the same" in err


def edit_replaces_the_last_message():
    folder = os.path.join(WORK, "edited")
    replies, _ = turns(TEMPLATE, "-n", "12", lines=["Tell me of a cat", "And of a dog?", "/edit And of a bird?", f"/save {folder}"])
    alone, _ = turns(TEMPLATE, "-n", "12", lines=["Tell me of a cat", "And of a bird?"])
    assert prompt_of(replies[2]) == prompt_of(alone[1]) and answer_of(replies[2]) == answer_of(alone[1])
    assert_said(folder, ["Tell me of a cat", "And of a bird?"])
    assert replies[2]["usage"]["cached_tokens"] >= len(prompt_of(replies[0])) + len(answer_of(replies[0]))
    _, err = turns(TEMPLATE, lines=["/edit", "/edit x"])
    assert err.count("write a message first") == 2


# ---- files ----


def save_and_load_go_on():
    folder = os.path.join(WORK, "saved conversation")
    whole, _ = turns(TEMPLATE, "-n", "16", "--repetition-penalty", "1.25", lines=["Tell me of a cat", "And of a dog?", "And of both?"])
    turns(TEMPLATE, "-n", "16", "--repetition-penalty", "1.25", lines=["Tell me of a cat", "And of a dog?", f"/save {folder}"])
    assert sorted(os.path.splitext(n)[1] for n in os.listdir(folder)) == [".json", ".safetensors"]
    for way in (["--load", folder], []):
        lines = ([] if way else ["Something else", f"/load {folder}"]) + ["/set repetition-penalty", "And of both?"]
        replies, err = turns(TEMPLATE, *way, lines=lines)
        assert "repetition_penalty=1.25" in err
        assert prompt_of(replies[-1]) == prompt_of(whole[2]) and answer_of(replies[-1]) == answer_of(whole[2])
        assert replies[-1]["usage"]["cached_tokens"] == whole[2]["usage"]["cached_tokens"] == computed(whole[1])
    # Undo removes turns from before the loading; saving again leaves one cache file.
    replies, _ = turns(TEMPLATE, "--load", folder, "--save", folder, lines=["/undo", "And of a dog?"])
    assert answer_of(replies[0]) == answer_of(whole[1])
    assert replies[0]["usage"]["cached_tokens"] == len(prompt_of(whole[0])) + len(answer_of(whole[0]))
    assert len(os.listdir(folder)) == 2
    replies, _ = turns(TEMPLATE, "--load", folder, "-n", "5", lines=["And of both?"])
    assert len(answer_of(replies[0])) == 5, "a flag takes precedence over a saved setting"


def saved_caches_of_every_kind_load():
    for cache in ("static", "offloaded", "sink --cache-config window_length=64", "none"):
        folder = os.path.join(WORK, "kind")
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--cache", *cache.split()]
        turns(TEMPLATE, "-n", "8", *options, "--save", folder, lines=["Hello", "Who are you?"])
        replies, err = turns(TEMPLATE, "--load", folder, lines=["/cache", "And then?"])
        whole, _ = turns(TEMPLATE, "-n", "8", *options, lines=["Hello", "Who are you?", "And then?"])
        assert answer_of(replies[0]) == answer_of(whole[2]), cache
        if cache != "none":
            assert replies[0]["usage"]["cached_tokens"] == whole[2]["usage"]["cached_tokens"] > 0, cache
            assert cache.split()[0] + " cache" in err


def what_does_not_fit_is_refused():
    folder, other = os.path.join(WORK, "good"), template_model("other", flip=True)
    turns(TEMPLATE, "-n", "8", "--save", folder, lines=["Hello", "Who are you?"])
    result = chat(other, "--load", folder, lines=["Hello"], code=6)
    assert result.err.count("\n") == 1 and result.out == "", result.err
    for harm in ("cut", "flip", "gone", "text", "ids", "role", "empty"):
        bad = os.path.join(WORK, "bad " + harm)
        shutil.copytree(folder, bad)
        cache = os.path.join(bad, [n for n in os.listdir(bad) if n.startswith("cache-")][0])
        text = os.path.join(bad, "conversation.json")
        with open(text) as f:
            content = f.read()
        if harm == "cut":
            os.truncate(cache, os.path.getsize(cache) // 2)
        elif harm == "flip":
            with open(cache, "r+b") as f:
                f.seek(-100, 2)
                byte = f.read(1)
                f.seek(-100, 2)
                f.write(bytes([byte[0] ^ 64]))
        elif harm == "gone":
            os.remove(cache)
        else:
            change = {"text": ('"format"', '"forma"'), "ids": ('"ids":[', '"ids":[5,'), "role": ('"role":"user"', '"role":"ghost"'),
                      "empty": (content, "")}[harm]
            assert change[0] in content
            with open(text, "w") as f:
                f.write(content.replace(change[0], change[1], 1))
        replies, err = turns(TEMPLATE, "-n", "8", lines=["Hello", f"/load {bad}", "Who are you?"])
        assert len([l for l in err.splitlines() if l.startswith("mneme: ")]) == 1, (harm, err)
        error = [t for t in replies if "error" in t]
        replies = [t for t in replies if "error" not in t]
        assert len(error) == 1 and len(replies) == 2, harm
        assert replies[1]["usage"]["cached_tokens"] == computed(replies[0]), f"{harm}: the live replies changed"
    result = chat(TEMPLATE, lines=["/load " + WORK + "/absent", "/load", "/save", "/save " + TEMPLATE, "/save /proc/nothing/x"])
    assert len(result.err.splitlines()) == 5, result.err
    assert "holds other files" in result.err and "the folder is missing: /save" in result.err


def save_writes_the_old_or_the_new():
    """When a folder cannot be written the previous save is unchanged."""
    folder = os.path.join(WORK, "kept")
    turns(TEMPLATE, "-n", "8", "--save", folder, lines=["Hello"])
    before = sorted(os.listdir(folder))
    import resource
    import subprocess
    from chat_driver import MNEME
    done = subprocess.run([MNEME, "chat", TEMPLATE, "-n", "8", "--load", folder, "--save", folder], input=b"Who are you?\n", capture_output=True, env=ENV,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1, done.stderr
    assert sorted(os.listdir(folder)) == before
    replies, _ = turns(TEMPLATE, "--load", folder, lines=["Who are you?"])
    assert replies[0]["usage"]["cached_tokens"] > 0


def run_options_for_caches_work():
    cache, folder = os.path.join(WORK, "prefix.safetensors"), os.path.join(WORK, "prefixes")
    first, _ = turns(TEMPLATE, "-n", "8", "--save-cache", cache, "--cache-dir", folder, lines=["Hello"])
    for options in (["--load-cache", cache], ["--cache-dir", folder]):
        replies, _ = turns(TEMPLATE, "-n", "8", *options, lines=["Hello"])
        assert answer_of(replies[0]) == answer_of(first[0])
        assert replies[0]["usage"]["cached_tokens"] == len(prompt_of(first[0])) - 1, options
    chat(TEMPLATE, "--load-cache", cache, "--cache-dir", folder, lines=[], code=2)


# ---- branches ----


def forks_share_and_part():
    lines = ["Tell me of a cat", "/fork other", "And of a dog?", "/switch main", "And of a bird?", "/switch", "More", "/switch main", "More"]
    replies, err = turns(TEMPLATE, "-n", "12", lines=lines)
    for names, at in ((["Tell me of a cat", "And of a dog?", "More"], (0, 1, 3)), (["Tell me of a cat", "And of a bird?", "More"], (0, 2, 4))):
        alone, _ = turns(TEMPLATE, "-n", "12", lines=names)
        for turn, i in zip(alone, at):
            assert answer_of(replies[i]) == answer_of(turn)
            assert replies[i]["usage"]["cached_tokens"] == turn["usage"]["cached_tokens"]
    assert "branch 'other'" in err
    _, err = turns(TEMPLATE, "-n", "4", lines=["/switch", "/fork a", "/fork a", "/fork", "/switch b", "/switch man", "/stats"])
    assert "one branch only" in err and "already" in err and "did you mean main?" in err
    assert "* 3: " in err, err


# ---- caches ----


def caches_change_in_place():
    lines = ["Tell me of a cat", "/cache offloaded", "And of a dog?", "/cache", "/cache dynamic", "And of both?"]
    replies, err = turns(TEMPLATE, "-n", "12", lines=lines)
    same, _ = turns(TEMPLATE, "-n", "12", lines=["Tell me of a cat", "And of a dog?", "And of both?"])
    for turn, other in zip(replies, same):
        assert answer_of(turn) == answer_of(other) and turn["usage"] == other["usage"]
    assert [t["cache"]["implementation"] for t in replies] == ["dynamic", "offloaded", "dynamic"]
    assert err.count("offloaded cache") == 2
    # Errors are one sentence, and the conversation continues.
    replies, err = turns(TEMPLATE, "-n", "8", lines=["Hello", "/cache paper", "/cache sink window_length=4", "/cache static max_cache_len=3", "/cache none", "Go on"])
    assert len([t for t in replies if "error" in t]) == 4 and len(err.splitlines()) == 4, err
    assert replies[-1]["usage"]["cached_tokens"] == computed(replies[0])
    # An empty session can change to any cache.
    replies, _ = turns(TEMPLATE, "-n", "8", lines=["/cache none", "Hello", "Go on"])
    assert replies[1]["usage"]["cached_tokens"] == 0 and replies[1]["cache"]["implementation"] == "none"


def a_window_that_dropped_tokens_names_the_cache_that_keeps_it():
    lines = ["Tell me of a cat"] * 6
    window = ["--cache", "sink", "--cache-config", "window_length=64,num_sink_tokens=3,page_tokens=16"]
    replies, _ = turns(TEMPLATE, *SIXTY, *window, lines=lines + ["/cache offloaded page_tokens=16"])
    message = replies[-1]["error"]["message"]
    advice = re.search(r"`(/cache sink\+offloaded [^`]*)` keeps the window", message)
    assert advice, message
    # The advice works, and the answers stay those of the sink cache.
    replies, err = turns(TEMPLATE, *SIXTY, *window, lines=lines + [advice.group(1)] + lines)
    alone, _ = turns(TEMPLATE, *SIXTY, *window, lines=lines + lines)
    assert [answer_of(t) for t in replies] == [answer_of(t) for t in alone], err
    assert replies[-1]["cache"]["implementation"] == "sink+offloaded"
    # Nothing is named that is none: this cache has no window, this name cannot be joined.
    replies, err = turns(TEMPLATE, "-n", "8", lines=["Hello", "/cache none"])
    assert "keeps the window" not in err
    replies, err = turns(TEMPLATE, *SIXTY, *window, lines=lines + ["/cache dynamic page_tokens=16"])
    assert "error" in replies[-1] and "keeps the window" not in err


def wide_heads():
    """The model with a template, its weights read as fewer heads of 16 numbers, which can be quantized."""
    folder = template_model("wide-heads")
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump({**config, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}, f)
    return folder


def quantized_tells_what_is_still_exact():
    model = wide_heads()
    result = chat(model, *SIXTY, "--cache-config", "page_tokens=16", "--max-cache-len", "2000", lines=["Hello", "/cache quantized page_tokens=16,residual_length=32", "Go on", "/cache"])
    told = re.findall(r"quantized cache .*: (\d+) tokens in .*\n  (\d+) of these tokens \((\d+) %\) are still exact: .*residual_length.*memory shrinks", result.err)
    assert len(told) == 2, result.err
    for tokens, exact, share in told:
        # The first tokens are exact, and of the others those of pages that are not 32 tokens old.
        coded = (int(tokens) // 16 * 16 - 32) // 16 * 16
        assert 0 < int(exact) == int(tokens) - max(coded - 4, 0) and int(share) == int(exact) * 100 // int(tokens), told
    result = chat(model, *SIXTY, lines=["Hello", "/cache quantized backend=quanto,nbits=4", "/cache"])
    assert result.err.count("are still exact: they are quantized when there are residual_length of them") == 2, result.err
    assert "still exact" not in chat(model, "-n", "8", lines=["Hello", "/cache"]).err


def context_ends_with_advice():
    lines = ["Tell me of a cat"] * 12
    replies, err = turns(TEMPLATE, *SIXTY, lines=lines)
    good, bad = [t for t in replies if "error" not in t], [t for t in replies if "error" in t]
    assert 4 <= len(good) < 12 and bad and max(computed(t) for t in good) <= 512
    assert all("/clear" in t["error"]["message"] and "/cache sink" in t["error"]["message"] and "--max-cache-len" in t["error"]["message"] for t in bad)
    # The advice works, with what is held.
    replies, err = turns(TEMPLATE, *SIXTY, lines=lines + ["/cache sink window_length=256"] + lines)
    after = [t for t in replies if "error" not in t][len(good):]
    assert len(after) == 12 and after[0]["usage"]["cached_tokens"] == computed(good[-1])
    replies, _ = turns(TEMPLATE, *SIXTY, "--max-cache-len", "4000", lines=lines)
    assert not [t for t in replies if "error" in t]


LIMITED = ("-n", "200", "--min-new-tokens", "200", "--max-cache-len", "100000", "--memory-limit", "2M",
           "-t", "2") # each thread has a buffer, which the limit includes


def memory_that_ends_is_one_sentence():
    lines = ["Tell me of a cat"] * 12 + ["/clear", "Hello"]
    replies, _ = turns(TEMPLATE, *LIMITED, lines=lines)
    kinds = ["error" in t for t in replies]
    assert kinds[0] is False and kinds[-2] is True and kinds[-1] is False and replies[-2]["error"]["code"] == "out_of_memory", kinds
    assert "--on-oom offload or evict converts the cache" in replies[-2]["error"]["message"], replies[-2]
    # The conversation continues without the failed message.
    good = [t for t in replies if "error" not in t]
    assert good[-1]["usage"]["cached_tokens"] < 10
    replies, err = turns(TEMPLATE, *LIMITED, "--on-oom", "evict", lines=lines[:12])
    assert len(replies) == 12 and "out of memory: switched the cache from" in err


def sink_never_ends_in_flat_memory():
    replies, err = turns(TEMPLATE, *SIXTY, "--cache", "sink", "--cache-config", "window_length=128", lines=["Tell me of a cat"] * 40)
    assert len(replies) == 40 and err == "", err
    assert len(prompt_of(replies[-1])) > 4 * 512
    for before, after in zip(replies, replies[1:]):
        assert after["usage"]["cached_tokens"] == computed(before)
    sizes = [t["cache"]["bytes"] for t in replies] # whole pages, so they go up and down
    assert max(sizes[24:]) <= max(sizes[4:24]), sizes


def what_cannot_go_back_is_computed_and_said():
    lines = ["Tell me of a cat"] * 4 + ["/undo", "/undo", "/undo", "And then?"]
    replies, err = turns(TEMPLATE, *SIXTY, "--cache", "sliding_window", "--cache-config", "window_length=32,page_tokens=16", lines=lines)
    alone = mneme("run", TEMPLATE, "--ids", ",".join(map(str, prompt_of(replies[-1]))), *SIXTY, "--cache", "sliding_window",
                  "--cache-config", "window_length=32,page_tokens=16", "--json").objects()[0]
    assert answer_of(replies[-1]) == answer_of(alone)
    assert replies[-1]["usage"]["cached_tokens"] < computed(replies[0])
    assert "computed again" in err, err


# ---- settings and the like ----


def settings_are_those_of_the_flags():
    # What was changed, by flags or commands, and nothing else; each change is confirmed by a line of its own.
    said = [["  (no setting was changed)"], ["  max_new_tokens=5"], ["  top_k=7", "  do_sample=true"], ["  do_sample=false"], ["  top_p=0.5"],
            ["  temperature=1"], ["  top_p=0.6", "  do_sample=true"], ["  temperature=1", "  do_sample=false"], ['  stop_strings=["END"]'],
            ["  max_new_tokens=5", '  stop_strings=["END"]', "  top_k=7", "  top_p=0.6"]]
    result = chat(TEMPLATE, lines=["/set", "/set n=5", "/set top-k=7", "/set do_sample=false", "/set top_p=0.5", "/set temperature=0", "/set top_p=0.6", "/set temp=0",
                                   "/set stop=END", "/set"])
    lines = [line for line in result.err.splitlines() if not line.startswith("mneme: warning")]
    shown = [line for group in said[:-1] for line in group]
    assert lines[:len(shown)] == shown and sorted(lines[len(shown):]) == said[-1], result.err
    # A checkpoint's own values are no change, nor is where turns without a template end.
    own = template_model("own-settings")
    with open(os.path.join(own, "generation_config.json"), "w") as f:
        json.dump({"repetition_penalty": 1.25, "no_repeat_ngram_size": 3}, f)
    assert chat(own, lines=["/set"]).err == "  (no setting was changed)\n"
    assert chat(own, "--repetition-penalty", "1.5", lines=["/set"]).err == "  repetition_penalty=1.5\n"
    assert chat("embedded", lines=["/set", "/set stop"]).err.splitlines()[1:] == ["  (no setting was changed)", '  stop_strings=["\\nUser:"]']
    assert chat("embedded", "--stop", "END", lines=["/set"]).err.splitlines()[1:] == ['  stop_strings=["END"]']
    replies, err = turns(TEMPLATE, lines=["/set n=5", "Hello", "/set n=3", "Go on", "/set n=null", "/set max-new-tokens", "/set temp=x", "/set top_p=3",
                                       "/set temprature=1", "/set foo bar", "Go on"])
    good = [t for t in replies if "error" not in t]
    assert [len(answer_of(t)) for t in good[:2]] == [5, 3]
    errors = [t["error"]["message"] for t in replies if "error" in t]
    assert len(errors) == 4, errors
    assert "temperature is x" in errors[0] and "allowed: 0 to 1" in errors[1] and "temperature" in errors[2] and "name=value" in errors[3]


def system_message_can_change():
    folder = os.path.join(WORK, "system")
    lines = ["/system", "Hello", "/system You are a dog", "Who are you?", "/system", f"/save {folder}", "/system none", "/clear", "Hello"]
    replies, err = turns(TEMPLATE, "-n", "6", "--system", "You are a cat", lines=lines)
    assert "You are a cat" in err and "You are a dog" in err and "computed again" in err
    assert messages_of(folder)[0] == ("system", "You are a dog")
    bare, _ = turns(TEMPLATE, "-n", "6", lines=["Hello"])
    assert prompt_of(replies[2]) == prompt_of(bare[0])


def stats_tell_tokens_speed_and_cache():
    replies, _ = turns(TEMPLATE, "-n", "9", lines=["Hello", "Go on"])
    result = chat(TEMPLATE, "-n", "9", "--stats", lines=["/stats", "Hello", "Go on", "/stats"])
    usage = replies[1]["usage"]
    said = [l for l in result.err.splitlines() if l.startswith(f"{usage['prompt_tokens']} prompt tokens, {usage['cached_tokens']} cached, ")]
    assert len(said) == 2 and all("9 new at" in l and "tok/s" in l and "dynamic cache" in l and "MiB" in l for l in said), result.err
    assert "no turn yet" in result.err and "all turns (2)" in result.err
    assert f"dynamic cache ({replies[1]['cache']['dtype']}): {replies[1]['cache']['tokens']} tokens" in result.err
    assert len(chat(TEMPLATE, "-n", "9", "-v", lines=["Hello"]).err.splitlines()) == 2


def commands_are_found_and_named():
    result = chat(TEMPLATE, lines=["/help", "!help", "/?"])
    for name in "help clear undo regen edit save load fork switch cache set system stats exit".split():
        assert result.err.count("  /" + name) == 3, name
    assert max(map(len, result.err.splitlines())) <= 79
    result = chat(TEMPLATE, lines=["/undoo", "/xyzzy", "!stat", "/Help", "/clear it all"])
    assert "did you mean /undo?" in result.err and "/help lists" in result.err and "did you mean /stats?" in result.err
    assert len(result.err.splitlines()) == 5 and "stands alone" in result.err and result.out == ""
    for word in ("/exit", "/quit", "/bye", "!exit"):
        assert chat(TEMPLATE, "-n", "3", lines=[word, "Hello"]).out == ""
    # Not everything that begins so is a command.
    folder = os.path.join(WORK, "slash")
    turns(TEMPLATE, "-n", "3", "--save", folder, lines=["/usr/lib is full", "! what a day"])
    assert_said(folder, ["/usr/lib is full", "! what a day"])


# ---- lines on pipes ----


def several_lines_make_one_message():
    folder = os.path.join(WORK, "lines")
    lines = ["one\\", "two", '"""three', "", "/undo", 'four"""', "", "   ", '"""', "five", '"""', '"""six"""', "Grüße, 日本語 \U0001f600", '"""seven', "eight"]
    replies, err = turns(TEMPLATE, "-n", "3", "--max-cache-len", "4000", "--save", folder, lines=lines)
    assert len(replies) == 6
    assert_said(folder, ["one\ntwo", "three\n\n/undo\nfour", "five", "six", "Grüße, 日本語 \U0001f600",
                                                                     "seven\neight"])


def bad_text_is_refused_and_the_conversation_goes_on():
    result = mneme("chat", TEMPLATE, "-n", "3", "--json", text=b"Hello\nbad \xff byte\n\"\"\"\n\"\"\"\nGo on\r\n")
    replies = result.objects()
    assert [("error" in t) for t in replies] == [False, True, False]
    assert "byte 4" in replies[1]["error"]["message"]
    assert replies[2]["usage"]["cached_tokens"] == computed(replies[0])


def plain_answers_are_lines_on_stdout():
    result = chat("embedded", "-n", "10", lines=["Hello", "Go on"])
    assert "no chat template" in result.err and len(result.err.splitlines()) == 1
    assert len(result.out.splitlines()) >= 2 and result.out.endswith("\n") and not result.out.startswith(" ") and "\x1b" not in result.out
    replies, _ = turns("embedded", "-n", "200", lines=["Hello"])
    assert "User:" not in replies[0]["sequences"][0]["text"]


def arguments():
    result = mneme("chat", "embedded", "Once upon a time", "-n", "5")
    assert result.out and "User" not in result.out
    assert mneme("chat", "-m", "embedded", "Once", "-n", "5").out
    assert "looked" in mneme("chat", "nosuchmodel", code=3).err
    mneme("chat", "a", "b", "c", code=2)
    mneme("chat", "-m", "embedded", "a", "b", code=2)
    assert "did you mean --temperature?" in mneme("chat", "embedded", "--temprature", "1", code=2).err
    mneme("chat", "embedded", "--save", "/etc/passwd", code=2)
    mneme("chat", "embedded", "--load", WORK + "/absent", code=1)
    mneme("chat", "embedded", "--logprobs", "2", code=2)
    mneme("chat", "embedded", "--cache", "paper", code=2)
    assert "no tokenizer" in mneme("chat", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/golden/llama"), code=2).err
    config = mneme("chat", "embedded", "--system", "S", "-n", "7", "--print-config", "--json").objects()[0]
    assert config["system"] == {"value": "S", "origin": "flag"} and config["max_new_tokens"] == {"value": 7, "origin": "flag"}
    assert "save" in config and "stats" in config
    assert mneme("chat", "embedded", "--logprobs", "2", "--json", "Hello", "-n", "2").objects()[0]["sequences"][0]["logprobs"]


def template_that_refuses():
    """The template raises when an answer comes first; that is one sentence."""
    folder = os.path.join(WORK, "raises")
    turns(TEMPLATE, "-n", "3", "--save", folder, lines=["Hello"])
    path = os.path.join(folder, "conversation.json")
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace('{"role":"user"', '{"role":"assistant"', 1))
    replies, err = turns(TEMPLATE, "-n", "3", lines=[f"/load {folder}", "Go on", "/clear", "Go on"])
    assert "who asked?" in replies[0]["error"]["message"] and "error" not in replies[1]


# ---- ends ----

ENDLESS = ["-n", "900000", "--ignore-eos", "--max-cache-len", "1000000"]


def signals_in_the_middle_save_what_there_is():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        folder = os.path.join(WORK, "cut short " + number.name)
        with background(TEMPLATE, *ENDLESS, "--save", folder) as running:
            running.send("Tell me of a cat")
            running.read_some()
            time.sleep(0.3)
            out, err = running.end(5, number)
            assert out.endswith("\n")
        messages = messages_of(folder)
        assert [m[0] for m in messages] == ["user", "assistant"] and len(messages[1][1]) > 20
        after, _ = turns(TEMPLATE, "--load", folder, "-n", "5", lines=["Go on"])
        assert after[0]["usage"]["cached_tokens"] > 20


def signals_at_the_prompt_save_too():
    folder = os.path.join(WORK, "waiting")
    with background(TEMPLATE, "-n", "5", "--save", folder) as running:
        running.send("Tell me of a cat")
        running.read_some()
        time.sleep(0.3)
        running.end(5, signal.SIGTERM)
    assert len(messages_of(folder)) == 2


def closed_streams():
    folder = os.path.join(WORK, "closed")
    result = chat(TEMPLATE, "-n", "5", "--save", folder, lines=["Hello"])
    assert len(messages_of(folder)) == 2 and result.err == ""
    folder = os.path.join(WORK, "nobody reads")
    with background(TEMPLATE, *ENDLESS, "--save", folder) as running:
        running.send("Tell me of a cat")
        running.read_some()
        running.process.stdout.close()
        assert running.process.wait(60) == 1
        assert running.process.stderr.read() == b""
    assert len(messages_of(folder)) == 2


# ---- on a terminal ----


def on_terminal(*arguments, **named):
    def decorate(steps):
        terminal = Terminal(*arguments, **named)
        try:
            steps(terminal)
        finally:
            terminal.close()
    return decorate


def needs_editor():
    probe = Terminal(TEMPLATE, "-n", "3", "--no-history")
    try:
        probe.wait("> ")
        probe.keys("/exit\r")
        probe.end()
        if Terminal.READY not in probe.text:
            raise Skip("built without libedit")
    finally:
        probe.close()


def terminal_conversation():
    needs_editor()

    @on_terminal(TEMPLATE, "-n", "8", "--stats", "--no-history")
    def steps(t):
        greeting = plain(t.ready())
        assert "dynamic cache" in greeting and "/help" in greeting
        t.at -= len(t.READY)
        shown = plain(t.say("Tell me of a cat"))
        assert "8 new at" in shown and "tok/s" in shown
        assert "cached" in t.say("And of a dog?")
        t.ready()
        t.keys("\x04")
        t.end(0)


def terminal_editing_of_wide_text():
    """Cursor keys, deletion and a narrow window; what counts is the message that arrives."""
    needs_editor()
    folder = os.path.join(WORK, "typed")

    @on_terminal(TEMPLATE, "-n", "3", "--max-cache-len", "4000", "--save", folder, "--no-history", columns=20)
    def steps(t):
        t.ready()
        t.keys("ein sehr langer Satz mit Grüßen und 日本語 am Ende")
        t.wait("Ende")
        t.keys("\x01Nun: \x05!!\x7f\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x7f語 schön ")
        t.resize(33, 10)
        time.sleep(0.2)
        t.keys("\x1b[C\r")
        t.line("ä\x7f\x7f\x7fok")
        t.line("/exit")
        t.end(0)
    assert_said(folder, ["Nun: ein sehr langer Satz mit Grüßen und 日本語 a語 schön  Ende!", "ok"])


def terminal_paste_arrives_whole():
    needs_editor()
    folder = os.path.join(WORK, "pasted")

    @on_terminal(TEMPLATE, "-n", "3", "--max-cache-len", "4000", "--save", folder, "--no-history")
    def steps(t):
        t.ready()
        t.keys("See: \x1b[200~one\r\n\r/undo\r  zwei ü\x1b[31m\x07\x1b[201~ end\r")
        t.line('"""')
        t.ready()
        t.keys("a\r")
        t.ready()
        t.keys('b"""\r')
        t.line("c\\")
        t.line("d")
        t.line("/exit")
        t.end(0)
    assert_said(folder, ["See: one\n\n/undo\n  zwei ü[31m end", "a\nb", "c\nd"])


def terminal_interrupts():
    needs_editor()
    folder = os.path.join(WORK, "interrupted")

    @on_terminal(TEMPLATE, *ENDLESS, "--save", folder, "--no-history")
    def steps(t):
        t.ready()
        t.keys("\x03")
        t.wait("Ctrl-D or /exit leaves")
        t.ready()
        t.keys("dropped line\x03")
        t.ready()
        t.keys("Tell me of a cat\r")
        t.wait("\n")
        time.sleep(0.5)
        t.keys("\x03")
        t.wait("stays in the conversation")
        t.line("/set n=4")
        t.line("Go on")
        t.line("/stats")
        shown = t.wait("all turns (2)")
        t.line("/exit")
        t.end(0)
    messages = messages_of(folder)
    assert [m[0] for m in messages] == ["user", "assistant"] * 2 and messages[0][1] == "Tell me of a cat" and messages[1][1]
    again, _ = turns(TEMPLATE, "--load", folder, lines=["/undo", "Go on"])
    assert again[0]["usage"]["cached_tokens"] > 10, "the stopped answer is not in the cache"


def terminal_history():
    needs_editor()
    path = os.path.join(ENV["XDG_STATE_HOME"], "mneme", "history")

    @on_terminal(TEMPLATE, "-n", "3", "--no-history")
    def without(t):
        t.line("not kept")
        t.line("/exit")
        t.end(0)
    assert not os.path.exists(path)

    @on_terminal(TEMPLATE, "-n", "3", "--max-cache-len", "4000")
    def first(t):
        t.line("eins \\")
        t.line("zwei")
        t.line("drei")
        t.line("/exit")
        t.end(0)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(path) as f:
        text = f.read()
    assert text == "eins \\nzwei\ndrei\n/exit\n", text
    folder = os.path.join(WORK, "recalled")

    @on_terminal(TEMPLATE, "-n", "3", "--max-cache-len", "4000", "--save", folder)
    def second(t):
        t.ready()
        t.keys("\x1b[A\x1b[A\x1b[A!\r")
        t.ready()
        t.keys("\x12dre\r\r")
        t.line("/exit")
        t.end(0)
    assert_said(folder, ["eins \nzwei!", "drei"])


def terminal_edit_begins_with_the_old_text():
    needs_editor()
    folder = os.path.join(WORK, "re-edited")

    @on_terminal(TEMPLATE, "-n", "3", "--save", folder, "--no-history")
    def steps(t):
        t.line("Tell me of a cät")
        t.line("/edit")
        t.ready()
        t.keys("\x7f\x7f\x7få dog\r")
        t.line("/exit")
        t.end(0)
    assert_said(folder, ["Tell me of a å dog"])


def terminal_ends_by_signals():
    needs_editor()
    for busy in (False, True):
        for number in (signal.SIGTERM, signal.SIGHUP):
            folder = os.path.join(WORK, f"ended {busy} {number.name}")

            @on_terminal(TEMPLATE, *(ENDLESS if busy else ["-n", "3"]), "--save", folder, "--no-history")
            def steps(t):
                t.line("Tell me of a cat")
                t.wait("\n")
                if busy:
                    time.sleep(0.4)
                else:
                    t.ready()
                t.process.send_signal(number)
                t.end(5)
            assert len(messages_of(folder)) == 2


def terminal_gone():
    needs_editor()
    for busy in (False, True):
        folder = os.path.join(WORK, f"gone {busy}")

        @on_terminal(TEMPLATE, *(ENDLESS if busy else ["-n", "3"]), "--save", folder, "--no-history")
        def steps(t):
            t.line("Tell me of a cat")
            t.wait("\n")
            if busy:
                time.sleep(0.4)
            else:
                t.ready()
            os.close(t.slave)
            os.close(t.master)
            code = t.process.wait(60)
            assert code == 5, (busy, code)
        assert len(messages_of(folder)) == 2


def terminal_styles():
    needs_editor()

    @on_terminal(TEMPLATE, "-n", "3", "--stats", "--no-history")
    def coloured(t):
        assert "\x1b[2m" in t.say("Hello")
        t.line("/exit")
        t.end(0)

    @on_terminal(TEMPLATE, "-n", "3", "--stats", "--no-history", env={"NO_COLOR": "1"})
    def bare(t):
        t.say("Hello")
        t.line("/exit")
        t.end(0)
        assert "\x1b[2m" not in t.text and "\x1b[0m" not in t.text

    @on_terminal(TEMPLATE, "-n", "3", "--no-history", env={"TERM": "dumb"})
    def dumb(t):
        t.wait("> ")
        t.keys("Hello\r")
        t.wait("> ")
        t.keys("/exit\r")
        t.end(0)
        assert "\x1b" not in t.text, repr(t.text)


def terminal_stops_and_resumes():
    """Ctrl-Z in a shell, and back: the line is edited on."""
    needs_editor()
    folder = os.path.join(WORK, "resumed")
    from chat_driver import MNEME

    @on_terminal(command=["bash", "--norc", "--noprofile", "-i"], env={"PS1": "shell$ "})
    def steps(t):
        t.wait("shell$ ")
        t.keys(f"'{MNEME}' chat '{TEMPLATE}' -n 3 --no-history --save '{folder}'\r")
        t.ready()
        t.keys("Tell ")
        t.wait("Tell ")
        t.keys("\x1a")
        t.wait("Stopped")
        t.wait("shell$ ")
        t.keys("fg\r")
        t.ready()
        t.keys("me\r")
        t.line("/exit")
        t.wait("shell$ ")
        t.keys("exit\r")
        t.process.wait(60)
    assert_said(folder, ["Tell me"])


# ---- a real model ----


def smollm2_converses():
    if not os.path.isfile(SMOLLM2):
        raise Skip("SmolLM2 is not here")
    import json
    lines = ["What is the capital of France?", "And of Italy?", "/undo", "And of Italy?"]
    for cache in ("quantized", "dynamic"):
        replies, _ = turns(SMOLLM2, "-n", "24", *(["--cache", cache] if cache != "dynamic" else []), lines=lines)
        assert "Paris" in replies[0]["sequences"][0]["text"] and "Rome" in replies[1]["sequences"][0]["text"], cache
        assert replies[1]["usage"]["cached_tokens"] == computed(replies[0])
        assert answer_of(replies[2]) == answer_of(replies[1])
        if cache == "dynamic": # which is the one without --cache
            assert replies[2]["usage"]["cached_tokens"] == computed(replies[0]) + 1
    path = os.path.join(WORK, "smol.json")
    with open(path, "w") as f:
        json.dump([{"role": "user", "content": lines[0]}, {"role": "assistant", "content": replies[0]["sequences"][0]["text"]},
                   {"role": "user", "content": lines[1]}], f)
    alone = mneme("run", SMOLLM2, "--messages", path, "-n", "24", "--json").objects()[0]
    assert prompt_of(replies[1]) == prompt_of(alone) and answer_of(replies[1]) == answer_of(alone)
    # A conversation continues after its cache was quantized.
    replies, err = turns(SMOLLM2, "-n", "24", lines=[lines[0], "/cache quantized nbits=4", lines[1]])
    assert replies[1]["cache"]["implementation"] == "quantized" and replies[1]["usage"]["cached_tokens"] == computed(replies[0])
    assert "Rome" in replies[1]["sequences"][0]["text"]


CASES = [
    second_turn_computes_what_is_new, answers_are_those_of_a_run_without_past, every_way_of_decoding_goes_on, rendered_conversation_gives_the_same_prompt, generated_ids_are_kept,
    answers_end_with_the_context_alone, undo_computes_nothing_again, clear_keeps_the_system_message, regen_crops_and_draws_anew, edit_replaces_the_last_message,
    save_and_load_go_on, saved_caches_of_every_kind_load, what_does_not_fit_is_refused, save_writes_the_old_or_the_new,
    run_options_for_caches_work, forks_share_and_part, caches_change_in_place, a_window_that_dropped_tokens_names_the_cache_that_keeps_it,
    quantized_tells_what_is_still_exact, context_ends_with_advice, memory_that_ends_is_one_sentence, sink_never_ends_in_flat_memory,
    what_cannot_go_back_is_computed_and_said, settings_are_those_of_the_flags, system_message_can_change, stats_tell_tokens_speed_and_cache,
    commands_are_found_and_named, several_lines_make_one_message, bad_text_is_refused_and_the_conversation_goes_on, plain_answers_are_lines_on_stdout,
    arguments, template_that_refuses, signals_in_the_middle_save_what_there_is, signals_at_the_prompt_save_too, closed_streams, terminal_conversation,
    terminal_editing_of_wide_text, terminal_paste_arrives_whole, terminal_interrupts, terminal_history, terminal_edit_begins_with_the_old_text,
    terminal_ends_by_signals, terminal_gone, terminal_styles, terminal_stops_and_resumes, smollm2_converses,
]

if __name__ == "__main__":
    TEMPLATE = template_model()
    wanted = sys.argv[2:]
    sys.exit(run([case for case in CASES if not wanted or case.__name__ in wanted]))
