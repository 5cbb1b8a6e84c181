"""The command `mneme`, from the same package: python -m mneme."""
from __future__ import annotations

import os
import sys


def main() -> None:
    command = os.environ.get("MNEME_COMMAND") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "mneme")
    try:
        os.execv(command, [command, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"mneme: the command cannot be run: {error}")


if __name__ == "__main__":
    main()
