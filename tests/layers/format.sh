#!/usr/bin/env bash
# Fails when clang-format 14 would change a source. Skipped (77) where it is not installed.
# usage: format.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
tool=$(command -v clang-format-14 || command -v clang-format || true)
case $([ -n "$tool" ] && "$tool" --version) in
  *"version 14."*) ;;
  *) echo "clang-format 14 is not installed"; exit 77 ;;
esac
find include src cli serve tests tools bench examples -path tests/data -prune -o \( -name '*.c' -o -name '*.h' -o -name '*.inc' \) -print0 |
  xargs -0 -n 64 -P 2 "$tool" --dry-run -Werror
