#!/usr/bin/env python3
"""Many requests in Python: the engine, and the server as a child process. Oracles are the command's answers.
usage: engine.py SOURCE_FOLDER LIBMNEME MNEME [CASE...]     LIBMNEME `installed`: the package that Python finds, with its own library
SPDX-License-Identifier: Apache-2.0"""
import gc
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request

from runner import SMALL, TEXT, command, golden, main, refused
import mneme

PROMPTS = [TEXT, "The dog", "Once upon a time", "A little girl named Lily went to the park."]


def wanted(prompt, *options):
    return command("run", SMALL, prompt, *options, "--json")["sequences"][0]["ids"]


def requests_get_the_results_they_get_alone():
    with mneme.Model(SMALL) as model, mneme.Engine(model, "dynamic", max_num_seqs=3) as engine:
        seen = []
        ids = [engine.add(prompt, max_new_tokens=10 + i) for i, prompt in enumerate(PROMPTS)]
        drawn = engine.add(TEXT, max_new_tokens=9, do_sample=True, seed=5, cache="sink", cache_config={"window_length": 40}, top_logprobs=1,
                           on_token=seen.append)
        results = engine.run()
        assert ids == [0, 1, 2, 3] and drawn == 4 and sorted(results) == [0, 1, 2, 3, 4]
        for i, prompt in zip(ids, PROMPTS):
            assert results[i][0].token_ids == wanted(prompt, "-n", str(10 + i)), prompt
        assert results[drawn][0].token_ids == wanted(TEXT, "-n", "9", "--do-sample", "--seed", "5", "--cache", "sink", "--cache-config", "window_length=40")
        assert "".join(map(str, seen)) == results[drawn].text and {token.row for token in seen} == {drawn} and results[drawn].seed == 5
        assert [token.logprobs for token in seen[:-1]] == results[drawn][0].logprobs and len(seen) == 10
        info = engine.info
        assert info.num_requests_running == info.num_requests_waiting == 0 and engine.take() is None and engine.step() == 0


def requests_join_wait_and_are_cancelled():
    with mneme.Model(SMALL) as model, mneme.Engine(model, max_num_seqs=1) as engine:
        first = engine.add(TEXT, max_new_tokens=30)
        assert engine.step() == 1
        low, high = engine.add(TEXT, max_new_tokens=3), engine.add(TEXT, max_new_tokens=3, priority=1)
        assert engine.step() == 3
        assert engine.request(first).state in ("prompt", "decode") and engine.request(low).state == "queued"
        assert (engine.info.num_requests_running, engine.info.num_requests_waiting) == (1, 2) and engine.wait(10)
        engine.cancel(first)
        results = dict(engine.results())
        assert list(results) == [first, high, low], results
        assert results[first][0].finish_reason == "cancelled" and len(results[first][0].token_ids) < 30
        refused(ValueError, "no request 0", lambda: engine.cancel(first))
        refused(ValueError, "no request 77", lambda: engine.request(77))
        refused(ValueError, "the nearest is 'temperature'", lambda: engine.add(TEXT, tempreture=1))
        refused(ValueError, "'nosuch'", lambda: engine.add(TEXT, cache="nosuch"))
        assert not engine.wait(0.001)
        threading.Timer(0.05, engine.wake).start()
        engine.wait(100)


def callbacks_add_and_fail():
    with mneme.Model(SMALL) as model, mneme.Engine(model) as engine:
        def more(token):
            if token.finish_reason:
                added.append(engine.add("The dog", max_new_tokens=4))

        def fail(token):
            raise KeyError("of the callback")

        added = []
        first = engine.add(TEXT, max_new_tokens=3, on_token=more)
        results = engine.run()
        results.update(engine.run())
        assert sorted(results) == [first, *added] and results[added[0]][0].token_ids == wanted("The dog", "-n", "4")
        other = engine.add(TEXT, max_new_tokens=50, on_token=fail)
        try:
            engine.run()
            raise AssertionError("the exception is lost")
        except KeyError as error:
            assert "of the callback" in str(error)
        assert engine.run() == {} and other == 2
        failed = []
        engine.add(TEXT, max_new_tokens=2, on_token=lambda token: failed.append(refused(ValueError, "in use", engine.step)))
        engine.add(TEXT, max_new_tokens=2, on_token=lambda token: failed.append(refused(ValueError, "in use", engine.close)))
        engine.run()
        assert len(failed) == 6 and not engine.closed


def sequences_have_their_sessions():
    with mneme.Model(SMALL) as model, mneme.Engine(model) as engine:
        ids = model.tokenizer.encode(TEXT)
        for fields in ({}, {"num_beams": 2, "num_return_sequences": 2}):
            number, other = engine.add(TEXT, max_new_tokens=6, return_sessions=True, **fields), engine.add(TEXT, max_new_tokens=6, **fields)
            results = engine.run()
            assert all(s.session is None for s in results[other])
            for s in results[number]:
                assert s.session.token_ids == ids + s.token_ids[:-1]
                assert s.session.generate(ids + s.token_ids, max_new_tokens=4)[0].token_ids == model.generate(ids + s.token_ids, max_new_tokens=4)[0].token_ids


def requests_are_added_by_other_threads():
    with mneme.Model(SMALL) as model, mneme.Engine(model) as engine:
        expected, results, numbers = {n: wanted(PROMPTS[n % 4], "-n", str(4 + n)) for n in range(8)}, {}, {}

        def add(n):
            numbers[engine.add(PROMPTS[n % 4], max_new_tokens=4 + n)] = n

        threads = [threading.Thread(target=add, args=[n]) for n in range(8)]
        for thread in threads:
            thread.start()
        while len(results) < 8:
            engine.wait(1)
            results.update(engine.results())
        for thread in threads:
            thread.join()
        assert {numbers[number]: result[0].token_ids for number, result in results.items()} == expected


def prefixes_are_shared_and_kept():
    ids = [(7 * i + i * i) % 200 + 3 for i in range(60)]
    with mneme.Model(golden("llama")) as model, mneme.Engine(model, enable_prefix_caching=True, memory_limit=1 << 24, page_tokens=16) as engine:
        first = engine.add(ids, max_new_tokens=5, cache_salt="a")
        alone = engine.run()[first][0]
        again, other = engine.add(ids, max_new_tokens=5, cache_salt="a"), engine.add(ids, max_new_tokens=5, cache_salt="b", owner="me")
        results = engine.run()
        assert alone.cached_tokens == results[other][0].cached_tokens == 0 and results[again][0].cached_tokens > 32
        assert alone.token_ids == results[again][0].token_ids == results[other][0].token_ids == model.generate(ids, max_new_tokens=5)[0].token_ids
        assert {p.salt for p in engine.prefixes()} == {"a", "b"} and engine.info.n_kept >= 2
        refused(mneme.NotFoundError, "of 60 tokens is not cached", lambda: engine.prefix_of(ids))
        number = engine.prefix_of(ids, cache_salt="a")
        engine.hold_prefix(number)
        pinned = [p for p in engine.prefixes() if p.is_pinned]
        assert [p.id for p in pinned] == [number] and pinned[0].n_tokens == 60 and pinned[0].is_kept
        with engine.prefix_session(number) as session, tempfile.TemporaryDirectory() as folder:
            assert session.token_ids == ids
            session.save(os.path.join(folder, "a"))
            assert session.generate(ids, max_new_tokens=5)[0].token_ids == alone.token_ids
            session.truncate(40)
            kept = engine.add_prefix(session)
        assert engine.prefix_of(ids[:40]) == kept
        engine.drop_prefix(number)
        refused(mneme.NotFoundError, "of 60 tokens is not cached", lambda: engine.prefix_of(ids, cache_salt="a"))
        engine.make_room(1 << 24)
        assert engine.info.n_kept == 0
        with model.session() as session:
            session.step(ids[:50])
            number = engine.add(ids, max_new_tokens=5, prefix=session)
            assert engine.run()[number][0].token_ids == alone.token_ids and session.token_ids == ids[:50]


def closed_engines_are_refused():
    model = mneme.Model(SMALL)
    engine = mneme.Engine(model)
    engine.add(TEXT)
    model.close()
    engine.step()
    engine.close()
    engine.close()
    for call in (engine.step, engine.take, engine.wake, engine.prefixes, lambda: engine.info):
        refused(ValueError, "this engine is closed", call)
    refused(ValueError, "this model is closed", lambda: mneme.Engine(model))


# ---- server ----


BODY = json.dumps({"prompt": TEXT, "max_tokens": 12, "temperature": 0}).encode()


def is_running(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def servers_answer_until_they_are_stopped():
    text = command("run", SMALL, TEXT, "-n", "12", "--json")["sequences"][0]["text"]
    with mneme.Server(SMALL, cache="static", max_num_seqs=2, sandbox=False) as server:
        assert server.url.startswith("http://127.0.0.1:") and not server.closed and server.url in server.log[-1] and "cache=static" in server.log[-1]
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}/v1/completions", BODY, {"Content-Type": "application/json"})) as answer:
            assert json.load(answer)["choices"][0]["text"] == text
    assert server.closed and "ended" in repr(server) and not is_running(server.pid)
    server.stop()


def servers_listen_on_unix_sockets():
    with tempfile.TemporaryDirectory() as folder, mneme.Server(SMALL, unix=os.path.join(folder, "s")) as server:
        assert server.url == "unix:" + os.path.join(folder, "s")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(os.path.join(folder, "s"))
            connection = http.client.HTTPConnection("localhost")
            connection.sock = client
            connection.request("GET", "/health")
            assert json.load(connection.getresponse()) == {"status": "ok"}


def servers_that_do_not_start_are_refused():
    refused(FileNotFoundError, "no model 'nothere'", lambda: mneme.Server("nothere"))
    refused(ValueError, "'nosuch'", lambda: mneme.Server(SMALL, cache="nosuch"))
    refused(ValueError, "no-such-option", lambda: mneme.Server(SMALL, no_such_option=3))


def servers_end_with_their_objects():
    server = mneme.Server(SMALL)
    pid = server.pid
    assert is_running(pid)
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        server._process.wait(1)
        raise AssertionError("a forked process has ended it")
    except subprocess.TimeoutExpired:
        pass
    del server
    gc.collect()
    assert not is_running(pid)
    program = f"import mneme\nserver = mneme.Server({SMALL!r})\nprint(server.pid)\nraise SystemExit(5)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 5 and not done.stderr and not is_running(int(done.stdout)), done


CASES = [requests_get_the_results_they_get_alone, requests_join_wait_and_are_cancelled, callbacks_add_and_fail, sequences_have_their_sessions,
         requests_are_added_by_other_threads,
         prefixes_are_shared_and_kept, closed_engines_are_refused,
         servers_answer_until_they_are_stopped, servers_listen_on_unix_sockets, servers_that_do_not_start_are_refused, servers_end_with_their_objects]


if __name__ == "__main__":
    main(CASES)
