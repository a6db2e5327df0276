# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests FSDP2's shards with gradtune between the replicas, on four ranks, against FSDP2's own hybrid sharding in the
same job."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

import ranks

STEPS = 6


def new_model(hidden: int = 12) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, 12)) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(12, 4))


def sharded(mesh: Any, hook: Any = None, hidden: int = 12, dtype: Any = None, **options: Any) -> Any:
    """Each layer is a unit of its own; the model around them has no parameters of its own."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    model = new_model(hidden).to(dtype)
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    for module in model.modules():
        if hook is not None and isinstance(module, FSDPModule):
            module.set_all_reduce_hook(hook)
    return model


def loss_of(model: Any, step: int) -> Any:
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    inputs, targets = torch.randn(6, 12, generator=generator), torch.randint(4, (6,), generator=generator)
    outputs = model(inputs.to(next(model.parameters()).dtype))
    return torch.nn.functional.cross_entropy(outputs.float(), targets)


def train(model: Any, steps: int, zero: bool = True) -> Any:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(steps):
        if zero:
            optimizer.zero_grad()
        loss_of(model, step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [p.full_tensor().detach() for p in model.parameters()]


def accumulate(model: Any) -> Any:
    """Two passes a step; the first one is not sent."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            loss_of(model, 10 * step + part).backward()
        optimizer.step()
    return [p.full_tensor().detach() for p in model.parameters()]


def gradients_of_passes(model: Any, sum_only: bool, factor: float | None) -> Any:
    """Gradients of four backward passes: the first is the hook's own all-reduce, the second the first one of its
    session."""
    import torch
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(sum_only)
            if factor is not None:
                module.set_gradient_divide_factor(factor)
    passes = []
    for step in range(4):
        model.zero_grad()
        loss_of(model, step).backward()
        passes.append(torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]))
    return passes


# Cases by name: all reductions are sums, the divide factor, the dtype.
FACTORS: dict[str, tuple[bool, float | None, str]] = {
    "averages": (False, None, "float32"),
    "divided by the number of shards": (False, 2.0, "float32"),
    "sums alone": (True, None, "float32"),
    "sums alone, divided by 1": (True, 1.0, "float32"),
    "sums alone, divided by 3": (True, 3.0, "float32"),
    "bfloat16": (False, None, "bfloat16"),
    "float16": (False, None, "float16"),
    "float16, divided before and after": (False, 8.0, "float16"),
    "float16, divided by 1": (False, 1.0, "float16"),
}
# Numbers below 2^-14 have at most this many bits. gradtune halves two before it adds them up, which rounds them, so
# the sum may be rounded the other way. A sum is twice the average.
FLOAT16_ROUNDING, FLOAT16_LAST_BIT = 2.0**-23, 2.0**-10


def factors() -> dict[str, Any]:
    import gradtune
    import torch

    mesh, group = set_up()
    told: dict[str, Any] = {}
    for name, (sum_only, factor, dtype) in FACTORS.items():
        hook = gradtune.hsdp_hook(group, fidelity="exact", quiet=True, tuning_budget=0, timeout=60)
        kind = getattr(torch, dtype)
        theirs = gradients_of_passes(sharded(mesh, dtype=kind), sum_only, factor)
        ours = gradients_of_passes(sharded(mesh["shard"], hook, dtype=kind), sum_only, factor)
        last_bit = FLOAT16_LAST_BIT if dtype == "float16" else 0.0
        told[name] = [
            float(((a - b).abs() - last_bit * a.abs()).max())
            for a, b in zip([g.double() for g in theirs], [g.double() for g in ours], strict=True)
        ]
        told[f"{name}, norm"] = float(theirs[0].float().norm())
        hook.close()
    return told


def set_up() -> tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    return mesh, mesh["replica"].get_group()


def hybrid(folder: str) -> dict[str, Any]:
    import gradtune
    import torch

    mesh, group = set_up()
    told: dict[str, Any] = {}
    for name, run in (("plain", lambda model: train(model, STEPS)), ("accumulated", accumulate)):
        theirs = run(sharded(mesh))
        hook = gradtune.hsdp_hook(group, fidelity="exact", quiet=True, tuning_budget=0, timeout=60)
        ours = run(sharded(mesh["shard"], hook))
        told[name] = max(float((a - b).abs().max()) for a, b in zip(theirs, ours, strict=True))
        told[f"{name}, steps"] = hook.progress().step
        told[f"{name}, moved"] = float((ours[0] - next(new_model().parameters())).abs().max())
        hook.close()
    hook = gradtune.hsdp_hook(group, fidelity="half", quiet=True, tuning_budget=30, timeout=60)
    told["before"] = _message(hook.result)
    ours = train(sharded(mesh["shard"], hook), 60)
    told["finite"] = all(bool(p.isfinite().all()) for p in ours)
    if group.rank() == 0:
        told["result"] = str(hook.result())
        told["decided"] = hook.result().decided
    path = Path(folder) / f"{mesh['shard'].get_local_rank()}.json"
    hook.export_strategy(path)
    hook.close()
    told["closed"] = _message(hook.progress)
    torch.distributed.barrier()
    again = gradtune.hsdp_hook(group, fidelity="half", quiet=True, tuning_budget=0, strategy=path, timeout=60)
    model = sharded(mesh["shard"], again)
    train(model, 3)
    told["pinned"] = again.result().strategy
    again.close()
    train(model, 2)  # as a plain all-reduce
    return told


def _message(body: Any) -> str:
    try:
        body()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _double(parameter: Any) -> None:
    parameter.grad.to_local().mul_(2)


def refused() -> dict[str, str]:
    import gradtune
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    mesh, group = set_up()
    told = {"option": _message(lambda: gradtune.hsdp_hook(group, fidelty="exact"))}  # type: ignore[call-arg]

    def new_hook() -> Any:
        return gradtune.hsdp_hook(group, fidelity="exact", quiet=True, timeout=30)

    model = sharded(mesh["shard"], new_hook())
    told["accumulated"] = _message(lambda: train(model, 4, zero=False))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = sharded(mesh["shard"], new_hook(), mp_policy=policy)
    told["reduce_dtype"] = _message(lambda: train(model.bfloat16(), 4))
    hook = new_hook()
    train(sharded(mesh["shard"], hook), 3)
    told["another model"] = _message(lambda: train(sharded(mesh["shard"], hook, hidden=16), 1))
    model = sharded(mesh["shard"], new_hook())
    of_this_replica = 1.0 + mesh["replica"].get_local_rank()
    told["factors of ranks"] = _message(lambda: gradients_of_passes(model, True, of_this_replica))
    changing = sharded(mesh["shard"], new_hook())
    gradients_of_passes(changing, True, 2.0)
    told["factors of passes"] = _message(lambda: gradients_of_passes(changing, True, 4.0))
    scaling = sharded(mesh["shard"], new_hook())
    train(scaling, 2)
    for parameter in scaling.parameters():
        parameter.register_post_accumulate_grad_hook(_double)
    told["changed in backward"] = _message(lambda: train(scaling, 2))
    told["another caller"] = _message(lambda: new_hook()(torch.zeros(3)))
    return told


class Hsdp(unittest.TestCase):
    def test_it_comes_to_the_bits_of_hybrid_sharding(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            results = ranks.must_run(hybrid, 4, arguments=[folder])
        for rank, told in enumerate(results):
            with self.subTest(rank=rank):
                for name in ("plain", "accumulated"):
                    self.assertEqual(told[name], 0)
                    self.assertEqual(told[f"{name}, steps"], STEPS - 2, "from the second pass on, without the last")
                    self.assertGreater(told[f"{name}, moved"], 0)
                self.assertTrue(told["finite"])
                self.assertIn("no session before the second backward pass", told["before"])
                self.assertIn("nor after close()", told["closed"])
                self.assertTrue(told["pinned"])
        self.assertTrue(any(told.get("decided") for told in results))
        self.assertTrue(any("fidelity half" in told.get("result", "") for told in results))

    def test_sums_and_divide_factors_are_those_of_hybrid_sharding(self) -> None:
        for rank, told in enumerate(ranks.must_run(factors, 4)):
            for name, (_, _, dtype) in FACTORS.items():
                with self.subTest(rank=rank, setting=name):
                    self.assertGreater(told[f"{name}, norm"], 0.1)
                    allowed = FLOAT16_ROUNDING if dtype == "float16" else 0
                    self.assertLessEqual(max(told[name]), allowed, "by pass")
                    self.assertEqual(len(told[name]), 4)

    def test_what_it_can_not_serve_is_refused_by_name(self) -> None:
        for told in ranks.must_run(refused, 4):
            self.assertIn("TypeError: gradtune: unexpected keyword argument 'fidelty'", told["option"])
            self.assertIn("FSDP copied a gradient before it was averaged over replicas", told["accumulated"])
            self.assertIn("FSDP copied a gradient before it was averaged over replicas", told["reduce_dtype"])
            self.assertIn("as number 1 of a backward pass, and the average of", told["another model"])
            self.assertRegex(told["factors of ranks"], r"the sum of \d+ torch.float32, divided by 2 .* on rank 1 of the group")
            self.assertRegex(told["factors of passes"], r"wants the sum of \d+ torch.float32, divided by 4 as number 0")
            self.assertIn("was changed before it was averaged over replicas", told["changed in backward"])
            self.assertIn("the hook was called by <lambda>(); allowed is FSDP2's reduction", told["another caller"])


if __name__ == "__main__":
    ranks.main()
