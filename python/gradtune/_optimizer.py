# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The class of wrapped optimizers, and how an optimizer gets it and loses it.

The user's object stays the one that it is: what holds it already (learning-rate schedulers, GradScaler, frameworks)
goes on working. Its class becomes one that is both its own and Optimizer, and torch's step hooks tell the session
before and after each update.
"""

from __future__ import annotations

import contextlib
import copyreg
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol, cast

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from . import _gradtune
from ._checks import no_join
from ._errors import Error
from ._options import PathLike
from ._results import Progress, Result


class ScalarWriter(Protocol):
    """What log_to() needs of a writer, such as torch.utils.tensorboard.SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any: ...


class Wrap:
    """One wrap: a session and the optimizers that it knows. Keeps none of them alive."""

    def __init__(self, session: _gradtune.Session, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.session = session
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._handles: list[RemovableHandle] = []
        self._finalizers: list[weakref.finalize[..., Any]] = []
        self._open: int | None = None  # the optimizer whose step is under way
        self.ddp: weakref.ref[DistributedDataParallel] | None = None  # whose hook the session is
        self.writer: ScalarWriter | None = None
        self.write_every = 1
        self._stepped: set[int] = set()  # those that did their part of the update under way

    def attach(self, handles: Sequence[RemovableHandle]) -> None:
        """Hooks the optimizers and exchanges their classes. `handles` are removed with the hooks."""
        self._handles = list(handles)
        for reference in self._optimizers:
            optimizer = reference()
            assert optimizer is not None
            for name in _AFTER_CLOSE:
                optimizer.__dict__.pop(name, None)
            self._handles += [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
                optimizer.register_load_state_dict_post_hook(self._loaded),
            ]
            optimizer.__class__ = class_over(type(optimizer))
            cast(Optimizer, optimizer)._gradtune = self
            self._finalizers.append(weakref.finalize(optimizer, self.close, at_exit=True))

    def _before(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._open = id(optimizer)  # anew where a step raised before, or calls the step of its base class
        if id(optimizer) in self._stepped:
            self._stepped.clear()  # the update before was one without the other optimizers
        self.session.begin_update()

    def _after(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._open != id(optimizer):
            return
        self._open = None
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._optimizers):
            self._stepped.clear()
            self.session.end_update()
            if self.writer is not None:
                self._write(self.writer)

    def _write(self, writer: ScalarWriter) -> None:
        progress = self.session.progress()
        step = progress["step"]
        if step % self.write_every:
            return
        for name in ("step_ms", "encode_ms", "decode_ms", "wait_ms", "epoch", "nonfinite_steps"):
            writer.add_scalar(f"gradtune/{name}", progress[name], step)

    def _loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        self.session.exclude_step()

    def close(self, at_exit: bool = False) -> None:
        """Ends the session and gives the optimizers their classes back."""
        for finalizer in self._finalizers:
            finalizer.detach()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        ddp = None if self.ddp is None else self.ddp()
        if ddp is not None:
            ddp.__dict__.pop("join_hook", None)
        closed = [each for each in (reference() for reference in self._optimizers) if isinstance(each, Optimizer)]
        for optimizer in closed:
            optimizer.__dict__.pop("_gradtune", None)
            optimizer.__class__ = plain_class(type(optimizer))
        self.session.close(_why_training_ended() if at_exit else None)
        progress, result = Progress(**self.session.progress()), Result(**self.session.result())
        for optimizer in closed:
            optimizer.__dict__.update(close=lambda: None, progress=lambda: progress, result=lambda: result)


# What an optimizer still answers after close(), until it is wrapped anew.
_AFTER_CLOSE = ("close", "progress", "result")


def _why_training_ended() -> str | None:
    """Where the program ends with an exception that nobody caught."""
    error = getattr(sys, "last_value", None)
    return None if error is None else f"its program ended with {type(error).__name__}: {error}"


class Optimizer(torch.optim.Optimizer):
    """An optimizer that wrap() returned. step, zero_grad, state_dict, ... are those of its own class.

    A copy or a pickle of it is a plain optimizer. A gradient is a view of memory that the next backward pass writes
    again: clone() what is to be kept.
    """

    _gradtune: Wrap

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate: around all but the last of several passes before a step."""
        session = self._gradtune.session
        ddp = None if self._gradtune.ddp is None else self._gradtune.ddp()
        if ddp is not None:
            with ddp.no_sync():
                yield
            return
        session.enter_no_sync()
        try:
            yield
        finally:
            session.leave_no_sync()

    def exclude_step(self) -> None:
        """The time of the step under way is not scored: an evaluation, a checkpoint, ... happened in it."""
        self._gradtune.session.exclude_step()

    def log_to(self, writer: ScalarWriter | None, every: int = 10) -> None:
        """Writes where tuning is to TensorBoard, or another writer of scalars, each `every` steps; None: no more.

        The scalars are gradtune/step_ms, encode_ms, decode_ms, wait_ms (this rank's), epoch (of the strategy in force)
        and nonfinite_steps.
        """
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                f"gradtune: writer is {writer!r}; allowed is an object with add_scalar(tag, value, step), such as "
                "torch.utils.tensorboard.SummaryWriter, or None"
            )
        if every < 1:
            raise ValueError(f"gradtune: every is {every}; allowed is a number of steps above 0")
        self._gradtune.writer, self._gradtune.write_every = writer, every

    def export_strategy(self, path: PathLike) -> None:
        """Writes the committed strategy with its evidence (JSON), for wrap(strategy=...). Rank 0 does; others return."""
        self._gradtune.session.export_strategy(os.fspath(path))

    def save_checkpoint(self, folder: PathLike) -> None:
        """What gradtune itself knows: how far tuning is, residuals, random state. By all ranks, between steps.

        Model and optimizer are saved beside it as ever. Error "io", on all ranks, where it can not be written: the
        older checkpoint in the folder is there still.
        """
        self._gradtune.session.save_checkpoint(os.fspath(folder))

    def load_checkpoint(self, folder: PathLike) -> None:
        """By all ranks, after wrap(). Files of another model, cut off or changed are refused before anything changes."""
        self._gradtune.session.load_checkpoint(os.fspath(folder))

    def progress(self) -> Progress:
        """Where tuning is. From any thread; from others than the one that trains, as of the last update that ended."""
        return Progress(**self._gradtune.session.progress())

    def result(self) -> Result:
        """What tuning showed, the same on all ranks. From any thread, as progress()."""
        return Result(**self._gradtune.session.result())

    def join(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises Error: inputs that are uneven over ranks are not served."""
        no_join()

    def join_hook(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises Error, as join(), to torch.distributed.algorithms.Join."""
        no_join()

    def close(self) -> None:
        """Ends the session: its hooks, threads and connections. The optimizer is plain again.

        progress() and result() answer as of the end, and close() again does nothing. It may be wrapped anew, for instance
        after add_param_group() or when parameters were unfrozen. Not needed at the end of a program.
        """
        self._gradtune.close()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises Error: close(), add the group, wrap() again."""
        raise Error(
            "gradtune: parameters were added to the optimizer after wrap, and would differ between ranks; close() it, "
            "add them, and wrap it again"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As a plain object is pickled by protocols 0 and 1: those from 2 on insist on the object's own class.
        return copyreg._reconstructor, (plain_class(type(self)), object, None), self.__getstate__()  # type: ignore[attr-defined]


_PLAIN = "_gradtune_plain"


def plain_class(wrapped: type) -> type:
    """The class that an optimizer had before."""
    return cast(type, getattr(wrapped, _PLAIN))


def class_over(plain: type) -> type:
    """A class that is both `plain` and Optimizer, with the name of `plain`: profilers and loggers show it."""
    try:
        return type(
            plain.__name__, (Optimizer, plain), {_PLAIN: plain, "__module__": __name__, "__doc__": plain.__doc__}
        )
    except TypeError as why:
        raise Error(
            f"gradtune: the class {plain.__name__} can not be extended ({why}); allowed are optimizers that are plain "
            "Python classes"
        ) from None
