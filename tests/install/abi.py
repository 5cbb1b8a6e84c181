"""Writes mneme.h and what it includes as one file: as it is today, or as an older or a newer version might be, where every struct that begins with
its size lacks its last member, or has another one.
usage: abi.py today|older|newer MNEME_H > HEADER"""
import os
import re
import sys

# Structs whose last member is a count of others, or a pointer to them.
WHOLE = {"mn_transcription", "mn_transcript"}


def change(match):
    name, body = match.group(1), match.group(2)
    if not body.lstrip().startswith("size_t size;"):
        return match.group(0)
    if sys.argv[1] == "newer":
        return f"typedef struct {name} {{{body}    uint64_t grown[4];\n}} {name};"
    members = [part.strip() for part in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(";") if part.strip()]
    if name not in WHOLE:
        members.pop()
    return f"typedef struct {name} {{\n" + "".join(f"    {member};\n" for member in members) + f"}} {name};"


def read(path):
    with open(path, encoding="utf-8") as file:
        return re.sub(r'#include "(\w+\.h)"\n', lambda match: read(os.path.join(os.path.dirname(path), match.group(1))), file.read())


header = read(sys.argv[2])
if sys.argv[1] != "today":
    header, n = re.subn(r"typedef struct (mn_\w+) \{(.*?)\n\} \1;", change, header, flags=re.S)
    assert n > 15, "the structs of the header are not found"
print(header)
