# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests updates that are skipped, and updates that come too early. parts.py has those that give the bits of DDP."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ranks


def message_of(body: Callable[[], Any]) -> str:
    try:
        body()
    except RuntimeError as error:
        return str(error)
    return "no error"


def wrapped() -> tuple[Any, Any]:
    """A model and its optimizer."""
    import gradtune
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    return model, gradtune.wrap(torch.optim.SGD(model.parameters(), 0.1), model, quiet=True, timeout=30)


def train(model: Any, optimizer: Any, steps: int) -> None:
    import torch

    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def saved_after_a_skip(folder: str) -> dict[str, Any]:
    """A step that is skipped, by a scaler or by the program, and then a checkpoint, from which it continues."""
    import torch

    model, optimizer = wrapped()
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0)
    told = []
    for step in range(6):
        optimizer.zero_grad()
        factor = float("inf") if step in (0, 3) else 1.0
        scaler.scale(model(torch.ones(2, 8)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        told.append(message_of(lambda: optimizer.save_checkpoint(Path(folder) / "scaled")))
    model(torch.ones(2, 8)).sum().backward()
    told.append(message_of(lambda: optimizer.save_checkpoint(Path(folder) / "left out")))
    told.append(message_of(lambda: optimizer.load_checkpoint(Path(folder) / "scaled")))
    steps = optimizer.progress().step
    train(model, optimizer, 3)
    done = optimizer.progress().step
    optimizer.close()
    return {"told": told, "steps": [steps, done]}


def stepping_within_backward() -> str:
    """By hooks that were registered after wrap(), which get each rank's own gradients."""
    import torch

    model, optimizer = wrapped()
    train(model, optimizer, 3)

    def step(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter -= 0.1 * parameter.grad

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    said = message_of(lambda: train(model, optimizer, 1))
    optimizer.close()
    return said


class Updates(unittest.TestCase):
    def test_a_step_that_is_left_out_may_be_followed_by_a_checkpoint(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for told in ranks.must_run(saved_after_a_skip, arguments=[folder]):
                self.assertEqual(set(told["told"]), {"no error"})
                self.assertEqual(told["steps"], [4, 7])

    def test_an_update_within_backward_is_an_error(self) -> None:
        for said in ranks.must_run(stepping_within_backward):
            self.assertIn("parameters were changed within a backward pass", said)


if __name__ == "__main__":
    ranks.main()
