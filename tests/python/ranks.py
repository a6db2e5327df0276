# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job as processes, for tests: `python script.py --rank NAME` runs a function of the script on one of them.

A test file ends with `ranks.main()`. In the test, `ranks.run(function, size)` starts the processes, waits for them
and returns how each one ended, with the function's result (JSON). A rank that does not end in time is killed. With the
variable TEST_DEVICE the ranks make their tensors on a device (devices.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class End:
    """The end of a rank."""

    code: int
    in_time: bool
    seconds: float
    output: str  # standard output and error together
    returned: Any  # None if it did not return


class Running:
    """The ranks while they run."""

    def __init__(self, processes: list[subprocess.Popen[str]], logs: list[Path], ends_at: float) -> None:
        self.processes = processes
        self._logs = logs
        self._ends_at = ends_at

    def await_text(self, text: str) -> None:
        """Waits until every rank that runs has written the text."""
        for process, log in zip(self.processes, self._logs, strict=True):
            while text not in log.read_text() and process.poll() is None and time.monotonic() < self._ends_at:
                time.sleep(0.05)


DEVICE = {"": "cpu", "cuda": "cuda"}.get(os.environ.get("TEST_DEVICE", ""), "fake")  # its name in torch
BACKEND = os.environ.get("TEST_BACKEND", "gloo")  # of a GPU's tensors


def on_a_device() -> bool:
    """True if the ranks make their tensors on a device (devices.py)."""
    return DEVICE != "cpu"


def free_port() -> int:
    """A port below those that the kernel gives to connections, so that none takes it before the ranks listen there."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """The environment, as set by torchrun."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        **({"NCCL_HOSTID": f"rank{rank}"} if DEVICE == "cuda" else {}),  # see tests/gpu/on_gpu.py
        **more,
    }


def run(
    function: Callable[..., Any],
    size: int = 2,
    limit_s: float = 240,
    meanwhile: Callable[[Running], None] | None = None,
    arguments: list[str] | None = None,
    **variables: str,
) -> list[End]:
    """`meanwhile` is called once they run."""
    script = Path(function.__code__.co_filename).resolve()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"{rank}.json" for rank in range(size)]
        logs = [(Path(folder) / f"{rank}.log").open("w+") for rank in range(size)]
        began = time.monotonic()
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-B",
                    str(script),
                    "--rank",
                    function.__name__,
                    str(results[rank]),
                    *(arguments or []),
                ],
                env=environment(rank, size, port, **variables),
                stdout=logs[rank],
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]
        if meanwhile is not None:
            meanwhile(Running(processes, [Path(log.name) for log in logs], began + limit_s))
        ends = []
        for rank, process in enumerate(processes):
            in_time = True
            try:
                process.wait(max(0.1, began + limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                in_time = False
                process.send_signal(signal.SIGKILL)
                process.wait()
            logs[rank].seek(0)
            text = logs[rank].read()
            logs[rank].close()
            returned = json.loads(results[rank].read_text()) if results[rank].exists() else None
            ends.append(End(process.returncode, in_time, time.monotonic() - began, text, returned))
        return ends


def must_run(function: Callable[..., Any], size: int = 2, **more: Any) -> list[Any]:
    """The function's result on each rank; the test fails if one did not end well."""
    ends = run(function, size, **more)
    for rank, end in enumerate(ends):
        if end.code != 0 or not end.in_time:
            others = "".join(f"\n--- rank {r}\n{e.output}" for r, e in enumerate(ends))
            raise AssertionError(f"rank {rank} ended with {end.code} after {end.seconds:.0f} s{others}")
    return [end.returned for end in ends]


def leave_group() -> None:
    """Destroys the default process group, once Gloo's threads have released the tensors of the last collectives.

    They need the interpreter's lock for it, which sleeping gives them. Without it, torch 2.7 holds the lock while it
    waits for such a thread, and a thread that first gets the lock while the interpreter ends aborts the process.
    """
    import torch.distributed as dist

    time.sleep(0.5)
    dist.destroy_process_group()


def main() -> None:
    """The end of every test file."""
    if len(sys.argv) > 2 and sys.argv[1] == "--rank":
        if on_a_device():
            import devices

            devices.use()
        name, result = sys.argv[2], Path(sys.argv[3])
        returned = getattr(sys.modules["__main__"], name)(*sys.argv[4:])
        result.write_text(json.dumps(returned))
        return
    unittest.main(verbosity=2)
