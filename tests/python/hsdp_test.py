# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests gradtune between the replicas of models that FSDP2 shards, against FSDP2's own hybrid sharding in the same job."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import hsdp
import ranks

IS_LONG = os.environ.get("HSDP_LONG") == "1"
STEPS = 50 if IS_LONG else 6 if ranks.on_a_device() else 10
TORCH = tuple(int(number) for number in importlib.metadata.version("torch").split(".")[:2])
EXACT = {"GRADTUNE_FIDELITY": "exact", "GRADTUNE_QUIET": "1", "GRADTUNE_TIMEOUT": "60"}
# Three replicas: see three_replicas(). AdamW divides by small numbers, so its parameters differ by more than the sums.
THREE_RANKS = 1e-6


def every_case(replicas: str, shards: str) -> dict[str, Any]:
    """By case: the largest difference, the session's steps, and how far the parameters moved."""
    theirs_mesh, mesh = hsdp.set_up(int(replicas), int(shards))
    group = mesh["replica"].get_group()
    told: dict[str, Any] = {}
    for name, case in hsdp.CASES.items():
        _, theirs = hsdp.trained(case, theirs_mesh, STEPS)
        before = group.all()
        _model, ours = hsdp.trained(case, mesh, STEPS)
        (served,) = (each for each in group.all() if each not in before)
        told[name] = {
            "difference": hsdp.farthest(theirs, ours),
            "steps": served.progress().step if served.has_session else None,
            "moved": hsdp.farthest(ours, hsdp.new_model().parameters()),
        }
        served.close()
    ranks.leave_group()
    return told


def slow_streams() -> dict[str, float]:
    """By case: the largest difference if FSDP's streams are far behind the host and the model's stream."""
    theirs_mesh, mesh = hsdp.set_up(2, 2)
    told = {}
    for name in ("averages", "sums divided by 7", "two passes that add up, set_is_last_backward", "offloaded to the CPU"):
        case = hsdp.CASES[name]
        told[name] = hsdp.farthest(*(hsdp.trained(case, each, 4, around=hsdp.slow_streams)[1] for each in (theirs_mesh, mesh)))
    return told


def ways_in(folder: str) -> dict[str, Any]:
    """The other ways to begin, the methods, and checkpoints."""
    import gradtune
    import torch
    import torch.distributed as dist

    theirs_mesh, mesh = hsdp.set_up(2, 2)
    told: dict[str, Any] = {}
    case = hsdp.CASES["averages"]

    _, theirs = hsdp.trained(case, theirs_mesh, 6)
    options: dict[str, Any] = {"fidelity": "exact", "quiet": True, "timeout": 60, "tuning_budget": 0}
    replicas, ours = hsdp.trained(case, theirs_mesh, 6, lambda model: gradtune.between_replicas(model, **options))
    told["between_replicas"] = hsdp.farthest(theirs, ours)
    told["steps"] = replicas.progress().step
    replicas.close()
    with hsdp.caught() as told["closed"]:
        replicas.progress()

    def wrapped(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        assert gradtune.wrap(optimizer, model, **options) is optimizer
        return optimizer

    optimizer, ours = hsdp.trained(case, mesh, 6, wrapped)
    told["wrap"] = hsdp.farthest(theirs, ours)
    told["wrap, steps"] = optimizer.progress().step
    path = Path(folder) / f"{mesh['shard'].get_local_rank()}.json"
    optimizer.export_strategy(path)
    optimizer.close()
    dist.barrier()
    model = hsdp.sharded(hsdp.new_model(), mesh)
    again = gradtune.between_replicas(model, strategy=path, **options)
    with hsdp.caught() as told["before"]:
        again.result()
    again = gradtune.between_replicas(model, strategy=path, **options)  # takes the place of the first
    for step in range(3):
        model.zero_grad()
        hsdp.loss_of(model, step).backward()
    told["pinned"] = again.result().strategy
    again.save_checkpoint(Path(folder) / f"checkpoint{mesh['shard'].get_local_rank()}")
    again.load_checkpoint(Path(folder) / f"checkpoint{mesh['shard'].get_local_rank()}")
    again.close()
    told["plain"] = hsdp.farthest(*(hsdp.trained(case, each, 6, lambda m: None)[1] for each in (theirs_mesh, mesh)))

    def tuned(model: Any) -> Any:
        return gradtune.between_replicas(model, fidelity="half", quiet=True, tuning_budget=30, timeout=60)

    replicas, ours = hsdp.trained(case, mesh, 60, tuned)
    told["decided"] = replicas.result().decided
    told["result"] = str(replicas.result())
    told["finite"] = all(bool(each.isfinite().all()) for each in ours)
    replicas.close()

    ranks.leave_group()
    return told


def checkpoints_and_collectives(folder: str) -> dict[str, Any]:
    """Checkpoints of torch, and collectives of the replicas' group that reduce no gradients."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    theirs_mesh, mesh = hsdp.set_up(2, 2)
    told: dict[str, Any] = {}
    told["dcp"] = hsdp.farthest(
        hsdp.saved_and_loaded(theirs_mesh, Path(folder) / "theirs", 4, lambda model: None),
        hsdp.saved_and_loaded(mesh, Path(folder) / "ours", 4, lambda model: None),
    )

    group = mesh["replica"].get_group()
    mine = torch.full((3,), 1.0 + group.rank())
    gathered = [torch.zeros(3) for _ in range(2)]
    dist.all_gather(gathered, mine, group=group)
    told["all_gather"] = [float(each[0]) for each in gathered]
    dist.broadcast(mine, group=group, group_src=1)
    told["broadcast"] = float(mine[0])
    dist.all_reduce(mine, group=group)
    told["all_reduce"] = float(mine[0])
    told["functional"] = float(functional.all_reduce(mine, "sum", group)[0])
    work = dist.all_reduce(mine, group=group, async_op=True)
    work.wait()
    told["async"] = float(mine[0])
    dist.barrier(group)
    ranks.leave_group()
    return told


def refused() -> dict[str, Any]:
    import gradtune
    import torch
    from torch.distributed.fsdp import fully_shard

    theirs_mesh, mesh = hsdp.set_up(2, 2)
    told: dict[str, Any] = {}
    model = hsdp.new_model()
    with hsdp.caught() as told["option"]:
        gradtune.between_replicas(model, fidelty="exact")
    with hsdp.caught() as told["not sharded"]:
        gradtune.between_replicas(model)
    one = fully_shard(hsdp.new_model(), mesh=theirs_mesh["shard"])
    with hsdp.caught() as told["without replicas"]:
        gradtune.wrap(torch.optim.SGD(one.parameters(), 0.1), one)
    both = hsdp.sharded(hsdp.new_model(), mesh)
    with hsdp.caught() as told["group"]:
        gradtune.wrap(torch.optim.SGD(both.parameters(), 0.1), both, mesh["replica"].get_group())

    def change() -> None:
        next(changed.parameters()).grad.to_local().mul_(1.5)

    engine: Any = torch.autograd.Variable._execution_engine
    for name, options in (("changed in backward", {}), ("cast and changed in backward", hsdp.mixed("bfloat16")())):
        changed = hsdp.sharded(hsdp.new_model(), mesh, **options)
        with hsdp.caught() as told[name]:
            for step in range(3):
                changed.zero_grad()
                loss = hsdp.loss_of(changed, step)
                if step == 2:  # the call comes after that of FSDP, which makes gradients, and before that of gradtune
                    changed[-1].register_full_backward_pre_hook(lambda *_: engine.queue_callback(change))
                    loss = hsdp.loss_of(changed, step)
                loss.backward()
    return {**told, **misused(mesh)}


def misused(mesh: Any) -> dict[str, Any]:
    """Programs that use gradients or parameters before backward has ended."""
    import gradtune
    import torch

    told: dict[str, Any] = {}
    for name in ("stepped", "stepped by foreach", "replaced", "closed"):
        model = hsdp.sharded(hsdp.new_model(), mesh)
        replicas = gradtune.between_replicas(model)
        optimizer = torch.optim.SGD(model[3].parameters(), 0.1, foreach="foreach" in name)

        def misuse(name: str = name, model: Any = model, replicas: Any = replicas, optimizer: Any = optimizer) -> None:
            if name.startswith("stepped"):
                optimizer.step()
            elif name == "closed":
                replicas.close()
            else:
                model[3].weight.grad = model[3].weight.grad * 2

        with hsdp.caught() as told[name]:
            for step in range(3):
                model.zero_grad()
                loss = hsdp.loss_of(model, step)
                if step == 2:
                    model[1].register_full_backward_pre_hook(lambda *_, misuse=misuse: misuse())
                    loss = hsdp.loss_of(model, step)
                loss.backward()
    plain = torch.nn.Sequential(hsdp.sharded(hsdp.new_model(), mesh), torch.nn.Linear(4, 4))
    with hsdp.caught() as told["not in a unit"]:
        gradtune.wrap(torch.optim.SGD(plain.parameters(), 0.1), plain)
    with hsdp.caught() as told["ignore"]:
        gradtune.between_replicas(plain[0], ignore=["0"])
    return told


def unreadable() -> dict[str, Any]:
    """Reductions as by a version of FSDP2 without the names that gradtune reads."""
    import torch
    import torch.distributed as dist

    _, mesh = hsdp.set_up(2, 2)
    group = mesh["replica"].get_group()
    tensor = torch.full((3,), 1.0 + group.rank())

    def foreach_reduce() -> None:
        dist.all_reduce(tensor, group=group)

    def post_backward() -> None:
        foreach_reduce()

    foreach_reduce()
    post_backward()
    return {"sum": float(tensor[0]), "jobs": len(group.all())}


def three_replicas() -> dict[str, int]:
    """Counts elements of gradients, summed by FSDP2 and by gradtune, that are no sum of the replicas' own in any order.

    A sum of three numbers has three orders, (a + b) + c, (b + c) + a and (c + a) + b, which may be rounded differently. In
    a ring all-reduce the order depends on an element's place in the message, and gradtune's messages are not FSDP2's.
    """
    import torch
    import torch.distributed as dist

    theirs_mesh, mesh = hsdp.set_up(3, 1)
    case = hsdp.CASES["sums divided by 1"]
    told = {"elements": 0, "theirs": 0, "ours": 0}
    models = []
    for each in (theirs_mesh, mesh):
        models.append(hsdp.sharded(hsdp.new_model(), each))
        case.prepare(models[-1])
    alone = hsdp.new_model()
    for step in range(STEPS):
        for model in (*models, alone):
            model.zero_grad()
            hsdp.loss_of(model, step).backward()
        for parameters in zip(*(model.parameters() for model in (*models, alone)), strict=True):
            theirs, ours = (each.grad.full_tensor() for each in parameters[:2])
            own = parameters[2].grad
            parts = [torch.empty_like(own) for _ in range(3)]
            dist.all_gather(parts, own)
            a, b, c = parts
            orders = torch.stack([(a + b) + c, (b + c) + a, (c + a) + b])
            told["elements"] += own.numel()
            told["theirs"] += int((orders != theirs).all(0).sum())
            told["ours"] += int((orders != ours).all(0).sum())
    for served in mesh["replica"].get_group().all():
        served.close()
    ranks.leave_group()
    return told


def differing(when: str) -> list[str]:
    """Replica 1 leaves out a layer in that pass."""
    _, mesh = hsdp.set_up(2, 2)
    case = hsdp.CASES["other layers in each pass"]
    model = case.shard(case.change(hsdp.new_model()), mesh)
    with hsdp.caught() as told:
        for step in range(int(when) + 3):
            model.zero_grad()
            is_other = step == int(when) and mesh["replica"].get_local_rank() == 1
            hsdp.loss_of(model, step, 1 if is_other else 99).backward()
    return told


def joining() -> list[str]:
    """Replica 1 runs a layer from the fourth pass on, which replica 0 leaves out."""
    _, mesh = hsdp.set_up(2, 2)
    case = hsdp.CASES["other layers in each pass"]
    model = case.shard(case.change(hsdp.new_model()), mesh)
    with hsdp.caught() as told:
        for step in range(8):
            model.zero_grad()
            is_whole = step >= 4 and mesh["replica"].get_local_rank() == 1
            hsdp.loss_of(model, step, 99 if is_whole else 1).backward()
    time.sleep(5)  # the others ask this process's store who failed
    return told


def killed() -> list[str]:
    """Rank 3 dies in a backward pass."""
    import torch.distributed as dist

    _, mesh = hsdp.set_up(2, 2)
    model = hsdp.sharded(hsdp.new_model(), mesh)
    with hsdp.caught() as told:
        for step in range(6):
            model.zero_grad()
            loss = hsdp.loss_of(model, step)
            if step == 4 and dist.get_rank() == 3:
                loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            loss.backward()
    time.sleep(5)  # the others ask this process's store who failed
    return told


class Versions(unittest.TestCase):
    def test_versions_of_torch_that_were_not_tested_are_refused(self) -> None:
        import gradtune
        import torch

        with mock.patch.object(torch, "__version__", "2.10.1+cpu"), self.assertRaises(gradtune.Error) as refused:
            gradtune.between_replicas(torch.nn.Linear(2, 2))
        self.assertIn("needs torch 2.11 or later, and this is torch 2.10.1+cpu", str(refused.exception))


ON_CPU_ALONE = unittest.skipIf(ranks.on_a_device(), "it does not depend on the device")


@unittest.skipIf(TORCH < (2, 11), "between replicas torch 2.11 or later is needed")
class Meshes(unittest.TestCase):
    def check(self, replicas: int, shards: int) -> None:
        size = replicas * shards
        results = ranks.must_run(every_case, size, arguments=[str(replicas), str(shards)], limit_s=1800, **EXACT)
        for rank, told in enumerate(results):
            self.assertEqual(set(told), set(hsdp.CASES))
            for name, case in hsdp.CASES.items():
                with self.subTest(rank=rank, case=name):
                    # With three replicas, sums of 16 bits in another order differ in their last bit, which 50 steps amplify.
                    is_short = "float16" in name and replicas == 3
                    allowed = 0 if replicas < 3 else 2 if is_short else THREE_RANKS
                    self.assertLessEqual(told[name]["difference"], allowed)
                    is_used_at_once = ranks.on_a_device() and "offloaded" in name
                    expected = None if is_used_at_once else case.session_steps(STEPS)
                    self.assertEqual(told[name]["steps"], expected)
                    self.assertGreater(told[name]["moved"], 0)


class Hsdp(Meshes):
    def test_two_replicas_of_two_shards_come_to_the_bits_of_hybrid_sharding(self) -> None:
        self.check(2, 2)

    @unittest.skipUnless(ranks.on_a_device(), "streams are for a device")
    def test_streams_of_fsdp_may_be_far_behind(self) -> None:
        for told in ranks.must_run(slow_streams, 4, **EXACT):
            self.assertEqual(set(told.values()), {0}, told)

    @ON_CPU_ALONE
    def test_three_replicas_come_to_a_sum_in_some_order(self) -> None:
        for told in ranks.must_run(three_replicas, 3, **EXACT):
            self.assertGreater(told["elements"], 0)
            self.assertEqual((told["theirs"], told["ours"]), (0, 0))

    def test_the_ways_in_and_the_methods(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results = ranks.must_run(ways_in, 4, arguments=[folder], **EXACT)
        for told in results:
            for name in ("between_replicas", "wrap", "plain"):
                self.assertEqual(told[name], 0, name)
            self.assertEqual((told["steps"], told["wrap, steps"]), (5, 5))
            self.assertIn("nor after close()", told["closed"][0])
            self.assertIn("no session before the end of the first backward pass", told["before"][0])
            self.assertTrue(told["pinned"])
            self.assertTrue(told["decided"])
            self.assertIn("fidelity half", told["result"])
            self.assertTrue(told["finite"])

    @ON_CPU_ALONE
    def test_checkpoints_of_torch_and_other_collectives(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results = ranks.must_run(checkpoints_and_collectives, 4, arguments=[folder], **EXACT)
        for told in results:
            self.assertEqual(told["dcp"], 0)
            self.assertEqual(told["all_gather"], [1, 2])
            self.assertEqual([told[name] for name in ("broadcast", "all_reduce", "functional", "async")], [2, 4, 8, 8])

    def test_what_it_can_not_serve_is_refused_by_name(self) -> None:
        for told in ranks.must_run(refused, 4, **EXACT):
            self.assertIn("TypeError: gradtune: unexpected keyword argument 'fidelty'", told["option"][0])
            self.assertIn("no unit of FSDP2 with replicas", told["not sharded"][0])
            self.assertIn("sharded by fully_shard() without replicas", told["without replicas"][0])
            self.assertIn("a group was given for a model with replicas", told["group"][0])
            self.assertIn("was changed within a backward pass, before it was summed", told["changed in backward"][0])
            self.assertIn("was changed or replaced within a backward pass", told["cast and changed in backward"][0])
            for name in ("stepped", "stepped by foreach"):
                self.assertIn("was changed within a backward pass (by a hook that steps", told[name][0])
            self.assertIn("was replaced within a backward pass", told["replaced"][0])
            self.assertIn("close() was called inside of a backward pass", told["closed"][0])
            self.assertIn("parameter 1.weight is in no unit of FSDP2", told["not in a unit"][0])
            self.assertIn("option ignore is not for the replicas", told["ignore"][0])

    @ON_CPU_ALONE
    def test_a_version_of_fsdp_that_can_not_be_read_goes_as_it_is_and_a_line_says_so(self) -> None:
        for rank, end in enumerate(ranks.run(unreadable, 4, **EXACT)):
            with self.subTest(rank=rank):
                self.assertEqual(end.returned, {"sum": 6, "jobs": 0}, end.output)
                self.assertEqual(end.output.count("cannot be read: post_backward is missing"), 1 if rank == 0 else 0)

    @ON_CPU_ALONE
    def test_replicas_whose_units_differ_are_named(self) -> None:
        for when in ("0", "4"):
            for rank, told in enumerate(ranks.must_run(differing, 4, arguments=[when], **EXACT)):
                with self.subTest(when=when, rank=rank):
                    self.assertRegex(told[0], r"differ between ranks \(from rank 0: rank 1\): .*1\.0\.weight and 3 more")

    @ON_CPU_ALONE
    def test_a_unit_that_is_new_on_one_replica_alone_is_an_error_on_all(self) -> None:
        for rank, told in enumerate(ranks.must_run(joining, 4, **EXACT)):
            with self.subTest(rank=rank):
                self.assertRegex(told[0], "rank 1.*broadcast_buffers|another rank failed: rank [01]")

    def test_a_rank_that_dies_in_backward_is_named(self) -> None:
        ends = ranks.run(killed, 4, limit_s=120, **EXACT)
        self.assertEqual(ends[3].code, -signal.SIGKILL)
        for rank in (0, 1):
            self.assertTrue(ends[rank].in_time)
            self.assertRegex(str(ends[rank].returned), "rank 1")


@unittest.skipUnless(IS_LONG, "HSDP_LONG is not set")
class OtherMeshes(Meshes):
    def test_one_rank(self) -> None:
        self.check(1, 1)

    def test_two_replicas_of_four_shards(self) -> None:
        self.check(2, 4)

    def test_three_replicas_of_two_shards(self) -> None:
        self.check(3, 2)


if __name__ == "__main__":
    ranks.main()
