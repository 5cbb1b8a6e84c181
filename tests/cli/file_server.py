"""An HTTP server of one file, for the tests of `mneme pull`: how it answers is the first part of the path.
usage: file_server.py FILE PORT_FILE LOG      LOG: a line for each request, "PATH RANGE IF-RANGE STATUS"

  whole    the file, from where Range asks for it unless If-Range names another version
  cut      the same; a request without Range gets half of it, and the connection ends
  nameless as cut, with no word about its version
  new      as cut; each answer is another version
  simple   knows no Range; the first answer is cut
  slow     half of the file, and then nothing until the client leaves
  moved    a redirection to whole
  page     a page instead of the file
"""
import http.server
import itertools
import os
import sys

FILE, PORT_FILE, LOG = sys.argv[1:]
with open(FILE, "rb") as opened:
    DATA = opened.read()
versions, simple = itertools.count(), itertools.count()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, data, headers=(), cut=False):
        asked = [self.path, self.headers.get("Range", "-"), self.headers.get("If-Range", "-"), str(status)]
        with open(LOG, "a") as log:
            log.write(" ".join(asked) + "\n")
        self.send_response(status)
        for header in headers:
            self.send_header(*header)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:len(data) // 2] if cut else data)

    def do_GET(self):
        kind, wanted = self.path.split("/")[1], self.headers.get("Range")
        if kind == "moved":
            return self.answer(302, b"elsewhere", [("Location", self.path.replace("moved", "whole"))])
        if kind == "page":
            return self.answer(200, b"<!DOCTYPE html><title>Sign in</title>")
        if kind == "simple":
            return self.answer(200, DATA, cut=next(simple) == 0)
        if kind not in ("whole", "cut", "nameless", "new", "slow"):
            return self.answer(404, b"there is no such file")
        version = '"%d"' % next(versions) if kind == "new" else '"first"'
        headers = [] if kind == "nameless" else [("ETag", version)]
        if kind == "slow" and not wanted:
            self.answer(200, DATA, headers, cut=True)
            self.wfile.flush()
            return self.rfile.read(1)
        if not wanted or self.headers.get("If-Range", version) != version:
            return self.answer(200, DATA, headers, cut=kind != "whole" and not wanted)
        begin = int(wanted[len("bytes="):-1])
        if begin >= len(DATA):
            return self.answer(416, b"", headers + [("Content-Range", "bytes */%d" % len(DATA))])
        return self.answer(206, DATA[begin:], headers + [("Content-Range", "bytes %d-%d/%d" % (begin, len(DATA) - 1, len(DATA)))])


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(PORT_FILE + ".new", "w") as port:
    port.write(str(server.server_address[1]))
os.rename(PORT_FILE + ".new", PORT_FILE)
server.serve_forever()
