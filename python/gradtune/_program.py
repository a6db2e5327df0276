# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The program gradtune, which is built from C++ with the package."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program() -> str | None:
    """Returns the file of the program that was built with the package, or else of the one in PATH."""
    own = Path(__file__).parent / "bin" / "gradtune"
    if own.exists():
        return str(own)
    found = shutil.which("gradtune")
    # The command that pip installs has the same name.
    is_itself = found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()
    return None if is_itself else found
