# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Reads from FSDP2 which gradient it reduces over replicas, and what it does with the result.

A process group is only told a tensor and an operation. The rest is read from FSDP's function foreach_reduce() while it
runs. If a name in it is missing, as in an untested version of torch, the gradient goes as it is, and a line says so.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from . import _gradtune

Key = tuple[Any, ...]  # identifies a unit: weak references to FSDP's objects of its parameters, the size and the dtype

_FRAMES = 8  # the most between a function of FSDP and one that it calls


@dataclass(frozen=True)
class Reduction:
    """A reduction of a unit's gradient over replicas."""

    owner: Any  # FSDP's object of the unit
    key: Key
    parameters: list[Any]  # FSDP's objects of them
    name: str
    divisor: float  # the gradient is the sum over replicas, divided by it
    in_place: bool  # FSDP divides, in place, once it has the result
    is_cast: bool  # FSDP makes the gradients from a copy of the result in another dtype
    used_at_once: str  # why FSDP uses the values before backward ends; empty if it only makes views of them

    def shares_parameters_with(self, other: Key) -> bool:
        """True if a parameter is in both units."""
        return bool(set(self.key[:-2]) & set(other[:-2]))


@dataclass(frozen=True)
class Unreadable:
    """A reduction by FSDP of which this file cannot read what it needs."""

    missing: str  # a name that FSDP does not have


def reduction_of(reduced: torch.Tensor, op: Any, replicas: int) -> Reduction | Unreadable | None:
    """The reduction for which FSDP2 calls its process group now; None if something else calls it."""
    is_average = bool(op == dist.ReduceOp.AVG)  # torch does not support the comparison the other way round
    frame = _caller("foreach_reduce", sys._getframe(1))
    unit = _caller("post_backward", frame)
    if frame is None or not (is_average or op == dist.ReduceOp.SUM):
        return None
    if unit is None:
        return Unreadable("post_backward")
    known = frame.f_locals
    try:
        owner, parameters = unit.f_locals["self"], known["fsdp_params"]
        after = float(known["postdivide_factor"] or 1)
        return Reduction(
            owner=owner,
            key=(*(weakref.ref(parameter) for parameter in parameters), reduced.numel(), reduced.dtype),
            parameters=list(parameters),
            name=_name(parameters),
            divisor=float(replicas) if is_average else after,
            in_place=after != 1,
            is_cast=any(_dtype_of_gradient(parameter, reduced) != reduced.dtype for parameter in parameters),
            used_at_once=_use(reduced, parameters, known["all_reduce_hook"]),
        )
    except (AttributeError, KeyError, TypeError) as error:
        return Unreadable(str(error).strip("'"))


def _caller(name: str, frame: FrameType | None) -> FrameType | None:
    """The nearest frame of a function of that name, from this frame on."""
    for _ in range(_FRAMES):
        if frame is None or frame.f_code.co_name == name:
            return frame
        frame = frame.f_back
    return None


def _name(parameters: list[Any]) -> str:
    first = str(parameters[0]._param_fqn or "a parameter")
    return first if len(parameters) == 1 else f"{first} and {len(parameters) - 1} more"


def _dtype_of_gradient(parameter: Any, reduced: torch.Tensor) -> torch.dtype:
    """torch 2.15 lets a gradient have another dtype than its parameter; None is that of the reduction."""
    dtype: torch.dtype | None = getattr(parameter, "sharded_grad_dtype", parameter.orig_dtype)
    return dtype or reduced.dtype


def _use(reduced: torch.Tensor, parameters: list[Any], hook: Any) -> str:
    if torch._C._current_graph_task_id() < 0:
        return "it is reduced outside of a backward pass, as by a schedule of pipeline stages"
    if _gradtune.is_nested_pass():
        return "it is reduced in a backward pass inside of another one, as by reentrant checkpoints"
    if reduced.device.type != "cpu" and any(parameter.offload_to_cpu for parameter in parameters):
        return "its parameters are offloaded to the CPU"
    if len({_dtype_of_gradient(parameter, reduced) for parameter in parameters}) > 1:
        return "the gradients of its parameters have several dtypes"
    if hook is not None:
        return "its module has an all-reduce hook"
    for parameter in parameters:
        if parameter.sharded_param.grad is not None:
            return "the gradient of an earlier backward pass is there, and this one is added to it"
        if getattr(parameter.sharded_param, "_post_accumulate_grad_hooks", None):
            return "a parameter of it has a post-accumulate-gradient hook"
    return ""


def versions_of(parameters: list[Any]) -> list[int]:
    """Numbers that grow with each change of the shards of these parameters."""
    shards = [parameter.sharded_param for parameter in parameters]
    return [shard._version + shard._local_tensor._version for shard in shards]


def lacks_view(reduced: torch.Tensor, parameters: list[Any]) -> bool:
    """True if a gradient of these parameters is not a view of `reduced` any more."""
    place = reduced.untyped_storage().data_ptr()
    for parameter in parameters:
        gradient = parameter.sharded_param.grad
        local = None if gradient is None else gradient._local_tensor
        if local is None or (local.numel() > 0 and local.untyped_storage().data_ptr() != place):
            return True
    return False


def _with_parts(reduced: torch.Tensor, parameters: list[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The gradient of each parameter, a view of a flat tensor, and its part of `reduced`, which is laid out alike."""
    for parameter in parameters:
        gradient = parameter.sharded_param.grad._local_tensor
        yield gradient, reduced.as_strided(gradient.size(), gradient.stride(), gradient.storage_offset())


def lacks_cast(reduced: torch.Tensor, parameters: list[Any]) -> bool:
    """True if a gradient of these parameters does not have the values of `reduced` in its own dtype, bit for bit."""
    if any(parameter.sharded_param.grad is None for parameter in parameters):
        return True
    pairs = _with_parts(reduced, parameters)
    return not all(torch.equal(of.view(torch.uint8), part.to(of.dtype).view(torch.uint8)) for of, part in pairs)


def write_cast(reduced: torch.Tensor, parameters: list[Any]) -> None:
    """Writes the values of `reduced` to the gradients of these parameters."""
    for gradient, part in _with_parts(reduced, parameters):
        gradient.copy_(part)


def units_of(models: list[torch.nn.Module]) -> Iterator[Any]:
    """FSDP's objects of the units of these models that have replicas."""
    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                state: Any = module._get_fsdp_state()
                # A module has one unit in older versions of torch, and several in newer ones, each on its own mesh.
                units = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
                for unit in units:
                    if unit is not None and hasattr(unit.mesh_info, "replicate_process_group"):
                        yield unit
