"""The command `mneme`, from the same package: python -m mneme."""
from __future__ import annotations

import os
import sys

from ._command import command_path


def main() -> None:
    command = command_path()
    try:
        os.execv(command, [command, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"mneme: the command cannot be run: {error}")


if __name__ == "__main__":
    main()
