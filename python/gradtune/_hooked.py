# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Hooks an optimizer to a session, and releases it.

Torch's step hooks tell the session before and after each update. They are set before ranks are compared, so that an
optimizer that cannot be hooked on one rank is refused on all ranks.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from . import _gradtune
from ._checks import no_join, refuse
from ._exits import ExitWatch
from ._results import Progress, Result, scalars_of
from ._trained import Trained
from ._writers import Write

_AFTER_CLOSE = ("close", "progress", "result", "scalars")  # methods that an optimizer keeps until it is wrapped again


class Wrap:
    """One wrap: a session and its optimizers. Keeps none of them alive."""

    _trained: Trained  # set by attach()
    session: _gradtune.Session  # set by start()
    # Attaches and starts it, also repeatedly; keeps alive no more than the wrap itself does.
    begin: Callable[[Wrap], None]

    kind_of_trained: type[Trained] = Trained  # of what it trains

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], ddp: DistributedDataParallel | None, names: Sequence[str]
    ) -> None:
        """`names` are the names of the methods that optimizers gain."""
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._ddp = None if ddp is None else weakref.ref(ddp)  # the session is its hook
        self._handles: list[RemovableHandle] = []
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._exits: ExitWatch | None = None
        self._names = names
        self._open: int | None = None  # the optimizer whose step is running
        self.write: Write | None = None
        self.write_every = 1

    @property
    def is_hooked(self) -> bool:
        return bool(self._handles)

    @property
    def ddp(self) -> DistributedDataParallel | None:
        return None if self._ddp is None else self._ddp()

    def attach(self, trained: Trained) -> None:
        """Hooks the optimizers. Raises the error that prevents it; detach() then undoes the rest."""
        ddp: Any = self.ddp
        if ddp is not None and ddp._get_ddp_logging_data().get("comm_hook"):
            refuse("DistributedDataParallel takes one communication hook in its life, and has one")
        self._trained = trained
        self._handles += trained.watch()
        # In a program that compiles whole steps, gradtune's hooks are not compiled.
        disable: Any = torch.compiler.disable
        before, after, loaded = (disable(hook) for hook in (self._before, self._after, self._loaded))
        for optimizer in self.alive():
            of_gradtune = _AFTER_CLOSE if "_gradtune" in vars(optimizer) else ()
            for name in self._names:
                is_known = name in of_gradtune or hasattr(torch.optim.Optimizer, name)
                if hasattr(optimizer, name) and not is_known:
                    refuse(
                        f"{type(optimizer).__name__} has an attribute {name} of its own, which that of "
                        "gradtune.Optimizer would hide; allowed is a class in which it is called otherwise"
                    )
            _complete(optimizer)
            self._handles.append(optimizer.register_step_pre_hook(before))
            self._handles.append(optimizer.register_step_post_hook(after))
            self._handles.append(optimizer.register_load_state_dict_post_hook(loaded))

    def make_session(
        self, trained: Trained, group: dist.ProcessGroup, options: dict[str, Any]
    ) -> _gradtune.Session:
        """Makes the session; all ranks call it."""
        brings = _gradtune.Brings.hooks if self.ddp is None else _gradtune.Brings.ddp
        return _gradtune.Session(trained, trained.count, group, options, brings)

    def start(self, session: _gradtune.Session, methods: Mapping[str, Any]) -> None:
        """Connects the hooks with the session, and gives the methods to the optimizers."""
        self.session = session
        if self.ddp is not None:
            self.ddp.__dict__["join_hook"] = no_join  # called before it communicates
        for optimizer in self.alive():
            vars(optimizer).update(methods, _gradtune=self)
            finalizer: Any = weakref.finalize(optimizer, self.close)
            finalizer.atexit = False  # at exit, ExitWatch reports the reason
            self._finalizers.append(finalizer)
        self._exits = ExitWatch(self.close)

    def detach(self) -> None:
        """Removes the hooks and the methods, except those that still work after close()."""
        if self._exits is not None:
            self._exits.cancel()
        for finalizer in self._finalizers:
            finalizer.detach()
        self._finalizers.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.ddp is not None:
            self.ddp.__dict__.pop("join_hook", None)
        for optimizer in self.alive():
            if vars(optimizer).get("_gradtune") is self:
                for name in self._names:
                    if name not in _AFTER_CLOSE:
                        vars(optimizer).pop(name, None)

    def close(self, failure: str | None = None) -> None:
        """Ends the session. `failure` is the reason if training failed; other ranks are told."""
        self.detach()
        self.session.close(failure)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Supports classes of optimizers whose copies hold all attributes."""
        if self.is_hooked:
            refuse(
                "a copy or a pickle was to hold all attributes of a wrapped optimizer, its hooks among them; allowed is "
                "its state_dict(), or to close() it first"
            )
        return Wrap, ([], None, ())  # a copy of a closed one answers no calls

    def refresh(self) -> None:
        """Starts a new session for the parameters that are trained now."""
        if self.ddp is not None:
            refuse(
                "DistributedDataParallel takes one communication hook in its life, and does not average what was unfrozen "
                "since it was made; close() the optimizer, make DistributedDataParallel anew, and wrap again"
            )
        self.close()
        self.begin(self)

    def alive(self) -> list[torch.optim.Optimizer]:
        """Returns the optimizers that still exist."""
        return [optimizer for optimizer in (reference() for reference in self._optimizers) if optimizer is not None]

    def _before(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._open = id(optimizer)  # set again if an earlier step raised, or if a step calls that of its base class
        self._trained.look(optimizer)
        self.session.begin_update()

    def _after(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._open != id(optimizer):
            return
        self._open = None
        number = next(i for i, reference in enumerate(self._optimizers) if reference() is optimizer)
        if self.session.end_update(number) and self.write is not None:
            progress = Progress(**self.session.progress())
            if progress.step % self.write_every == 0:
                self.write(scalars_of(progress, Result(**self.session.result())), progress.step)
        self._updated()

    def _updated(self) -> None:
        """Called after each update, while the optimizer's hooks run."""

    def _loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        self.session.exclude_step()


def _complete(optimizer: torch.optim.Optimizer) -> None:
    """Adds attributes that torch's own constructor sets; wrappers around another optimizer may set only some."""
    for hooks in ("step_pre", "step_post", "load_state_dict_post"):
        vars(optimizer).setdefault(f"_optimizer_{hooks}_hooks", OrderedDict())
    optimizer._patch_step_function()
