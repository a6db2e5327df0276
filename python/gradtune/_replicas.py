# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The gradients that replicas of a sharded model (HSDP) sum between them, and the session that carries them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _gradtune
from ._checks import refuse
from ._errors import Error, say
from ._exits import ExitWatch
from ._fsdp import Key, Reduction, lacks_cast, lacks_view, versions_of, write_cast
from ._options import PathLike
from ._results import Progress, Result, scalars_of
from ._trained import Group, Named

_MOST_SESSIONS = 8  # later units go over the replicas as they are


class _Units:
    """The parameters of a session: a tensor of equal size represents each unit."""

    def __init__(self, units: list[tuple[str, torch.Tensor]]) -> None:
        self._units = units

    def identity(self) -> int:
        return id(self)

    def check(self) -> None:
        """Does nothing, because the session is only given tensors of the units' sizes."""

    def parameters(self) -> Named:
        return [(f"unit {i} ({name})", unit) for i, (name, unit) in enumerate(self._units)]

    def buffers(self) -> Named:
        return []

    def groups(self) -> list[Group]:
        return [("0, group 0", [unit for _, unit in self._units], "", False, [], "any")]


@dataclass(frozen=True)
class _Brought:
    """A unit's gradient in the current pass."""

    name: str
    unit: torch.Tensor
    reduced: torch.Tensor  # FSDP's result over shards; it gets the result over replicas
    value: torch.Tensor  # `reduced`, or a copy of it if FSDP divides that in place
    divisor: float  # of the sum over replicas
    version: int  # of `reduced` at the end of the pass, if only FSDP changed it
    parameters: list[Any]  # FSDP's objects
    versions: list[int]  # of the parameters, when the gradient was brought
    is_cast: bool  # the gradients are no views of `reduced`, but of a copy of it in another dtype
    stream: torch.Stream | None  # of FSDP's work with `reduced`, on a device

    @classmethod
    def by(cls, asked: Reduction, unit: torch.Tensor, reduced: torch.Tensor) -> _Brought:
        return cls(
            name=asked.name,
            unit=unit,
            reduced=reduced,
            value=reduced.clone() if asked.in_place else reduced,
            divisor=asked.divisor,
            version=reduced._version + (1 if asked.in_place else 0),
            parameters=asked.parameters,
            versions=versions_of(asked.parameters),
            is_cast=asked.is_cast,
            stream=None if reduced.device.type == "cpu" else torch.accelerator.current_stream(reduced.device),
        )

    def deliver(self) -> None:
        """Makes the gradients those over replicas, if they are no views of the result."""
        if self.is_cast:
            with torch.no_grad():
                write_cast(self.reduced, self.parameters)

    def await_fsdp(self) -> None:
        """Later work on the current stream finds what FSDP does with `reduced` in the pass."""
        if self.stream is not None:
            torch.accelerator.current_stream(self.reduced.device).wait_stream(self.stream)

    def check(self, steps: _StepWatch) -> None:
        """Raises Error if the gradient would be lost, or was used before it was summed."""
        if steps.saw(self.parameters) or versions_of(self.parameters) != self.versions:
            refuse(
                f"a parameter of {self.name} was changed within a backward pass (by a hook that steps an optimizer?), "
                "where its gradient is this replica's own; gradients may be used when backward() has returned"
            )
        if self.is_cast:
            if lacks_cast(self.reduced, self.parameters):
                refuse(
                    f"a gradient of {self.name} was changed or replaced within a backward pass, before it was summed over "
                    "replicas; allowed is to change it when backward() has returned"
                )
            return
        if lacks_view(self.reduced, self.parameters):
            refuse(
                f"a gradient of {self.name} was replaced within a backward pass, before it was summed over replicas; "
                "allowed is to replace it when backward() has returned"
            )
        if self.reduced._version != self.version:
            refuse(
                f"a gradient of {self.name} was changed within a backward pass, before it was summed over replicas (by a "
                "hook of its parameter, or by a second pass of its module?); allowed is to change it when backward() has "
                "returned"
            )


class _StepWatch:
    """Notes which parameters optimizers update within a backward pass.

    The versions of sharded parameters do not grow if an optimizer is fused or uses foreach functions.
    """

    def __init__(self) -> None:
        updated: set[int] = set()

        def note(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            if torch._C._current_graph_task_id() >= 0:
                updated.update(id(parameter) for group in optimizer.param_groups for parameter in group["params"])

        self._updated = updated
        weakref.finalize(self, register_optimizer_step_post_hook(note).remove)

    def forget(self) -> None:
        """Forgets the updates so far."""
        self._updated.clear()

    def saw(self, parameters: list[Any]) -> bool:
        """True if one of these objects of FSDP was updated."""
        return any(id(parameter.sharded_param) in self._updated for parameter in parameters)


class Replicas:
    """The result of between_replicas(): the communication between the replicas of a model.

    A session carries the gradients from the end of the first backward pass on. A unit that is new in a later pass is
    summed at the end of it, with a session for all units that are known by then.
    """

    def __init__(self, group: dist.ProcessGroup, options: Mapping[str, Any], speaks: bool) -> None:
        """`speaks`: this job prints progress."""
        self._group = group
        self._speaks = speaks
        self._options = dict(options)
        self._units: dict[Key, tuple[str, torch.Tensor]] = {}  # in the order of their first reductions
        self._brought: dict[Key, _Brought] = {}  # in the current pass, also by units that are new
        self._untuned: set[Key] = set()
        self._pass: int | None = None  # autograd's number of the current pass
        self._session: _gradtune.Session | None = None
        self._sessions = 0
        self._closed = False
        self._said = False
        self._exits: ExitWatch | None = None
        self._steps = _StepWatch()

    @property
    def has_session(self) -> bool:
        return self._session is not None

    def take(self, reduced: torch.Tensor, asked: Reduction) -> bool:
        """Takes a tensor that holds the result over replicas when backward() ends; False if it is not taken."""
        key = asked.key
        why = asked.used_at_once
        if not why and key not in self._units and self._sessions >= _MOST_SESSIONS:
            why = f"it is new, and there were {_MOST_SESSIONS} sessions before, each with new units"
        if self._closed or why or key in self._untuned:
            self._settle([each for each in self._new() if asked.shares_parameters_with(each)])
            self._say_once(asked.name, why)
            return False
        self._enter_pass()
        is_known = key in self._units
        unit = self._units[key][1] if is_known else torch.zeros_like(reduced, requires_grad=True)
        self._brought[key] = _Brought.by(asked, unit, reduced)
        if is_known:
            self._hand_over(self._brought[key])
        return True

    def _new(self) -> list[Key]:
        """The units of the current pass that no session has."""
        return [key for key in self._brought if key not in self._units]

    def _enter_pass(self) -> None:
        current = torch._C._current_graph_task_id()
        if current == self._pass:
            return
        self._pass = current
        self._brought.clear()  # of a pass that ended with an exception
        self._steps.forget()
        if self._session is not None:
            # FSDP does not report updates, so each interval between two passes counts as one.
            self._session.begin_update()
            self._session.end_update(0)
        Variable._execution_engine.queue_callback(self._end_pass)

    def _end_pass(self) -> None:
        self._pass = None
        try:
            for each in self._brought.values():
                each.await_fsdp()
                each.check(self._steps)
        except Error as error:
            self._closed = True
            self._end(str(error))
            raise
        if self._session is not None:
            self._session.end_pass()
        if self._new():
            self._join([self._brought[key] for key in self._new()])
        for each in self._brought.values():
            each.deliver()
        self._brought.clear()

    def _hand_over(self, each: _Brought) -> None:
        self._running().hand_over(each.unit, each.reduced, each.value, each.divisor)

    def _join(self, new: list[_Brought]) -> None:
        """Starts a session with the new units too, and sums these."""
        if self._session is not None:
            self._session.broadcast_buffers()  # there are none; a replica without these units makes another call
        self._end(None)
        self._units.update({key: (each.name, each.unit) for key, each in self._brought.items()})
        self._start()
        session = self._running()
        session.begin_pass()
        for each in new:
            self._hand_over(each)
        session.end_pass()

    def _start(self) -> None:
        units, count = _Units(list(self._units.values())), _gradtune.RegistrationCount()
        options = self._options if self._speaks else {**self._options, "quiet": True}
        self._session = _gradtune.Session(units, count, self._group, options, _gradtune.Brings.units)
        self._sessions += 1
        exits = self._exits = ExitWatch(_end_of(weakref.ref(self)))
        gone: Any = weakref.finalize(self, exits.cancel)
        gone.atexit = False

    def _settle(self, keys: list[Key]) -> None:
        """Sums new units that FSDP uses within the pass, and in later ones."""
        for key in keys:
            each = self._brought.pop(key)
            work = self._group.allreduce([each.value])
            if work is not None:
                work.wait()
            each.reduced.copy_(each.value)
            if each.divisor != 1:
                each.reduced.div_(each.divisor)
            each.deliver()
            self._untuned.add(key)

    def _say_once(self, name: str, why: str) -> None:
        if self._closed or self._said or not why:
            return
        self._said = True
        if self._speaks and self._group.rank() == 0:
            sentence = f"the gradient of {name} goes over the replicas as it is, and is not tuned, because {why}"
            say(f"gradtune: {sentence}\n")

    def _end(self, failure: str | None) -> None:
        if self._exits is not None:
            self._exits.cancel()
        session, self._session = self._session, None
        if session is not None:
            session.close(failure)

    def _running(self) -> _gradtune.Session:
        if self._session is None:
            refuse("there is no session before the end of the first backward pass, nor after close()")
        return self._session

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods that an optimizer of the model gains."""
        return {name: getattr(self, name) for name in _METHODS}

    def exclude_step(self) -> None:
        """Excludes the time of the current step from tuning, for example because it contained an evaluation."""
        if self._session is not None:
            self._session.exclude_step()

    def export_strategy(self, path: PathLike) -> None:
        """Writes the committed strategy, for the option strategy. Only rank 0 of the group writes."""
        self._running().export_strategy(os.fspath(path))

    def save_checkpoint(self, folder: PathLike) -> None:
        """Saves gradtune's own state, as gradtune.Optimizer does; each shard's replicas need a folder of their own."""
        self._running().save_checkpoint(os.fspath(folder))

    def load_checkpoint(self, folder: PathLike) -> None:
        """Loads a checkpoint of an equal model, after a first backward pass, of which no update need follow."""
        self._running().load_checkpoint(os.fspath(folder))

    def progress(self) -> Progress:
        """The current progress, from the end of the first backward pass on."""
        return Progress(**self._running().progress())

    def result(self) -> Result:
        """The result of tuning, the same on all replicas, from the end of the first backward pass on."""
        return Result(**self._running().result())

    def scalars(self) -> dict[str, float]:
        """Returns numbers for a logger, as gradtune.Optimizer does, from the end of the first backward pass on."""
        return scalars_of(self.progress(), self.result())

    def close(self) -> None:
        """Ends the session, between backward passes. Gradients then go over the replicas as they are."""
        if torch._C._current_graph_task_id() >= 0:
            refuse("close() was called inside of a backward pass; it may be called before or after one")
        self._end(None)
        self._closed = True


_METHODS = ("close", "exclude_step", "export_strategy", "load_checkpoint", "progress", "result", "save_checkpoint", "scalars")


def _end_of(replicas: weakref.ref[Replicas]) -> Callable[[str | None], None]:
    """A function that ends the session, if it is still there at the end of the program."""

    def end(failure: str | None) -> None:
        alive = replicas()
        if alive is not None:
            alive._end(failure)

    return end
