# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m gradtune ...`: the program gradtune, which plans for recorded jobs and shows what a journal holds."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    """Runs the program that was built with the package, else the one of PATH, in the place of this process."""
    own = Path(__file__).parent / "bin" / "gradtune"
    program = str(own) if own.exists() else shutil.which("gradtune")
    if program is None:
        print(
            "gradtune: the program gradtune was not built with this package (it needs CLI11; Debian: libcli11-dev), and "
            "there is none in PATH",
            file=sys.stderr,
        )
        return 1
    os.execv(program, ["gradtune", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
