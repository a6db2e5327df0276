# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The torch that the package is built for: the one of the interpreter, which is no part of an isolated build.

scikit-build-core calls Dependencies for the wheel's requirement, and CMake runs this file for the folder. A wheel serves
one minor version, because torch's C++ interface changes between them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"


def folder_of_torch() -> Path | None:
    """The folder that Torch_DIR names, or that of the interpreter's own torch."""
    named = os.environ.get("Torch_DIR")
    if named:
        # TorchConfig.cmake is in share/cmake/Torch of the folder.
        folders = (Path(named, *more).resolve() for more in ([], ["torch"], [os.pardir] * 3))
        return next((each for each in folders if (each / "version.py").exists()), None)
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    # pip's isolated build hides the interpreter's packages by a variable, which -E ignores.
    found = subprocess.run([sys.executable, "-E", "-c", _FIND], capture_output=True, text=True, cwd=os.sep, check=False)
    return Path(found.stdout.strip()) if found.stdout.strip() else None


def minor_of(folder: Path) -> tuple[int, int]:
    """The minor version of the torch in that folder, such as (2, 11)."""
    found = re.search(r"^__version__ = '(\d+)\.(\d+)\.", (folder / "version.py").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f"gradtune: {folder}/version.py has no version of torch; is that a torch package?")
    return int(found[1]), int(found[2])


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


class Dependencies:
    """A provider of dynamic metadata: the wheel requires the minor version of torch that it is built for."""

    def __init__(self) -> None:
        self._is_source = False

    def build_state(self, state: str) -> None:
        self._is_source = state == "sdist"

    def dynamic_wheel(self, _settings: Mapping[str, Any]) -> dict[str, bool]:
        return {"dependencies": True}

    def dynamic_metadata(self, settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, Any]:
        oldest, newest = _numbers(settings["oldest"]), _numbers(settings["newest"])
        allowed = f"torch>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
        if self._is_source:
            return {"dependencies": [allowed]}
        folder = folder_of_torch()
        if folder is None:
            raise SystemExit(
                f"gradtune is built for the torch that is installed, and {os.environ.get('Torch_DIR') or sys.executable} has "
                f"none: pip install '{allowed}' first. If torch is installed, the build runs in an environment of its own: "
                "give --no-build-isolation, or set Torch_DIR=.../site-packages/torch"
            )
        minor = minor_of(folder)
        if not oldest <= minor <= newest and os.environ.get("GRADTUNE_UNTESTED_TORCH") != "1":
            raise SystemExit(
                f"gradtune supports {allowed}, and in {folder} is torch {minor[0]}.{minor[1]}: pip install '{allowed}', or set "
                "GRADTUNE_UNTESTED_TORCH=1 to build for it without support"
            )
        return {"dependencies": [f"torch=={minor[0]}.{minor[1]}.*"]}


if __name__ == "__main__":
    print(folder_of_torch() or "")
