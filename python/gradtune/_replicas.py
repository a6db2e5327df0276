# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The replicas of hybrid sharding (HSDP): FSDP2 shards inside of a group, and gradtune averages between them."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from typing_extensions import Unpack

from . import _gradtune
from ._checks import check_group, refuse
from ._options import Options, PathLike, as_given, with_options
from ._results import Progress, Result
from ._trained import Group, Named


class _Units:
    """What a session trains: each of what FSDP reduces at a time is known by a tensor of its size."""

    def __init__(self, units: list[torch.Tensor]) -> None:
        self._units = units

    def identity(self) -> int:
        return id(self)

    def check(self) -> None:
        """Sizes are compared with every call of the hook."""

    def parameters(self) -> Named:
        return [(f"unit {i}", unit) for i, unit in enumerate(self._units)]

    def buffers(self) -> Named:
        return []

    def groups(self) -> list[Group]:
        return [("0, group 0", list(self._units), "", False, [], False)]


class HsdpHook:
    """An all-reduce hook of FSDP2 that hsdp_hook() made."""

    def __init__(self, group: dist.ProcessGroup, options: dict[str, Any]) -> None:
        self._group = group
        self._options = options
        self._units: list[torch.Tensor] = []  # in the order of calls
        self._at: int | None = None  # of the next call in the pass under way; None between passes
        self._session: _gradtune.Session | None = None  # from the second pass on, until it is closed
        self._closed = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    def __call__(self, reduced: torch.Tensor) -> None:
        """Averages over the group what FSDP2 reduced over shards; it holds the averages when backward() returns."""
        if self._at is None:
            self._begin_pass()
        if self._session is None:
            self._average(reduced)
        else:
            self._session.hand_over(self._unit_of(reduced), reduced)

    def _begin_pass(self) -> None:
        self._at = 0
        Variable._execution_engine.queue_callback(self._end_pass)
        if self._session is not None:
            # FSDP tells of no updates: one is what is between two passes.
            self._session.begin_update()
            self._session.end_update()
        elif self._units and not self._closed:
            self._start()

    def _end_pass(self) -> None:
        self._at = None

    def _start(self) -> None:
        """Once a pass has shown what there is to reduce."""
        count, arrival = _gradtune.RegistrationCount(), _gradtune.Arrival.handed_over
        session = _gradtune.Session(_Units(self._units), count, self._group, self._options, arrival)
        self._session = session
        self._finalizer = weakref.finalize(self, session.close, None)

    def _average(self, reduced: torch.Tensor) -> None:
        if reduced.device.type != "cpu":
            refuse(f"FSDP reduced a gradient on {reduced.device}; allowed is the CPU")
        if not self._closed:
            self._units.append(torch.zeros_like(reduced, requires_grad=True))
        dist.all_reduce(reduced, group=self._group)
        reduced /= self._group.size()

    def _unit_of(self, reduced: torch.Tensor) -> torch.Tensor:
        at = self._at or 0
        self._at = at + 1
        if at < len(self._units):
            unit = self._units[at]
            if unit.shape == reduced.shape and unit.dtype == reduced.dtype:
                return unit
        why = (
            f"FSDP reduces a gradient of {reduced.numel()} {reduced.dtype} as number {at} of a backward pass, and did not "
            "in the first one; allowed are the same modules in the same order in every pass"
        )
        self._end(why)
        refuse(why)

    def _end(self, failure: str | None) -> None:
        self._closed = True
        if self._finalizer is not None and self._session is not None:
            self._finalizer.detach()
            self._session.close(failure)
        self._session = None

    def exclude_step(self) -> None:
        """The time of the step under way is not scored: an evaluation, a checkpoint, ... happened in it."""
        if self._session is not None:
            self._session.exclude_step()

    def export_strategy(self, path: PathLike) -> None:
        """Writes the committed strategy, for hsdp_hook(strategy=...). Rank 0 of the group does; others return."""
        self._running().export_strategy(os.fspath(path))

    def progress(self) -> Progress:
        """Where tuning is, from the second backward pass on."""
        return Progress(**self._running().progress())

    def result(self) -> Result:
        """What tuning showed, from the second backward pass on; complete on rank 0 of the group."""
        return Result(**self._running().result())

    def close(self) -> None:
        """Ends the session, between backward passes. The hook goes on as a plain all-reduce."""
        self._end(None)

    def _running(self) -> _gradtune.Session:
        if self._session is None:
            refuse("there is no session before the second backward pass, nor after close()")
        return self._session


@with_options
def hsdp_hook(group: dist.ProcessGroup, **options: Unpack[Options]) -> HsdpHook:
    """A hook that averages gradients over the replicas of a model that FSDP2 shards, and tunes how they travel.

        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replica", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        hook = gradtune.hsdp_hook(mesh["replica"].get_group())
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(hook)

    `group` holds the ranks that have the same shard, and must be of the CPU. In the first backward pass the hook is a
    plain all-reduce, in which it learns what FSDP reduces; from the second one on a session runs per group. FSDP's
    gradients are averages when backward() returns, not yet in hooks of its parameters, and have to be views of what
    FSDP reduced, which they are where reduce_dtype is the parameters' own and no earlier gradient is there.

    The options are those of wrap(). Raises Error for what can not be served, in the first backward pass that shows it.
    """
    return HsdpHook(check_group(group), as_given(options))
