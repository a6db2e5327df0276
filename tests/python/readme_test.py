# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The Python program of the README, as it stands there, on two ranks under torchrun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ranks

ROOT = Path(__file__).resolve().parents[2]


class Readme(unittest.TestCase):
    def test_the_program_runs(self) -> None:
        text = (ROOT / "README.md").read_text()
        programs = re.findall(r"```python\n(.*?)```", text, re.S)
        self.assertEqual(len(programs), 1)
        command = re.search(r"^ +(torchrun --nproc-per-node 2 train\.py)$", text, re.M)
        assert command is not None
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text(programs[0])
            arguments = command.group(1).split()[1:]
            ran = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--master-port", str(ranks.free_port()), *arguments],
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                timeout=240,
            )
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertIn("gradtune", ran.stdout)
            self.assertIn("gradtune: ", ran.stderr)
            strategy = json.loads((Path(folder) / "strategy.json").read_text())
            self.assertTrue(strategy["schema"].startswith("gradtune.strategy/"), strategy["schema"])


if __name__ == "__main__":
    ranks.main()
