#!/usr/bin/env python3
"""Writes src/text/jinja/entities.inc, the named character references of HTML, from Python's table of the standard's list.

    tools/make_html_entities.py > src/text/jinja/entities.inc
"""
import html.entities


def main():
    print("/* Named character references of HTML (html.spec.whatwg.org), in order; written by tools/make_html_entities.py. */")
    print("/* clang-format off */")
    line = ""
    for name in sorted(html.entities.html5):
        codes = [ord(c) for c in html.entities.html5[name]] + [0]
        row = '{"%s",0x%X,0x%X},' % (name, codes[0], codes[1])
        if line and len(line) + len(row) > 158:
            print(line)
            line = ""
        line += row
    print(line)


if __name__ == "__main__":
    main()
