# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests training in rounds."""

from __future__ import annotations

import copy
import signal
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import ranks
import rounds

EXACT: dict[str, Any] = {"fidelity": "exact", "quiet": True, "timeout": 30}


def begun(updates: int, **options: Any) -> tuple[Any, Any]:
    """A model and its optimizer after five dense steps, in rounds of so many updates."""
    import gradtune
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    model = rounds.new_model()
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    given = {"least": updates, "most": updates, "dense_steps": 5, **EXACT, **options}
    optimizer = gradtune.rounds(inner, model, **given)
    for step in range(5):
        assert optimizer.round_progress().synchronous
        rounds.update(model, optimizer, dist.get_rank(), step)
    return model, optimizer


def equals_one_rank() -> dict[str, Any]:
    """Rounds with accumulation, clipping, a schedule and BatchNorm, beside the same on one rank."""
    import torch.distributed as dist

    model, optimizer = begun(4)
    rank = dist.get_rank()
    expected = rounds.Expected(model, optimizer, dist.get_world_size())
    farthest = 0.0
    for step in range(5, 65):
        before = optimizer.round_progress().rounds
        rounds.update(model, optimizer, rank, step)
        expected.update(step)
        if optimizer.round_progress().rounds > before:
            expected.end_round()
        farthest = max(farthest, expected.farthest(model, rank))
    told = optimizer.round_progress()
    optimizer.close()
    ranks.leave_group()
    return {"farthest": farthest, "rounds": told.rounds, "updates_a_round": told.updates_a_round}


def streams(folder: str) -> dict[str, Any]:
    """Rounds of 4 updates in two fragments, each of which arrives after another update, beside the same on one rank."""
    import torch.distributed as dist

    journal = str(Path(folder, "job.jsonl"))
    model, optimizer = begun(4, fragments=2, delay=1, journal=journal)
    rank = dist.get_rank()
    expected = rounds.Expected(model, optimizer, dist.get_world_size())
    fragments = [[0], [1, 2, 3]]  # the first matrix has three quarters of the elements
    farthest = 0.0
    for update in range(1, 61):
        rounds.update(model, optimizer, rank, 4 + update)
        expected.update(4 + update)
        if update > 2 and update % 2 == 1:
            expected.complete(with_buffers=update % 4 == 1)
        if update % 2 == 0:
            expected.begin_exchange(fragments[update // 2 % 2 - 1])
        farthest = max(farthest, expected.farthest(model, rank))
    told = optimizer.round_progress()
    optimizer.end_round()
    expected.complete(with_buffers=True)
    expected.begin_exchange(fragments[0])  # the other one had no updates since
    expected.complete(with_buffers=True)
    farthest = max(farthest, expected.farthest(model, rank))
    optimizer.export_strategy(str(Path(folder, "strategy.json")))
    optimizer.close()
    ranks.leave_group()
    return {"farthest": farthest, "rounds": told.rounds, "delay": told.delay}


def synchronous() -> dict[str, Any]:
    """With most=1, training equals that of wrap()."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    one, two = rounds.new_model(), rounds.new_model()
    in_rounds = gradtune.rounds(torch.optim.AdamW(one.parameters(), 0.01), one, most=1, dense_steps=3, **EXACT)
    wrapped = gradtune.wrap(torch.optim.AdamW(two.parameters(), 0.01), two, **EXACT)
    for step in range(30):
        rounds.update(one, in_rounds, dist.get_rank(), step)
        rounds.update(two, wrapped, dist.get_rank(), step)
    equal = all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    told = {"equal": equal, "synchronous": in_rounds.round_progress().synchronous, "ended": in_rounds.end_round()}
    in_rounds.close()
    wrapped.close()
    ranks.leave_group()
    return told


def train(model: Any, optimizer: Any, first: int, steps: int) -> None:
    import torch.distributed as dist

    for step in range(first, first + steps):
        rounds.update(model, optimizer, dist.get_rank(), step)


def checkpoints(folder: str) -> dict[str, Any]:
    """A job that loads a checkpoint of rounds, or of synchronous steps, goes on with the same bits."""
    import gradtune
    import torch
    import torch.distributed as dist

    lossy: dict[str, Any] = {**EXACT, "fidelity": "lossy", "compressors": ["int4packed"], "tuning_budget": 0}
    dist.init_process_group("gloo")
    told: dict[str, Any] = {}
    for kind, dense_steps, fragments in (("rounds", 5, 1), ("fragments", 5, 2), ("synchronous", 1_000_000, 1)):
        model = rounds.new_model()
        given = {"most": 3, "least": 3, "delay": 1, "fragments": fragments, "dense_steps": dense_steps, **lossy}
        optimizer = gradtune.rounds(torch.optim.AdamW(model.parameters(), 0.01), model, **given)
        train(model, optimizer, 0, 20)
        path = str(Path(folder, kind))
        optimizer.save_checkpoint(path)
        other = rounds.new_model()
        other.load_state_dict(model.state_dict())
        inner = torch.optim.AdamW(other.parameters(), 0.01)
        inner.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        resumed = gradtune.rounds(inner, other, **given)
        resumed.load_checkpoint(path)
        told[kind] = {"is_synchronous": resumed.round_progress().synchronous}
        train(model, optimizer, 20, 10)
        train(other, resumed, 20, 10)
        told[kind]["equal"] = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
        told[kind]["same rounds"] = optimizer.round_progress().rounds == resumed.round_progress().rounds
        optimizer.close()
        resumed.close()
    ranks.leave_group()
    return told


def is_killed(folder: str) -> dict[str, Any]:
    """A rank is killed in a round; the others write the end of the last one."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, first = dist.get_rank(), 5
    kept = Path(folder, f"round-{rank}.pt")
    model, optimizer = begun(4, keep_round=kept)
    ended: Any = None
    try:
        for later in range(first, first + 100_000):
            if later == first + 40:
                print("in rounds", flush=True)
            if later >= first + 40:
                time.sleep(0.02)
            before = optimizer.round_progress().rounds
            rounds.update(model, optimizer, rank, later)
            if optimizer.round_progress().rounds > before:
                ended = ([p.detach().clone() for p in model.parameters()], optimizer.round_progress().rounds)
    except gradtune.Error as error:
        saved = torch.load(kept)
        found = [saved["model"][name] for name, _ in model.named_parameters()]
        return {
            "error": str(error),
            "code": error.code,
            "equal": all(torch.equal(a, b) for a, b in zip(found, ended[0], strict=True)),
            "rounds": saved["rounds"]["rounds"] == ended[1],
        }
    return {}


def is_killed_between_fragments() -> tuple[str, float]:
    """A rank is killed in a round with fragments."""
    import gradtune
    import torch.distributed as dist

    model, optimizer = begun(4, fragments=2, delay=1)
    print("in rounds", flush=True)
    began = 0.0
    try:
        for later in range(100_000):
            time.sleep(0.02)
            began = time.monotonic()
            rounds.update(model, optimizer, dist.get_rank(), 5 + later)
    except gradtune.Error as error:
        return str(error), time.monotonic() - began
    return "", 0.0


def restarts(folder: str) -> dict[str, Any]:
    """Fewer ranks go on from what one of the others wrote."""
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    saved = torch.load(Path(folder, "round-0.pt"))
    model = rounds.new_model()
    model.load_state_dict(saved["model"])
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    inner.load_state_dict(saved["optimizer"])
    optimizer = gradtune.rounds(inner, model, most=4, least=4, **EXACT)
    optimizer.load_round(saved["rounds"])
    first = optimizer.round_progress()
    train(model, optimizer, 0, 10)
    optimizer.end_round()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_flat = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(all_flat, flat)
    optimizer.close()
    ranks.leave_group()
    return {
        "synchronous": first.synchronous,
        "rounds": first.rounds - saved["rounds"]["rounds"],
        "equal": all(torch.equal(each, flat) for each in all_flat),
    }


def unequally_fast() -> dict[str, Any]:
    """Rank 1 takes longer for its updates; all ranks train for as many rounds."""
    import torch
    import torch.distributed as dist

    model, optimizer = begun(2, most=20, least=2, uneven=True)
    updates = 0
    while optimizer.round_progress().rounds < 25:
        time.sleep(0.02 * dist.get_rank())
        rounds.update(model, optimizer, dist.get_rank(), updates)
        updates += 1
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_flat = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(all_flat, flat)
    optimizer.close()
    ranks.leave_group()
    return {"updates": updates, "equal": all(torch.equal(each, flat) for each in all_flat)}


def refusals() -> dict[str, str]:
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = rounds.new_model()
    told = {}
    options: dict[str, dict[str, Any]] = {
        "most": {"most": 0},
        "least": {"least": 9},
        "delay": {"delay": 1},
        "keep_round": {"delay": None, "keep_round": "round.pt"},
        "keep_round of fragments": {"fragments": 2, "keep_round": "round.pt"},
        "fragments": {"fragments": 0},
        "fragments and delay": {"fragments": 4, "least": 4, "delay": 2},
        "more fragments than parameters": {"fragments": 5},
        "uneven": {"uneven": True, "delay": None},
        "dense_steps": {"dense_steps": 0},
        "outer_lr": {"outer_lr": 0.0},
        "outer_momentum": {"outer_momentum": 1.0},
        "unknown": {"mots": 4},
    }
    for name, given in options.items():
        try:
            gradtune.rounds(torch.optim.SGD(model.parameters(), 0.1), model, **{"most": 8, **given})
        except (gradtune.Error, TypeError) as error:
            told[name] = str(error)
    make: Any = gradtune.rounds
    try:
        make(torch.optim.SGD(model.parameters(), 0.1), model)
    except TypeError as error:
        told["no most"] = str(error)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    try:
        gradtune.rounds(torch.optim.SGD(model.parameters(), 0.1), ddp, most=8)
    except gradtune.Error as error:
        told["ddp"] = str(error)
    ranks.leave_group()
    return told


def differ() -> str:
    import gradtune
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = rounds.new_model()
    try:
        gradtune.rounds(torch.optim.SGD(model.parameters(), 0.1), model, most=8 - 4 * dist.get_rank(), **EXACT)
    except gradtune.Error as error:
        return str(error)
    return ""


def kill_one(running: ranks.Running) -> None:
    running.await_text("in rounds")
    running.processes[1].send_signal(signal.SIGKILL)


class RoundsTest(unittest.TestCase):
    def test_rounds_equal_the_same_training_on_one_rank(self) -> None:
        for size in (1, 2, 3):
            for told in ranks.must_run(equals_one_rank, size):
                self.assertLess(told["farthest"], 1e-4, told)
                self.assertEqual(told["rounds"], 15)

    def test_fragments_are_exchanged_one_after_the_other(self) -> None:
        for size in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                for told in ranks.must_run(streams, size, arguments=[folder]):
                    self.assertLess(told["farthest"], 1e-4, told)
                    self.assertEqual((told["rounds"], told["delay"]), (14, 1))
                names = {"job.jsonl", "job.fragment-2.jsonl", "strategy.json", "strategy.fragment-2.json"}
                self.assertEqual({path.name for path in Path(folder).iterdir()}, names)

    def test_one_update_a_round_is_synchronous_training(self) -> None:
        for told in ranks.must_run(synchronous):
            self.assertEqual(told, {"equal": True, "synchronous": True, "ended": False})

    def test_a_job_that_loads_a_checkpoint_goes_on_with_the_same_bits(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for told in ranks.must_run(checkpoints, arguments=[folder]):
                for kind in ("rounds", "fragments", "synchronous"):
                    expected = {"is_synchronous": kind == "synchronous", "equal": True, "same rounds": True}
                    self.assertEqual(told[kind], expected, kind)

    def test_a_killed_rank_costs_a_round_and_fewer_ranks_go_on(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            ends = ranks.run(is_killed, 3, meanwhile=kill_one, arguments=[folder])
            for end in (ends[0], ends[2]):
                self.assertEqual(end.code, 0, end.output)
                self.assertIn("rank 1", end.returned["error"])
                self.assertTrue(end.returned["equal"] and end.returned["rounds"], end.returned)
                self.assertIn("the state of the end of the last round is in", end.output)
            for told in ranks.must_run(restarts, arguments=[folder]):
                self.assertEqual(told, {"synchronous": False, "rounds": 0, "equal": True})

    def test_a_killed_rank_is_named_by_the_fragment_that_waits_for_it(self) -> None:
        ends = ranks.run(is_killed_between_fragments, 3, meanwhile=kill_one)
        for end in (ends[0], ends[2]):
            self.assertEqual(end.code, 0, end.output)
            error, seconds = end.returned
            self.assertIn("rank 1", error)
            self.assertLess(seconds, 20, "the timeout is 30 s")

    def test_a_faster_rank_makes_more_updates(self) -> None:
        fast, slow = ranks.must_run(unequally_fast)
        self.assertTrue(fast["equal"] and slow["equal"])
        self.assertGreater(fast["updates"], slow["updates"])

    def test_ranks_with_different_rounds_are_named(self) -> None:
        for told in ranks.must_run(differ):
            self.assertIn("options of rounds differ between ranks", told)
            self.assertIn("rounds: most is 4 on rank 1 and 8 on rank 0", told)

    def test_wrong_arguments_are_named(self) -> None:
        (told,) = ranks.must_run(refusals, 1)
        self.assertIn("most is 0; allowed is a number of updates from 1 to 1000000", told["most"])
        self.assertIn("missing 1 required keyword-only argument: 'most'", told["no most"])
        self.assertIn("least is 9; allowed is a number of updates from 1 to most", told["least"])
        self.assertIn("delay is 1; allowed is 0, or a number of updates below least", told["delay"])
        self.assertIn("with delay None and fragments 1; allowed is a delay of 0", told["keep_round"])
        self.assertIn("with delay 0 and fragments 2; allowed is", told["keep_round of fragments"])
        self.assertIn("fragments is 0; allowed is a number from 1 to 64", told["fragments"])
        self.assertIn("delay is 2; allowed is at most 1, which is least / fragments", told["fragments and delay"])
        self.assertIn("fragments is 5; allowed is at most the number of trained parameters, which is 4",
                      told["more fragments than parameters"])
        self.assertIn("uneven is true; allowed is false with a delay other than 0", told["uneven"])
        self.assertIn("dense_steps is 0; allowed is", told["dense_steps"])
        self.assertIn("outer_lr is 0; allowed is", told["outer_lr"])
        self.assertIn("outer_momentum is 1; allowed is", told["outer_momentum"])
        self.assertIn("unexpected keyword argument 'mots'", told["unknown"])
        self.assertIn("rounds() takes the plain model", told["ddp"])


if __name__ == "__main__":
    ranks.main()
