# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the README's instructions for Python, exactly as written. tests/install builds its C++, tests/examples runs
its demo and cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import ranks

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def command(pattern: str) -> list[str]:
    """The one line of the README that matches, without its comment, as words."""
    (line,) = re.findall(rf"^ +({pattern}.*)$", README, re.M)
    return shlex.split(line.split("  #")[0])


def program() -> str:
    (text,) = re.findall(r"```python\n(.*?)```", README, re.S)
    return str(text)


def start(words: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )


def torchrun(words: list[str]) -> list[str]:
    assert words[0] == "torchrun"
    return [sys.executable, "-m", "torch.distributed.run", *words[1:]]


class Readme(unittest.TestCase):
    def done(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        output, errors = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, output + errors)
        return output, errors

    def test_the_program_and_the_report_of_its_journal(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train.py").write_text(program())
            words = torchrun(command(r"torchrun --nproc-per-node 2 train\.py"))
            words[3:3] = ["--master-port", str(ranks.free_port())]
            (variable,) = re.findall(r"`(GRADTUNE_JOURNAL)=job\.jsonl`", README)
            output, errors = self.done(start(words, folder, **{variable: "job.jsonl"}))
            # Both ranks print the same about it, in the words of rank 0's last line.
            told = re.findall(r"^gradtune: .*$", output, re.M)
            self.assertEqual(len(told), 2, output)
            self.assertEqual(told[0], told[1])
            self.assertIn(told[0], [line for line in errors.splitlines() if line.startswith("gradtune: ")][-1])
            strategy = json.loads((folder / "strategy.json").read_text())
            self.assertTrue(strategy["schema"].startswith("gradtune.strategy/"), strategy["schema"])
            words = command("python -m gradtune report")
            self.done(start([sys.executable, *words[1:]], folder))
            page = (folder / words[words.index("-o") + 1]).read_text()
            self.assertIn("</html>", page)
            self.assertLess(len(page), 1 << 20)
            short, _ = self.done(start([sys.executable, *words[1 : words.index("-o")]], folder))
            self.assertIn("step", short)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_the_program_is_typed(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train.py").write_text(program())
            # This program cannot fix torch's missing annotations.
            words = [sys.executable, "-m", "mypy", "--strict", "--allow-untyped-calls", "train.py"]
            output, _ = self.done(start(words, folder))
            self.assertIn("no issues found", output)

    def test_torchrun_on_two_machines(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train = folder / "train"
            train.write_text(f"#!{sys.executable}\n{program().replace('range(300)', 'range(20)')}")
            train.chmod(0o755)
            words = torchrun(command("torchrun --nnodes 2"))
            words[3:3] = ["--local-addr", "127.0.0.1"]
            words = [word.replace("HOST:29500", f"127.0.0.1:{ranks.free_port()}") for word in words]
            variables = {"GLOO_SOCKET_IFNAME": "lo"}
            for machine in [start(words, folder, **variables) for _ in range(2)]:
                self.done(machine)
            self.assertTrue((folder / "strategy.json").exists())

    def test_planning_without_running(self) -> None:
        words = command("build/release/gradtune replay")
        output, _ = self.done(start([sys.executable, "-m", "gradtune", *words[1:]], ROOT))
        claimed = re.search(r"It prints (\d+) buckets, .*?: ([\d.]+) ms, at most ([\d.]+) % above the best", README, re.S)
        assert claimed is not None
        for number in claimed.groups():
            self.assertIn(number, output)


if __name__ == "__main__":
    ranks.main()
