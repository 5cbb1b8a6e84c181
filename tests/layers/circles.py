"""Fails when headers include each other in a cycle, or when files use each other in a cycle: a file and its header count as one node, which
uses each header that either includes. usage: circles.py SOURCE_FOLDER
SPDX-License-Identifier: Apache-2.0"""
import os
import re
import sys


def read_includes(root):
    found = {}
    for top in ("src", "cli", "serve"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith((".c", ".h")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        found[os.path.relpath(path, root)] = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.M)
    return {path: [target for header in headers for target in (path.split("/")[0] + "/" + header, "src/" + header)
                   if target in found] for path, headers in found.items()}


def circle_in(graph):
    """A list of nodes that lead from one to the next and back to the first, or None."""
    done = set()
    for start in sorted(graph):
        path, branches = [start], [iter(sorted(graph[start]))]
        while path and start not in done:
            target = next(branches[-1], None)
            if target is None:
                done.add(path.pop())
                branches.pop()
            elif target in path:
                return path[path.index(target):]
            elif target not in done:
                path.append(target)
                branches.append(iter(sorted(graph.get(target, ()))))
    return None


includes = read_includes(sys.argv[1])
headers = {path: {t for t in targets if t.endswith(".h")} for path, targets in includes.items() if path.endswith(".h")}
modules = {}
for path, targets in includes.items():
    module = path[:-2]
    uses = modules.setdefault(module, set())
    for target in targets:
        other = target[:-2]
        if other != module:
            uses.add(other)
failed = False
for what, graph in (("headers include", headers), ("files use", modules)):
    circle = circle_in(graph)
    if circle:
        failed = True
        print(f"{what} each other in a cycle: {' -> '.join(circle + circle[:1])}")
sys.exit(failed)
