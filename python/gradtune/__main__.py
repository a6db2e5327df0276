# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m gradtune ...`, and the command gradtune that pip installs.

`doctor` says what gradtune finds on this machine, and probes the link between ranks. All other commands are those of
the program gradtune, which plans for recorded jobs and shows what a journal contains.
"""

from __future__ import annotations

import os
import sys

from ._load import VERSION
from ._program import program


def main() -> int:
    """Runs `doctor`, or replaces this process by the program."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["doctor"]:
        from . import _doctor

        return _doctor.main(arguments[1:])
    if arguments == ["--version"]:
        print(f"gradtune {VERSION}")
        return 0
    own = program()
    if own is None:
        print(
            "gradtune: the program gradtune was not built with this package (it needs CLI11; Debian: libcli11-dev), and "
            "there is none in PATH; without it there are doctor and --version",
            file=sys.stderr,
        )
        return 1
    if arguments in (["--help"], ["-h"]):
        print("gradtune doctor says what gradtune finds on this machine, and probes the link in a torchrun call.\n", flush=True)
    os.execv(own, ["gradtune", *arguments])


if __name__ == "__main__":
    sys.exit(main())
