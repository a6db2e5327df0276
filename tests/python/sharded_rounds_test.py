# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests training in rounds between sites, in each of which FSDP2 shards the model over two ranks."""

from __future__ import annotations

import copy
import tempfile
import unittest
from pathlib import Path
from typing import Any

import ranks

EXACT: dict[str, Any] = {"fidelity": "exact", "quiet": True, "timeout": 30}
SITES, SHARDS, DENSE, UPDATES = 2, 2, 5, 4


def new_model() -> Any:
    """Its shards have unequal sizes, and one rank has none of the last parameter."""
    import torch

    torch.manual_seed(1)
    layers = [torch.nn.Linear(20, 63), torch.nn.ReLU(), torch.nn.Linear(63, 5), torch.nn.Linear(5, 1)]
    return torch.nn.Sequential(*layers)


def loss_of(model: Any, rank: int, step: int) -> Any:
    import torch

    inputs = torch.randn(16, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    return (model(inputs) - inputs[:, :1].sin()).square().mean()


def sharded(**options: Any) -> tuple[Any, Any, Any]:
    """A model, its optimizer in rounds, and the mesh of sites and shards."""
    import gradtune
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SITES, SHARDS), mesh_dim_names=("site", "shard"))
    model = new_model()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    inner = torch.optim.AdamW(model.parameters(), 0.01)
    given = {"least": UPDATES, "most": UPDATES, "dense_steps": DENSE, **EXACT, **options}
    return model, gradtune.rounds(inner, model, mesh["site"].get_group(), **given), mesh


def update(model: Any, optimizer: Any, step: int) -> None:
    import torch.distributed as dist

    optimizer.zero_grad()
    loss_of(model, dist.get_rank(), step).backward()
    optimizer.step()


def whole(model: Any) -> list[Any]:
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def equals_one_rank() -> dict[str, Any]:
    """Beside both sites on one rank, with torch's own SGD as the outer step."""
    import torch
    import torch.distributed as dist

    model, optimizer, _ = sharded()
    anchors = new_model()
    outer = torch.optim.SGD(anchors.parameters(), 0.8, momentum=0.3, nesterov=True)
    models = [copy.deepcopy(anchors) for _ in range(SITES)]
    inners = [torch.optim.AdamW(each.parameters(), 0.01) for each in models]
    site = dist.get_rank() // SHARDS
    farthest, exchanges = 0.0, 0
    for step in range(DENSE + 10 * UPDATES):
        update(model, optimizer, step)
        for number, (each, inner) in enumerate(zip(models, inners, strict=True)):
            inner.zero_grad()
            (sum(loss_of(each, SHARDS * number + shard, step) for shard in range(SHARDS)) / SHARDS).backward()
            inner.step()
        if step < DENSE or (step + 1 - DENSE) % UPDATES == 0:
            exchanges += 1
            with torch.no_grad():
                for anchor, *locals_ in zip(anchors.parameters(), *(m.parameters() for m in models), strict=True):
                    anchor.grad = sum(anchor - local for local in locals_) / len(locals_)
                outer.step()
                for each in models:
                    each.load_state_dict(anchors.state_dict())
        pairs = zip(whole(model), models[site].parameters(), strict=True)
        farthest = max(farthest, *(float((a - b).abs().max()) for a, b in pairs))
    told = optimizer.round_progress()
    optimizer.close()
    ranks.leave_group()
    return {"farthest": farthest, "rounds": told.rounds == exchanges, "updates": told.updates_a_round}


def goes_on(folder: str, fragments: str) -> dict[str, Any]:
    """A job with lossy compression and a delay that loads a checkpoint has the same bits; all sites end equal."""
    import torch
    import torch.distributed as dist

    lossy: dict[str, Any] = {"fidelity": "lossy", "compressors": ["int4packed"], "tuning_budget": 0}
    lossy |= {"delay": 2 // int(fragments), "fragments": int(fragments)}
    model, optimizer, mesh = sharded(**lossy)
    for step in range(20):
        update(model, optimizer, step)
    path = Path(folder, str(mesh["shard"].get_local_rank()))
    optimizer.save_checkpoint(path)
    other = copy.deepcopy(optimizer.state_dict())
    resumed_model, resumed, _ = sharded(**lossy)
    with torch.no_grad():
        for mine, its in zip(resumed_model.parameters(), model.parameters(), strict=True):
            mine.copy_(its)
    resumed.load_state_dict(other)
    resumed.load_checkpoint(path)
    for step in range(20, 40):
        update(model, optimizer, step)
        update(resumed_model, resumed, step)
    equal = all(torch.equal(a, b) for a, b in zip(whole(model), whole(resumed_model), strict=True))
    optimizer.end_round()
    flat = torch.cat([each.flatten() for each in whole(model)])
    found = [torch.empty_like(flat) for _ in range(SITES * SHARDS)]
    dist.all_gather(found, flat)
    optimizer.close()
    resumed.close()
    ranks.leave_group()
    return {"same bits": equal, "sites are equal": all(torch.equal(each, flat) for each in found)}


def ignored() -> dict[str, bool]:
    """A layer that FSDP2 does not shard stays each rank's own."""
    import gradtune
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SITES, SHARDS), mesh_dim_names=("site", "shard"))
    model = new_model()
    for number in (0, 2):
        fully_shard(model[number], mesh=mesh["shard"])
    inner = torch.optim.SGD(model.parameters(), 0.01)
    group = mesh["site"].get_group()
    optimizer = gradtune.rounds(inner, model, group, least=2, most=2, dense_steps=1, ignore=["3"], **EXACT)
    for step in range(5):
        update(model, optimizer, step)
    own = model[3].weight.detach()
    others = [torch.empty_like(own) for _ in range(SITES * SHARDS)]
    dist.all_gather(others, own)
    shared = model[0].weight.full_tensor().detach()
    found = [torch.empty_like(shared) for _ in range(SITES * SHARDS)]
    dist.all_gather(found, shared)
    optimizer.close()
    ranks.leave_group()
    return {
        "sites are equal": all(torch.equal(each, shared) for each in found),
        "own": len({float(each.sum()) for each in others}) == SITES * SHARDS,
    }


def refusals() -> dict[str, str]:
    import gradtune
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SITES, SHARDS), mesh_dim_names=("site", "shard"))
    sites = mesh["site"].get_group()
    model = fully_shard(new_model(), mesh=mesh["shard"])
    of_both = fully_shard(new_model(), mesh=mesh)
    partly = new_model()
    fully_shard(partly[0], mesh=mesh["shard"])
    told = {}
    for name, of, group, given in (
        ("no group", model, None, {"least": 4, "most": 4}),
        ("shards", model, mesh["shard"].get_group(), {"least": 4, "most": 4}),
        ("all ranks", model, dist.group.WORLD, {"least": 4, "most": 4}),
        ("length", model, sites, {"most": 8}),
        ("delay", model, sites, {"least": 4, "most": 4, "delay": None}),
        ("uneven", model, sites, {"least": 4, "most": 4, "uneven": True}),
        ("keep_round", model, sites, {"least": 4, "most": 4, "keep_round": "round.pt"}),
        ("two dimensions", of_both, sites, {"least": 4, "most": 4}),
        ("partly", partly, sites, {"least": 4, "most": 4}),
    ):
        try:
            gradtune.rounds(torch.optim.SGD(of.parameters(), 0.1), of, group, **given)
        except gradtune.Error as error:
            told[name] = str(error)
    ranks.leave_group()
    return told


class ShardedRounds(unittest.TestCase):
    def test_they_equal_the_same_training_on_one_rank(self) -> None:
        for told in ranks.must_run(equals_one_rank, SITES * SHARDS):
            self.assertLess(told["farthest"], 1e-4, told)
            self.assertEqual((told["rounds"], told["updates"]), (True, UPDATES))

    def test_a_job_that_loads_a_checkpoint_goes_on_with_the_same_bits(self) -> None:
        for fragments in ("1", "2"):
            with tempfile.TemporaryDirectory() as folder:
                for told in ranks.must_run(goes_on, SITES * SHARDS, arguments=[folder, fragments]):
                    self.assertEqual(told, {"same bits": True, "sites are equal": True}, fragments)

    def test_an_ignored_layer_stays_each_ranks_own(self) -> None:
        for told in ranks.must_run(ignored, SITES * SHARDS):
            self.assertEqual(told, {"sites are equal": True, "own": True})

    def test_what_is_not_served_is_named(self) -> None:
        for told in ranks.must_run(refusals, SITES * SHARDS):
            self.assertIn("no group was given; allowed is the group of the ranks that hold the same shard", told["no group"])
            self.assertIn("allowed are shards over one dimension, and a group with one rank of each site", told["shards"])
            self.assertIn("allowed are shards over one dimension, and a group with one rank of each site", told["all ranks"])
            self.assertIn("least 1, most 8 and delay 0; allowed is least equal to most", told["length"])
            self.assertIn("delay None; allowed is least equal to most and a fixed delay", told["delay"])
            self.assertIn("uneven was given for a sharded model", told["uneven"])
            self.assertIn("keep_round was given for a sharded model", told["keep_round"])
            self.assertIn("rounds() takes the plain model", told["two dimensions"])
            self.assertIn("is in no unit of FSDP2", told["partly"])


if __name__ == "__main__":
    ranks.main()
