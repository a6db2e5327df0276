#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package on a GPU that all ranks share, several tables at once.

usage: python_tables.py gloo|nccl [TABLE...]

A table is a file of tests/python. Each ends with a line here, and what a table that failed wrote follows. The exit code is
0 if all passed. The package has to be found by PYTHONPATH (package.py).
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "python"
TABLES = ("wrap", "semantics", "attach", "updates", "optimizers", "habits", "rounds", "rounds_faults", "exits")
OVER_NCCL_TOO = ("hsdp",)  # Gloo does not scatter a GPU's tensors
AT_ONCE, LIMIT_S = 5, 170
SHOWN = 6_000  # characters of a table that failed


class Table:
    def __init__(self, name, environment):
        self.name, self.began, self.output = name, time.monotonic(), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sys.executable, "-B", TESTS / f"{name}_test.py"], stdout=self.output,
                                        stderr=subprocess.STDOUT, env=environment, start_new_session=True)

    def end(self):
        """The way in which it ended, and its output."""
        try:
            status = self.process.wait(max(0.1, self.began + LIMIT_S - time.monotonic()))
            ended = "passed" if status == 0 else f"failed with status {status}"
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # and the ranks that it started
            self.process.wait()
            ended = f"ran out of time after {LIMIT_S} s"
        self.output.seek(0)
        return ended, self.output.read()


def main():
    backend, names = sys.argv[1], sys.argv[2:]
    left = list(names or (*TABLES, *(OVER_NCCL_TOO if backend == "nccl" else ())))
    environment = {**os.environ, "TEST_DEVICE": "cuda", "TEST_BACKEND": backend}
    running, bad = [], 0
    while left or running:
        while left and len(running) < AT_ONCE:
            running.append(Table(left.pop(0), environment))
        table = running.pop(0)
        ended, said = table.end()
        print(f"{table.name} over {backend}: {ended}, {time.monotonic() - table.began:.0f} s", flush=True)
        if ended != "passed":
            bad += 1
            print(said[-SHOWN:], flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
