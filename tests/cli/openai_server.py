"""A server of OpenAI's protocol that answers as the path of the request says: /MODE/v1/completions.

    openai_server.py PORT_FILE LOG     writes its port to PORT_FILE, a line of JSON for each generation to LOG

ok        tokens every 20 ms after 50 ms, in pieces that cut events anywhere; usage with 6 of 10 prompt tokens cached
brief     the same at once, without usage and without a count of tokens
429, 500  an error with this status
mixed     every second request is refused with 429
hangup    closes the connection after two events, inside the body
early     ends the body after two events
malformed an event that is no JSON
error     an event with an error, as servers send it when generation fails
other     events of another kind
whole     the answer whole, not streamed
empty     a stream without a token
silent    closes the connection without an answer
forever   one event and then nothing
"""
import http.server
import json
import sys
import threading
import time

PORT_FILE, LOG = sys.argv[1:]
lock, running, seen = threading.Lock(), 0, 0


class Handler(http.server.BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # a body follows its head at once, also where acknowledgements are delayed
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path.endswith("/v1/models"):
            self.answer(200, {"object": "list", "data": [{"id": "first"}, {"id": "second"}]})
        else:
            self.answer(404, {"error": {"message": "no such path"}})

    def do_POST(self):
        global running, seen
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        mode = self.path.split("/")[1]
        if self.path.endswith("/tokenize"):
            if mode == "brief":
                return self.answer(404, {"error": {"message": "no such path"}})
            return self.answer(200, {"tokens": [7] * tokens_of(body["content"])})
        with lock:
            running += 1
            seen += 1
            number = seen
            with open(LOG, "a", encoding="utf-8") as log:
                log.write(json.dumps({"path": self.path, "running": running, "body": body,
                                      "authorization": self.headers.get("Authorization")}) + "\n")
        try:
            self.generate(mode, number, body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        with lock:
            running -= 1

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, text):
        data = b"data: " + text.encode() + b"\r\n\r\n"
        for at in range(0, len(data), 7):
            self.piece(data[at:at + 7])

    def generate(self, mode, number, body):
        chat = "messages" in body
        if mode in ("429", "500") or (mode == "mixed" and number % 2):
            return self.answer(500 if mode == "500" else 429, {"error": {"message": "the queue is full" if mode != "500" else "broken"}})
        if mode == "silent":
            self.close_connection = True
            return None
        if mode == "whole":
            return self.answer(200, {"choices": [{"text": "abc", "finish_reason": "length"}], "usage": {"completion_tokens": 3}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def choice(text, reason=None, role=None):
            if not chat:
                return {"choices": [{"index": 0, "text": text, "finish_reason": reason}]}
            delta = {"role": role, "content": ""} if role else {"content": text} if text else {}
            return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

        n = body["max_tokens"]
        if chat:
            self.event(json.dumps(choice("", role="assistant")))
        if mode == "empty":
            n = 0
        if mode in ("ok", "mixed"):
            time.sleep(0.05)
        for i in range(n):
            if i and mode in ("ok", "mixed"):
                time.sleep(0.02)
            self.event(json.dumps(choice(" t\u00e9%d" % i), ensure_ascii=False))
            if mode == "forever":
                time.sleep(60)
            if i == 1 and mode == "malformed":
                self.event('{"choices": [')
            if i == 1 and mode == "error":
                self.event('{"error": {"message": "out of memory", "code": 500}}')
            if i == 1 and mode == "other":
                self.event('{"type": "ping"}')
            if i == 1 and mode == "early":
                self.piece(b"")
                return None
            if i == 1 and mode == "hangup":
                self.close_connection = True
                return None
        self.event(json.dumps(choice("", "length")))
        if mode in ("ok", "mixed"):
            usage = {"prompt_tokens": 10, "completion_tokens": n, "prompt_tokens_details": {"cached_tokens": 6}}
            self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.piece(b"")
        return None


def tokens_of(text):
    """A word of more than four letters is two tokens."""
    return sum(1 + (len(word) > 4) for word in text.split())


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, *_):
        pass


server = Server(("127.0.0.1", 0), Handler)
with open(PORT_FILE + ".part", "w", encoding="ascii") as file:
    file.write(str(server.server_address[1]))
__import__("os").rename(PORT_FILE + ".part", PORT_FILE)
server.serve_forever()
