# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The shards of a model that FSDP2 shards inside a site, as plain tensors that rounds exchange between sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ._checks import check_in_unit, is_ignored, refuse
from ._trained import Group, Named, Trained


def is_sharded(model: torch.nn.Module) -> bool:
    """True for a model with a parameter that is sharded."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def check_sites(model: torch.nn.Module, group: dist.ProcessGroup | None, ignored: Sequence[str]) -> None:
    """Raises Error unless each rank of the group holds the same shard at another site, but for names in `ignored`."""
    if group is None:
        refuse(
            "the model is sharded, and no group was given; allowed is the group of the ranks that hold the same shard at "
            'each site, as init_device_mesh(..., mesh_dim_names=("site", "shard"))["site"].get_group()'
        )
    sites = set(dist.get_process_group_ranks(group))
    for name, parameter in model.named_parameters():
        if is_ignored(name, ignored):
            continue
        check_in_unit(name, parameter)
        if isinstance(parameter, DTensor):
            both = sites.intersection(parameter.device_mesh.mesh.flatten().tolist())
            if parameter.device_mesh.ndim != 1 or both != {dist.get_rank()}:
                refuse(
                    f"parameter {name} is sharded over ranks {parameter.device_mesh.mesh.tolist()}, of which {sorted(both)} "
                    "are in the group; allowed are shards over one dimension, and a group with one rank of each site"
                )


def _local(parameter: DTensor) -> torch.Tensor:
    with torch.no_grad():
        return parameter.to_local()


class TrainedShards(Trained):
    """This rank's shards of a model and its optimizer. A shard is a plain tensor with the parameter's own memory."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._shards: dict[int, torch.Tensor] = {}  # by the id of the parameter

    def check_model(self, model: torch.nn.Module, prefix: str) -> None:
        """Makes FSDP allocate the shards, which it else does in the first forward pass; all ranks of a site call it."""
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
                module.reshard()

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"] if isinstance(p, DTensor)):
            shard = self._shards.get(id(parameter))
            if shard is not None and shard.data_ptr() != _local(parameter).data_ptr():
                refuse("a shard of the model has other memory than before; allowed is to move a model before rounds()")
        super().look(optimizer)

    def parameters(self) -> Named:
        return [(name, self._shard(parameter)) for name, parameter in super().parameters()]

    def groups(self) -> list[Group]:
        return [(group[0], [self._shard(each) for each in group[1]], *group[2:]) for group in super().groups()]

    def _shard(self, parameter: torch.Tensor) -> torch.Tensor:
        if not isinstance(parameter, DTensor):
            return parameter
        if id(parameter) not in self._shards:
            self._shards[id(parameter)] = _local(parameter).detach().requires_grad_(parameter.requires_grad)
        return self._shards[id(parameter)]
