# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests training in rounds when ranks differ: in skipped updates, in values that are not finite, in parameters of their own."""

from __future__ import annotations

import os
import signal
import tempfile
import unittest
from pathlib import Path
from typing import Any

import ranks
import rounds

EXACT: dict[str, Any] = {"fidelity": "exact", "quiet": True, "timeout": 30}


def equal_everywhere(tensors: Any) -> bool:
    import torch
    import torch.distributed as dist

    flat = torch.cat([each.detach().flatten().double().cpu() for each in tensors])
    found = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(found, flat)
    return all(torch.equal(each, flat) for each in found)


def skips() -> dict[str, Any]:
    """The gradients of one rank overflow, so that its scaler skips an update; it also has fewer batches."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told: dict[str, Any] = {"equal": [], "rounds": []}
    for given in ({"delay": 0}, {"delay": 1}, {"fragments": 2, "delay": 1}):
        model = rounds.new_model()
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        optimizer = gradtune.rounds(inner, model, most=4, least=4, dense_steps=3, **EXACT, **given)
        scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0)
        for step in range(31 - rank):
            optimizer.zero_grad()
            loss = rounds.loss_of(model, rank, step)
            scaler.scale(loss * float("inf") if (rank, step) == (1, 9) else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step == 20:
                optimizer.end_round()
                told["equal"].append(equal_everywhere(model.parameters()))
        optimizer.end_round()
        told["equal"].append(equal_everywhere(model.parameters()))
        told["rounds"].append(optimizer.round_progress().rounds)
        told["again"] = optimizer.end_round()
        told["skipped"] = scaler.get_scale() < 4.0
        optimizer.close()
    ranks.leave_group()
    return told


def is_not_finite(kind: str) -> dict[str, Any]:
    """A batch of rank 0 is NaN: it reaches the state of the optimizer, and the buffers of BatchNorm."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = rounds.new_model()
    inner = getattr(torch.optim, kind)(model.parameters(), 0.01)
    optimizer = gradtune.rounds(inner, model, most=3, least=3, dense_steps=2, **EXACT)
    for step in range(32):
        optimizer.zero_grad()
        inputs, targets = torch.randn(16, 20), torch.randint(0, 5, (16,))
        if (rank, step) == (0, 15):
            inputs = inputs * float("nan")
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    progress = optimizer.round_progress()
    state = list(model.state_dict().values())
    told = {
        "finite": all(bool(each.isfinite().all()) for each in state),
        "equal": equal_everywhere(state),
        "rounds": progress.rounds,
        "lost": progress.lost,
        "state": all(bool(value.isfinite().all()) for each in inner.state.values() for value in each.values()),
    }
    optimizer.close()
    ranks.leave_group()
    return told


def is_not_finite_at_the_end() -> dict[str, Any]:
    """The exchange that end_round() completes is lost."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = rounds.new_model()
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    optimizer = gradtune.rounds(inner, model, most=2, least=2, delay=1, dense_steps=2, **EXACT)
    for step in range(10):
        optimizer.zero_grad()
        loss = rounds.loss_of(model, dist.get_rank(), step)
        (loss * float("nan") if (dist.get_rank(), step) == (0, 9) else loss).backward()
        optimizer.step()
    optimizer.end_round()
    told = {
        "state": all(bool(value.isfinite().all()) for each in inner.state.values() for value in each.values()),
        "equal": equal_everywhere(model.parameters()),
        "lost": optimizer.round_progress().lost,
    }
    optimizer.close()
    ranks.leave_group()
    return told


def has_its_own() -> dict[str, Any]:
    """Parameters that the model itself names as each rank's own."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4 + rank))  # each rank has its own head
    model._ddp_params_and_buffers_to_ignore = ["1.weight", "1.bias"]
    optimizer = gradtune.rounds(torch.optim.SGD(model.parameters(), 0.1), model, most=2, least=2, dense_steps=3, **EXACT)
    for step in range(13):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().sum().backward()
        optimizer.step()
    told = {"equal": equal_everywhere(model[0].parameters()), "rounds": optimizer.round_progress().rounds}
    optimizer.close()
    ranks.leave_group()
    return told


def keeps(folder: str) -> dict[str, Any]:
    """A job keeps the state that it loaded, until its first round ends."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    path = Path(folder, f"round-{dist.get_rank()}.pt")
    model = rounds.new_model()

    def begin(**given: Any) -> Any:
        inner = torch.optim.AdamW(model.parameters(), 0.01)
        return gradtune.rounds(inner, model, most=2, least=2, dense_steps=2, **EXACT, **given)

    optimizer = begin(keep_round=path)
    for step in range(8):
        rounds.update(model, optimizer, dist.get_rank(), step)
    kept = optimizer._gradtune._kept
    kept.write()
    optimizer.close()
    saved = torch.load(path)["rounds"]
    optimizer = begin(keep_round=path)
    optimizer.load_round(saved)
    optimizer._gradtune._kept.write()
    again = torch.load(path)["rounds"]
    differs = ""
    try:
        optimizer.load_round({**saved, "rounds": saved["rounds"] + dist.get_rank()})
    except gradtune.Error as error:
        differs = str(error)
    told = {
        "rounds": (saved["rounds"], again["rounds"]),
        "momenta": all(torch.equal(a, b) for a, b in zip(saved["momenta"], again["momenta"], strict=True)),
        "moved": any(bool(each.any()) for each in saved["momenta"]),
        "differs": differs,
    }
    ranks.leave_group()
    return told


def follows(folder: str) -> int:
    """Rank 1 has fewer data, and follows rank 0 until that one is killed."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = Path(folder, f"round-{rank}.pt")
    model = rounds.new_model()
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    optimizer = gradtune.rounds(inner, model, most=2, least=2, dense_steps=2, keep_round=path, **EXACT)
    while optimizer.round_progress().rounds < (30 if rank == 0 else 10):
        rounds.update(model, optimizer, rank, 0)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        optimizer.end_round()
    except gradtune.Error:
        return int(torch.load(path)["rounds"]["rounds"])
    return 0


def keeps_nowhere(folder: str) -> str:
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = rounds.new_model()
    try:
        gradtune.rounds(torch.optim.SGD(model.parameters(), 0.1), model, most=2, keep_round=Path(folder, "none", "round.pt"))
    except gradtune.Error as error:
        return str(error)
    return ""


class RoundsFaults(unittest.TestCase):
    def test_a_rank_that_skipped_an_update_ends_with_the_others(self) -> None:
        one, other = ranks.must_run(skips)
        self.assertEqual(one["equal"], [True] * 6)
        self.assertEqual(one["rounds"], other["rounds"])
        self.assertFalse(one["again"] or other["again"])
        self.assertEqual((one["skipped"], other["skipped"]), (False, True))

    def test_values_that_are_not_finite_cost_a_round(self) -> None:
        for kind in ("AdamW", "Adagrad"):
            for told in ranks.must_run(is_not_finite, arguments=[kind]):
                self.assertEqual(told, {"finite": True, "equal": True, "state": True, "rounds": 10, "lost": 1}, kind)

    def test_a_loss_at_the_end_of_a_round_mends_the_state_at_once(self) -> None:
        for told in ranks.must_run(is_not_finite_at_the_end):
            self.assertEqual(told, {"state": True, "equal": True, "lost": 1})

    def test_parameters_of_one_rank_alone_stay_its_own(self) -> None:
        for told in ranks.must_run(has_its_own):
            self.assertEqual(told, {"equal": True, "rounds": 5})

    def test_a_state_that_was_loaded_is_kept(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for told in ranks.must_run(keeps, arguments=[folder]):
                self.assertEqual(tuple(told["rounds"]), (3, 3))
                self.assertTrue(told["momenta"] and told["moved"], told)
                self.assertIn("states of a round's end differ between ranks", told["differs"])

    def test_a_rank_that_follows_the_others_keeps_their_last_round(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(ranks.run(follows, 2, arguments=[folder])[1].returned, 30)

    def test_a_folder_that_is_missing_is_named_before_training(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (told,) = ranks.must_run(keeps_nowhere, 1, arguments=[folder])
            self.assertIn("allowed is a file in a folder that exists", told)


if __name__ == "__main__":
    ranks.main()
