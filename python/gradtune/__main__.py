# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m gradtune ...` runs the program gradtune: it plans for recorded jobs and shows what a journal contains."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    """Replaces this process by the program that was built with the package, or else by the one in PATH."""
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
