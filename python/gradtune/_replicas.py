# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding (HSDP): FSDP2 shards inside a group, and gradtune averages between the replicas."""

from __future__ import annotations

import os
import sys
import weakref
from dataclasses import dataclass
from types import FrameType
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
    """The parameters of a session: a tensor of equal size represents each of FSDP's reductions."""

    def __init__(self, units: list[torch.Tensor]) -> None:
        self._units = units

    def identity(self) -> int:
        return id(self)

    def check(self) -> None:
        """Does nothing, because every call of the hook compares sizes."""

    def parameters(self) -> Named:
        return [(f"unit {i}", unit) for i, unit in enumerate(self._units)]

    def buffers(self) -> Named:
        return []

    def groups(self) -> list[Group]:
        return [("0, group 0", list(self._units), "", False, [], "any")]


@dataclass(frozen=True)
class _Reduction:
    """The reduction that FSDP expects of one call of its hook, and the division after it."""

    numel: int
    dtype: torch.dtype
    is_sum: bool  # over replicas, if a divide factor is set; else the average
    divisor: float  # FSDP divides by it, in place, after the hook has returned

    @classmethod
    def asked(cls, reduced: torch.Tensor, caller: FrameType) -> _Reduction:
        """Reads the rest of the request from FSDP's foreach_reduce(), which passes only the tensor to its hook."""
        known = caller.f_locals
        if "gradient_divide_factor" not in known or "postdivide_factor" not in known:
            refuse(f"the hook was called by {caller.f_code.co_name}(); allowed is FSDP2's reduction of gradients alone")
        is_sum = known["gradient_divide_factor"] is not None
        return cls(reduced.numel(), reduced.dtype, is_sum, float(known["postdivide_factor"] or 1))

    def __str__(self) -> str:
        result = "the sum" if self.is_sum else "the average"
        after = f", divided by {self.divisor:g}" if self.divisor != 1 else ""
        return f"{result} of {self.numel} {self.dtype}{after}"


class HsdpHook:
    """An all-reduce hook of FSDP2, made by hsdp_hook()."""

    def __init__(self, group: dist.ProcessGroup, options: dict[str, Any]) -> None:
        self._group = group
        self._options = options
        self._units: list[tuple[_Reduction, torch.Tensor]] = []  # in the order of calls
        self._at: int | None = None  # index of the next call in the current pass; None between passes
        self._session: _gradtune.Session | None = None  # from the second pass on, until it is closed
        self._closed = False
        self._finalizer: weakref.finalize[..., Any] | None = None

    def __call__(self, reduced: torch.Tensor) -> None:
        """Reduces over the group the result of FSDP2 over shards; gradients hold the result when backward() returns."""
        asked = _Reduction.asked(reduced, sys._getframe(1))
        if self._at is None:
            self._begin_pass()
        if self._session is None:
            self._reduce(reduced, asked)
        else:
            times = float(self._group.size()) if asked.is_sum else 1.0
            self._session.hand_over(self._unit_of(asked), reduced, times, asked.divisor)

    def _begin_pass(self) -> None:
        self._at = 0
        Variable._execution_engine.queue_callback(self._end_pass)
        if self._session is not None:
            # FSDP does not report updates, so each interval between two passes counts as one.
            self._session.begin_update()
            self._session.end_update(0)
        elif self._units and not self._closed:
            self._start()

    def _end_pass(self) -> None:
        self._at = None

    def _start(self) -> None:
        """Starts the session after a pass has shown all reductions."""
        count, arrival = _gradtune.RegistrationCount(), _gradtune.Arrival.handed_over
        session = _gradtune.Session(_Units([unit for _, unit in self._units]), count, self._group, self._options, arrival)
        self._session = session
        self._finalizer = weakref.finalize(self, session.close, None)

    def _reduce(self, reduced: torch.Tensor, asked: _Reduction) -> None:
        if reduced.device.type != "cpu":
            refuse(f"FSDP reduced a gradient on {reduced.device}; allowed is the CPU")
        if not self._closed:
            self._must_agree(asked)
            self._units.append((asked, torch.zeros_like(reduced, requires_grad=True)))
        dist.all_reduce(reduced, group=self._group)
        if not asked.is_sum:
            reduced /= self._group.size()

    def _must_agree(self, asked: _Reduction) -> None:
        """Raises if replicas divide by different factors, because they would train apart."""
        told: list[str] = [""] * self._group.size()
        dist.all_gather_object(told, str(asked), group=self._group)
        for rank, theirs in enumerate(told):
            if theirs != told[0]:
                refuse(
                    f"FSDP wants {theirs} of its all-reduce hook on rank {rank} of the group, and {told[0]} on rank 0; "
                    "allowed are the same set_gradient_divide_factor() and set_force_sum_reduction_for_comms() on all"
                )

    def _unit_of(self, asked: _Reduction) -> torch.Tensor:
        at = self._at or 0
        self._at = at + 1
        if at < len(self._units) and self._units[at][0] == asked:
            return self._units[at][1]
        before = f"{self._units[at][0]} in the first one" if at < len(self._units) else "nothing in the first one"
        why = (
            f"FSDP wants {asked} as number {at} of a backward pass, and {before}; allowed are the same modules in the "
            "same order, with the same divide factor, in every pass"
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
        """Excludes the time of the current step from tuning, for example because it contained an evaluation."""
        if self._session is not None:
            self._session.exclude_step()

    def export_strategy(self, path: PathLike) -> None:
        """Writes the committed strategy, for hsdp_hook(strategy=...). Only rank 0 of the group writes."""
        self._running().export_strategy(os.fspath(path))

    def progress(self) -> Progress:
        """The current progress, from the second backward pass on."""
        return Progress(**self._running().progress())

    def result(self) -> Result:
        """The result of tuning, from the second backward pass on; complete on rank 0 of the group."""
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
    """A hook that reduces gradients over the replicas of a model that FSDP2 shards, and tunes the communication.

        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replica", "shard"))
        fully_shard(model, mesh=mesh["shard"])
        hook = gradtune.hsdp_hook(mesh["replica"].get_group())
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(hook)

    `group` holds the ranks that have the same shard; its tensors must be on the CPU. In the first backward pass the
    hook is a plain all-reduce, in which it learns FSDP's reductions. From the second pass on, each group has a session.

    Gradients are equal to those of fully_shard(model, mesh=mesh): averages or, after set_gradient_divide_factor(), sums
    divided by that factor. They are complete when backward() returns, but not yet in hooks of FSDP's parameters.
    Gradients must be views of FSDP's reduced tensors. They are if reduce_dtype is the parameters' own dtype and no
    earlier gradient exists.

    The options are those of wrap(). Unsupported requests raise Error in the first backward pass that shows them.
    """
    return HsdpHook(check_group(group), as_given(options))
