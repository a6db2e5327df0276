# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests ways in which a program ends. None hangs, none aborts, and the others learn why. EXIT_TRIALS: number of runs
of each."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import unittest
from typing import Any

import ranks

TRIALS = int(os.environ.get("EXIT_TRIALS", "1"))
LIMIT_S = 120


def job(steps: int = 5, say: bool = False) -> tuple[Any, Any]:
    """Trains a little."""
    import gradtune
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, timeout=20)
    train(model, optimizer, steps)
    if say:
        print("trained", flush=True)
    return model, optimizer


def train(model: Any, optimizer: Any, steps: int, pause_s: float = 0) -> None:
    import torch

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(pause_s)


def rank() -> int:
    return int(os.environ["RANK"])


def normal() -> None:
    job()
    print("the end")


def global_reference() -> None:
    global kept
    kept = job()
    print("the end")


def cyclic_reference() -> None:
    model, optimizer = job()
    model.optimizer, model.no_sync = optimizer, optimizer.no_sync
    optimizer.model = model
    print("the end")


def daemon_thread() -> None:
    import threading

    held = job()
    threading.Thread(target=lambda: (time.sleep(1000), held), daemon=True).start()
    print("the end")


def destroyed_first() -> None:
    import torch.distributed as dist

    held = job()
    dist.destroy_process_group()
    print("the end", held is not None)


def exit_3() -> None:
    held = job()
    sys.exit(3 if held else 4)


def exception_everywhere() -> None:
    held = job()
    raise ValueError(f"on purpose, {held is not None}")


def exception_on_one() -> None:
    model, optimizer = job()
    if rank() == 1:
        raise ValueError("on purpose")
    train(model, optimizer, 1000)


def exception_in_backward() -> None:
    import torch

    model, optimizer = job()

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise ValueError("on purpose")

    if rank() == 1:
        Broken.apply(model(torch.randn(4, 8))).sum().backward()
    train(model, optimizer, 1000)


def interrupted() -> None:
    train(*job(say=True), 1000, pause_s=0.01)


def interrupted_while_it_waits() -> None:
    """Rank 0 waits for rank 1, which does not come."""
    model, optimizer = job(say=True)
    if rank() == 1:
        time.sleep(60)
    train(model, optimizer, 1)


def killed() -> None:
    train(*job(say=True), 10000, pause_s=0.01)


def data_workers() -> None:
    import torch

    model, optimizer = job()
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    for _ in range(2):
        for (inputs,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
    print("the end")


def cell_run_twice() -> None:
    """As in a notebook: the same names are bound again while the objects of the first run are alive."""
    for _ in range(2):
        model, optimizer = job()
    print("the end", type(optimizer).__name__, model is not None)


class Exits(unittest.TestCase):
    def each_time(self, function: Any, **more: Any) -> list[list[ranks.End]]:
        all_ends = []
        for trial in range(TRIALS):
            ends = ranks.run(function, 2, limit_s=LIMIT_S, **more)
            for each in ends:
                text = f"trial {trial}: {each.output}"
                self.assertTrue(each.in_time, f"a hang in {text}")
                self.assertNotIn("terminate called", each.output, text)
                self.assertNotIn("Fatal Python error", each.output, text)
                self.assertNotIn(each.code, (-signal.SIGABRT, -signal.SIGSEGV), text)
            all_ends.append(ends)
        return all_ends

    def test_well(self) -> None:
        ways = (
            normal,
            global_reference,
            cyclic_reference,
            daemon_thread,
            destroyed_first,
            data_workers,
            cell_run_twice,
        )
        for function in ways:
            if function is data_workers and ranks.on_a_device():
                continue  # a forked process can not use its parent's device
            with self.subTest(function.__name__):
                for ends in self.each_time(function):
                    for each in ends:
                        self.assertEqual(each.code, 0, each.output)
                        self.assertIn("the end", each.output)

    def test_with_a_code(self) -> None:
        for function, code in ((exit_3, 3), (exception_everywhere, 1)):
            with self.subTest(function.__name__):
                for ends in self.each_time(function):
                    self.assertEqual([each.code for each in ends], [code, code], ends)

    def test_with_an_exception_on_one_rank(self) -> None:
        for function in (exception_on_one, exception_in_backward):
            with self.subTest(function.__name__):
                for ends in self.each_time(function):
                    self.assertEqual([each.code for each in ends], [1, 1])
                    self.assertIn("ValueError: on purpose", ends[1].output)
                    self.assertIn(
                        "gradtune._errors.Error: gradtune: rank 0 at step 5: another rank failed: rank 1 at step 5:",
                        ends[0].output,
                    )

    def test_ctrl_c(self) -> None:
        def send(running: ranks.Running) -> None:
            running.await_text("trained")
            time.sleep(0.5)
            for each in running.processes:
                each.send_signal(signal.SIGINT)

        for ends in self.each_time(interrupted, meanwhile=send):
            for each in ends:
                self.assertNotEqual(each.code, 0)
                self.assertTrue(
                    "KeyboardInterrupt" in each.output or "interrupted by its user" in each.output, each.output
                )

    @unittest.skipIf(ranks.on_a_device(), "a pass on a device waits on a thread of autograd, which no signal reaches")
    def test_ctrl_c_while_it_waits(self) -> None:
        def send(running: ranks.Running) -> None:
            running.await_text("trained")
            time.sleep(0.5)
            running.processes[0].send_signal(signal.SIGINT)
            self.assertIsNotNone(running.processes[0].wait(10), "it ended while the other one slept")
            running.processes[1].send_signal(signal.SIGINT)

        for ends in self.each_time(interrupted_while_it_waits, meanwhile=send):
            self.assertIn("KeyboardInterrupt", ends[0].output)
            self.assertIn("trained", ends[0].output)

    def test_killed(self) -> None:
        def send(running: ranks.Running) -> None:
            running.await_text("trained")
            time.sleep(0.5)
            running.processes[1].send_signal(signal.SIGKILL)

        for ends in self.each_time(killed, meanwhile=send):
            self.assertEqual(ends[0].code, 1, ends[0].output)
            self.assertIn("suspected: rank 1", ends[0].output)

    def test_killed_with_the_store(self) -> None:
        """The error says it, without stacks. c10d warns with one of its own if the store ends within a request."""

        def send(running: ranks.Running) -> None:
            running.await_text("trained")
            time.sleep(0.5)
            running.processes[0].send_signal(signal.SIGKILL)

        for ends in self.each_time(killed, meanwhile=send):
            self.assertEqual(ends[1].code, 1, ends[1].output)
            self.assertIn("suspected: rank 0 or whoever holds the store", ends[1].output)
            warning = r"\[rank1\]:\[W[^\n]* TCPStore\.cpp:[^\n]*\n(Exception raised[^\n]*\n)?(frame #[^\n]*\n)*"
            self.assertNotIn("frame #", re.sub(warning, "", ends[1].output))


if __name__ == "__main__":
    ranks.main()
