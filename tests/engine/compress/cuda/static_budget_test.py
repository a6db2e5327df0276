# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""All kernels compile without a warning, spill nothing, and are bound by memory on an H100 (static_budget.py).

usage: static_budget_test.py NVCC FOLDER VENV.
The machine code is only checked if cuobjdump is found: in the folder of nvcc, in VENV (of nvidia-cuda-cuobjdump, or
of Triton), or in PATH. Otherwise the output says what was left out.
"""

import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import static_budget

NVCC, FOLDER, VENV = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def cuobjdump():
    packages = ("nvidia/cu1*/bin", "triton/backends/nvidia/bin")
    wheels = [str(path) for package in packages for path in VENV.glob(f"lib/python3*/site-packages/{package}")]
    places = ":".join([str(Path(NVCC).resolve().parent), *wheels])
    return shutil.which("cuobjdump", path=places) or shutil.which("cuobjdump")


class StaticBudget(unittest.TestCase):
    def test_kernels(self):
        known = subprocess.run([NVCC, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout
        if not cuobjdump():
            print("LESS IS CHECKED: there is no cuobjdump, so warnings and spills alone are, not the budget of instructions")
        for architecture in ("80", "90", "100"):
            if f"compute_{architecture}" not in known.split():
                continue
            with self.subTest(architecture):
                broken = static_budget.check(NVCC, cuobjdump(), FOLDER, f"sm_{architecture}")
                self.assertEqual([], broken, "\n  ".join(["", *broken]))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
