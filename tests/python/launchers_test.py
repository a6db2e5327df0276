# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests which rank launchers report as failed, if one raises an exception and the others are told: that rank, whose
text reaches the others. LAUNCH_TRIALS: number of runs of each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Any

import ranks

TRIALS = int(os.environ.get("LAUNCH_TRIALS", "1"))
SIZE, FAILS = 3, 2
ROOT_CAUSE = re.compile(r"Root Cause.*?rank +: (\d+)", re.DOTALL)


def train_until_one_fails() -> None:
    """The last rank raises in its third step; the text that the others get is written to a file."""
    import gradtune
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=60)
    try:
        for step in range(1000):
            if step == 2 and dist.get_rank() == FAILS:
                raise ValueError("on purpose")
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    except gradtune.Error as error:
        (Path(os.environ["TOLD"]) / str(dist.get_rank())).write_text(str(error))
        raise


def child(rank: int, port: int) -> None:
    os.environ.update(ranks.environment(rank, SIZE, port))
    train_until_one_fails()


def spawned(method: str) -> dict[str, Any]:
    """The launcher of torch.multiprocessing raises the exception of the child that ended first."""
    import torch.multiprocessing as mp

    try:
        mp.start_processes(child, (ranks.free_port(),), SIZE, start_method=method)
    except mp.ProcessRaisedException as error:
        return {"blamed": error.error_index, "text": str(error)}
    return {"blamed": None, "text": ""}


def in_a_thread() -> None:
    thread = threading.Thread(target=train_until_one_fails)
    thread.start()
    thread.join()


def told(folder: str) -> dict[int, str]:
    return {int(path.name): path.read_text() for path in Path(folder).iterdir()}


class Launchers(unittest.TestCase):
    def expect_told(self, folder: str, what: str) -> None:
        texts = told(folder)
        self.assertEqual(set(texts), set(range(SIZE)) - {FAILS})
        for text in texts.values():
            self.assertIn(f"rank {FAILS} at step 2: its {what} ended with ValueError: on purpose", text)

    def test_torchrun_names_the_rank_that_failed(self) -> None:
        for trial in range(TRIALS):
            with self.subTest(trial=trial), tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(SIZE)]
                command += ["--master-port", str(ranks.free_port()), __file__, "--train"]
                ended = subprocess.run(
                    command,
                    env=os.environ | {"TOLD": folder, "OMP_NUM_THREADS": "1"},
                    capture_output=True,
                    text=True,
                    timeout=200,
                )
                self.assertNotEqual(ended.returncode, 0)
                found = ROOT_CAUSE.search(ended.stderr)
                assert found is not None, ended.stderr
                self.assertEqual(int(found.group(1)), FAILS, ended.stderr)
                self.expect_told(folder, "program")

    def test_spawn_and_fork_name_the_process_that_failed(self) -> None:
        for trial in range(TRIALS):
            for method in ("spawn", "fork"):
                with self.subTest(trial=trial, method=method), tempfile.TemporaryDirectory() as folder:
                    (end,) = ranks.must_run(spawned, 1, arguments=[method], TOLD=folder)
                    self.assertEqual(end["blamed"], FAILS, end["text"])
                    self.assertIn("ValueError: on purpose", end["text"])
                    self.expect_told(folder, "process")

    def test_what_ends_a_thread_is_told(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for end in ranks.run(in_a_thread, SIZE, TOLD=folder):
                self.assertTrue(end.in_time, end.output)
            self.expect_told(folder, "thread")


if __name__ == "__main__":
    if sys.argv[1:] == ["--train"]:
        train_until_one_fails()
    else:
        ranks.main()
