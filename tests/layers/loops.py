#!/usr/bin/env python3
"""Reads C files of the template engine and lists every loop that charges no budget.

A loop is charged when each iteration calls a charging function before the iteration can end, or when its header does. jinja_charge_steps
charges; so does every function of these files that calls a charging one before it can return. Loops over constant tables (a header with `sizeof`)
are bounded. Any other loop has a comment at its head that begins with "bounded:" or "charged:" and says why it needs no charge.

usage: loops.py FILE...      prints FILE:LINE of each loop that is neither, and fails when there is one
"""
import re
import sys

KEYWORDS = {"if", "for", "while", "do", "switch", "else", "return", "sizeof"}
MARK = re.compile(r"/\*\s*(bounded|charged):\s*[^\s*]")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def without_text(source):
    """The source with comments, strings, character constants and directives blanked out; positions are unchanged."""
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*'
    return re.sub(pattern, blank, source, flags=re.S | re.M)


def closing(code, at):
    """The position after the bracket that closes the one at `at`."""
    pairs, open_ones = {"(": ")", "{": "}", "[": "]"}, []
    for i in range(at, len(code)):
        if code[i] in pairs:
            open_ones.append(pairs[code[i]])
        elif code[i] in ")}]":
            if code[i] != open_ones.pop():
                raise SystemExit("brackets do not match")
            if not open_ones:
                return i + 1
    raise SystemExit("a bracket is not closed")


class Statement:
    def __init__(self, kind, start, head="", parts=()):
        self.kind, self.start, self.head, self.parts = kind, start, head, list(parts)
        self.head_end = start


def space(code, at):
    while at < len(code) and code[at].isspace():
        at += 1
    return at


def word_at(code, at):
    found = re.compile(r"[A-Za-z_]\w*").match(code, at)
    return found.group(0) if found else ""


def statement(code, at):
    """The statement at `at` and the position after it."""
    at = space(code, at)
    word = word_at(code, at)
    while word in ("case", "default"):
        at = space(code, code.index(":", at) + 1)
        word = word_at(code, at)
    if code[at] == "{":
        end, parts, inner = closing(code, at), [], space(code, at + 1)
        while inner < end - 1:
            part, inner = statement(code, inner)
            parts.append(part)
            inner = space(code, inner)
        return Statement("block", at, parts=parts), end
    if word in ("if", "for", "while", "switch"):
        head = code.index("(", at)
        head_end = closing(code, head)
        body, end = statement(code, head_end)
        found = Statement(word, at, code[head:head_end], [body])
        found.head_end = head_end
        if word == "if" and word_at(code, space(code, end)) == "else":
            other, end = statement(code, space(code, end) + 4)
            found.parts.append(other)
        return found, end
    if word == "do":
        body, end = statement(code, at + 2)
        head = code.index("(", end)
        head_end = closing(code, head)
        found = Statement("do", at, code[head:head_end], [body])
        found.head_end = code.index(";", head_end)
        return found, found.head_end + 1
    end = at
    while code[end] != ";":
        end = closing(code, end) if code[end] in "({[" else end + 1
    return Statement("simple", at, code[at:end]), end + 1


class Reader:
    def __init__(self, charging):
        self.charging = charging

    def charges(self, text):
        return any(name in self.charging for name in re.findall(r"\b([A-Za-z_]\w*)\s*\(", text))

    def outcome(self, s, leave):
        """"charges", "leaves" (by the word `leave`, before it charged), or "" when the statement just ends."""
        if s.kind == "simple":
            if self.charges(s.head):
                return "charges"
            return "leaves" if re.search(r"\b%s\b" % leave, s.head) else ""
        if s.kind == "block":
            for part in s.parts:
                result = self.outcome(part, leave)
                if result:
                    return result
            return ""
        if self.charges(s.head):
            return "charges"
        if s.kind == "do":
            return self.outcome(s.parts[0], leave)
        results = [self.outcome(part, leave) for part in s.parts] + [""] * (s.kind != "if" or len(s.parts) < 2)
        if s.kind != "if" and leave == "continue" and s.kind != "switch":
            return ""  # a `continue` in there belongs to the inner loop
        if "leaves" in results:
            return "leaves"
        return "charges" if all(result == "charges" for result in results) else ""


def functions(code):
    """(name, body) of every function."""
    at = 0
    while True:
        at = code.find("{", at)
        if at < 0:
            return
        end = closing(code, at)
        head = code[:at].rstrip()
        found = re.search(r"\b([A-Za-z_]\w*)\s*\([^;{}]*$", head[max(0, len(head) - 1000) :])
        start = max(head.rfind(";"), head.rfind("}"))
        signature = head[start + 1 :]
        name = re.search(r"\b([A-Za-z_]\w*)\s*\(", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", signature))
        if head.endswith(")") and found and name:
            yield name.group(1), statement(code, at)[0]
        at = end


def loops(s):
    if s.kind in ("for", "while", "do"):
        yield s
    for part in s.parts:
        yield from loops(part)


def main():
    sources = {name: open(name, encoding="utf-8").read() for name in sys.argv[1:]}
    bodies = {name: list(functions(without_text(text))) for name, text in sources.items()}
    charging = {"jinja_charge_steps"}
    while True:
        reader = Reader(charging)
        more = {
            function
            for all_of_file in bodies.values()
            for function, body in all_of_file
            if function not in charging and reader.outcome(body, "return") == "charges"
        }
        if not more:
            break
        charging |= more
    n_loops = bad = 0
    for name, text in sources.items():
        lines = text.split("\n")
        for function, body in bodies[name]:
            for loop in loops(body):
                n_loops += 1
                first = text.count("\n", 0, loop.start)
                last = text.count("\n", 0, loop.head_end)
                charged = reader.charges(loop.head) or reader.outcome(loop.parts[0], "continue") == "charges"
                if charged or "sizeof" in loop.head or any(MARK.search(line) for line in lines[first : last + 1]):
                    continue
                bad += 1
                print("%s:%d: a loop of %s charges no budget" % (name, first + 1, function))
    if n_loops == 0:
        print("no loop was found")
    print("%d loops, %d charging functions, %d loops without charge" % (n_loops, len(charging), bad))
    return 1 if bad or n_loops == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
