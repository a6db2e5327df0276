# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding (HSDP): FSDP2 shards inside a node, and gradtune sums gradients between the replicas.

This module registers the backend "gradtune" of torch.distributed:

    mesh = init_device_mesh(
        "cpu", (replicas, shards), mesh_dim_names=("replica", "shard"), backend_override={"replica": "gradtune"}
    )
    fully_shard(model, mesh=mesh)

If a framework makes the mesh, call between_replicas(model).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import Unpack

from ._checks import check_group, check_in_unit, refuse
from ._errors import say
from ._fsdp import Reduction, Unreadable, reduction_of, units_of
from ._options import Options, as_given, with_options
from ._replicas import Replicas

__all__ = ["ReplicaGroup", "Replicas", "between_replicas"]


_OLDEST = (2, 11)  # the oldest minor version of torch with which this was tested

_ProcessGroup: Any = dist.ProcessGroup  # torch's types do not know how it is implemented in Python


class _Done(dist.Work):
    """The work of a reduction that ends with the backward pass. torch 2.7 waits for the work, even if it is None."""

    def wait(self, *_args: Any, **_options: Any) -> bool:
        return True


class ReplicaGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group of the replicas of a shard. Gradients that FSDP2 reduces go through a session.

    Everything else goes to another group of the same ranks, unchanged.
    """

    def __init__(self, group: dist.ProcessGroup, speaks: bool) -> None:
        """`speaks`: jobs of this group print progress."""
        super().__init__(group.rank(), group.size())
        self._group = group
        self._speaks = speaks
        self._name = ""
        self._said_unreadable = False
        # By FSDP's object of a unit, or the object that the units of one root module share.
        self._replicas: weakref.WeakKeyDictionary[Any, Replicas] = weakref.WeakKeyDictionary()

    def plain(self) -> dist.ProcessGroup:
        """The group for everything else."""
        return self._group

    def serve(self, units: Sequence[Any], options: Mapping[str, Any]) -> Replicas:
        """The communication of these units of FSDP, with the options. It ends the one that they had."""
        for unit in units:
            for before in (self._replicas.get(unit), self._replicas.get(unit.comm_ctx)):
                if before is not None:
                    before.close()
        replicas = Replicas(self._group, options, self._speaks)
        self._replicas.update(dict.fromkeys(units, replicas))
        return replicas

    def of(self, asked: Reduction) -> Replicas:
        """The communication of a unit; the units of a root module that has no options share one."""
        found = self._replicas.get(asked.owner) or self._replicas.get(asked.owner.comm_ctx)
        if found is None:
            found = self._replicas[asked.owner.comm_ctx] = Replicas(self._group, {}, self._speaks)
        return found

    def all(self) -> list[Replicas]:
        """The communication of each model that was trained so far."""
        return list(dict.fromkeys(self._replicas.values()))

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces tensors; a gradient of FSDP2 holds the result when backward() ends."""
        if opts is not None and isinstance(tensors, list) and len(tensors) == 1:
            asked = reduction_of(tensors[0], opts.reduceOp, self._group.size())
            if isinstance(asked, Unreadable):
                self._say_unreadable(asked)
            elif asked is not None and self.of(asked).take(tensors[0], asked):
                return _Done()
        return self._group.allreduce(tensors, opts) if opts is not None else self._group.allreduce(tensors)

    def _say_unreadable(self, asked: Unreadable) -> None:
        if self._said_unreadable:
            return
        self._said_unreadable = True
        if self._speaks and self.rank() == 0:
            say(
                "gradtune: the gradients of FSDP2 go over the replicas as they are, and are not tuned, because FSDP2 of torch "
                f"{torch.__version__} cannot be read: {asked.missing} is missing\n"
            )

    def shutdown(self) -> None:
        """Ends all sessions and the group."""
        for replicas in self.all():
            replicas.close()
        self._group.shutdown()

    # torch.distributed asks a process group in Python for these.
    def getBackendName(self) -> str:
        return "gradtune"

    def getGroupName(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name
    group_name = property(getGroupName)


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: ReplicaGroup, *args: Any, **options: Any) -> Any:
        return getattr(self._group, name)(*args, **options)

    return call


# Newer versions of torch have other names for the collectives of single tensors.
for _name in (
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
    "abort",
):
    if hasattr(_ProcessGroup, _name):
        setattr(ReplicaGroup, _name, _forwarded(_name))


def _create(options: Any, _backend_options: Any) -> ReplicaGroup:
    """Makes the group of a mesh dimension with this backend, over Gloo, and NCCL where torch has it."""
    _check_torch()
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    place = (options.store, options.group_rank, options.group_size)
    kind = dist.ProcessGroup.BackendType
    group._set_default_backend(kind.GLOO)
    group._register_backend(torch.device("cpu"), kind.GLOO, dist.ProcessGroupGloo(*place, options.timeout))
    if torch.cuda.is_available() and dist.is_nccl_available():
        nccl: Any = dist.ProcessGroupNCCL
        settings = nccl.Options()
        settings._timeout = options.timeout
        group._register_backend(torch.device("cuda"), kind.NCCL, nccl(*place, settings))
    return ReplicaGroup(group, speaks=0 in options.global_ranks_in_group)


if dist.is_available() and "gradtune" not in dist.Backend.backend_list:
    dist.Backend.register_backend("gradtune", _create, extended_api=True, devices=["cpu", "cuda"])


def _check_torch() -> None:
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) >= _OLDEST:
        return
    refuse(
        f"communication between replicas needs torch {_OLDEST[0]}.{_OLDEST[1]} or later, and this is torch "
        f"{torch.__version__}; in 2.7 hybrid sharding does not run over Gloo at all"
    )


def is_replicated(models: Sequence[torch.nn.Module]) -> bool:
    """True if FSDP2 shards these models on a mesh with replicas, or replicates them."""
    return next(units_of(list(models)), None) is not None


@with_options
def between_replicas(model: torch.nn.Module | Sequence[torch.nn.Module], **options: Unpack[Options]) -> Replicas:
    """Tunes the communication between the replicas of a model that FSDP2 shards on a 2-D mesh, or that it replicates.

        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replica", "shard"))
        fully_shard(model, mesh=mesh)
        replicas = gradtune.between_replicas(model)

    Call it after fully_shard() and before the first backward pass, on all ranks; with a sequence for several models
    that are trained together. Nothing else changes: accumulation with set_requires_all_reduce() or
    set_requires_gradient_sync(), divide factors, clipping, optimizers and checkpoints are FSDP's.

    Gradients equal those of FSDP at fidelity exact, for three and more replicas up to the order in which they are added.
    They are complete when backward() returns. If FSDP uses them earlier, a unit goes as it is and is not tuned, and a line
    says so once. It does so if a gradient of an earlier pass exists, for post-accumulate-gradient hooks, or if parameters
    on a GPU are offloaded to the CPU.

    The options are those of wrap(). Each shard's replicas are a job of their own, and the job of rank 0 prints progress.
    """
    _check_torch()
    given = as_given(options)
    for name in ("ignore", "broadcast_buffers"):
        if name in given:
            refuse(f"option {name} is not for the replicas of FSDP2, which only sum gradients; allowed is not to give it")
    models = list(model) if isinstance(model, Sequence) else [model]
    units = list(units_of(models))
    if not units:
        refuse("the model has no unit of FSDP2 with replicas; allowed is fully_shard() on a 2-D mesh, or replicate()")
    for name, parameter in (each for model in models for each in model.named_parameters()):
        check_in_unit(name, parameter)
    group = _group_of(units)
    for unit in units:
        unit.mesh_info.replicate_process_group = group
    return group.serve(units, given)


def _group_of(units: Sequence[Any]) -> ReplicaGroup:
    """The group for the replicas of these units; it is made if none of them has one."""
    groups = [unit.mesh_info.replicate_process_group for unit in units]
    plain = {id(each.plain() if isinstance(each, ReplicaGroup) else each) for each in groups}
    if len(plain) > 1:
        refuse("the units of the model have replicas in several groups; allowed is one mesh for all units")
    for each in groups:
        if isinstance(each, ReplicaGroup):
            return each
    return ReplicaGroup(check_group(groups[0]), speaks=0 in dist.get_process_group_ranks(groups[0]))
