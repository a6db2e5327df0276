# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The methods of a wrapped optimizer.

The user's object keeps its identity and its class. So learning-rate schedulers, GradScaler and frameworks that hold it
go on working, and so do checks in its class. The methods are attributes of that one object. They are bound to the wrap,
not to the optimizer, which so is in no reference cycle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from ._checks import no_join
from ._errors import Error
from ._hooked import Wrap
from ._options import PathLike
from ._results import Progress, Result, scalars_of
from ._writers import Writer, write_with


class Methods:
    """The methods that wrap() adds to an optimizer."""

    _gradtune: Wrap

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate. Use it around all but the last of several passes before a step.

        Raises:
            Error: The optimizer was closed.
        """
        session = self._gradtune.session
        ddp = self._gradtune.ddp
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
        """Excludes the time of the current step from tuning, for example because it contained an evaluation."""
        self._gradtune.session.exclude_step()

    def scalars(self) -> dict[str, float]:
        """Returns numbers for a logger, as {"gradtune/step_ms": 12.5, ...}: those of gradtune.SCALARS that exist by now.

        From any thread, as progress().
        """
        return scalars_of(self.progress(), self.result())

    def log_to(self, writer: Writer | None, every: int = 10) -> None:
        """Writes scalars() to a logger every `every` steps of this rank; None ends it. The step is progress().step.

        The writer has one of these methods:
        - add_scalar(tag, value, step), as torch.utils.tensorboard.SummaryWriter
        - log_metrics(values, step=...), as the loggers of Lightning
        - log(values, step=...), as wandb.init() returns, and accelerate's Accelerator and trackers. W&B drops values
          of a step that is over, so log your own with step=optimizer.progress().step, or add scalars() to them

        Raises:
            TypeError: The writer has none of them.
            ValueError: `every` is less than 1.
        """
        if every < 1:
            raise ValueError(f"gradtune: every is {every}; allowed is a number of steps above 0")
        self._gradtune.write = None if writer is None else write_with(writer)
        self._gradtune.write_every = every

    def export_strategy(self, path: PathLike) -> None:
        """Writes the committed strategy with its evidence (JSON), for wrap(strategy=...). Only rank 0 writes.

        Raises:
            Error: The file cannot be written ("io"), or no step is done yet ("invalid").
        """
        self._gradtune.session.export_strategy(os.fspath(path))

    def save_checkpoint(self, folder: PathLike) -> None:
        """Saves gradtune's own state: the state of tuning, residuals, random state.

        All ranks must call it, outside of backward. Save model and optimizer beside it as usual. If it cannot be
        written, all ranks raise Error "io", and the older checkpoint in the folder stays.

        Raises:
            Error: On all ranks, if one rank cannot write ("io") or does not call it in time ("timeout").
        """
        self._gradtune.session.save_checkpoint(os.fspath(folder))

    def load_checkpoint(self, folder: PathLike) -> None:
        """Loads a checkpoint; all ranks must call it, after wrap().

        Files of another model, truncated files and changed files are refused before anything is changed.

        Raises:
            Error: The files are of another model ("mismatch"), damaged ("corrupt") or missing ("io").
        """
        self._gradtune.session.load_checkpoint(os.fspath(folder))

    def progress(self) -> Progress:
        """The current progress, from any thread. On threads that do not train, it is that of the last update."""
        return Progress(**self._gradtune.session.progress())

    def result(self) -> Result:
        """The result of tuning, the same on all ranks; from any thread, as progress()."""
        return Result(**self._gradtune.session.result())

    def join(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises Error: inputs that are uneven over ranks are not supported."""
        no_join()

    def join_hook(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises Error in torch.distributed.algorithms.Join, as join() does."""
        no_join()

    def close(self) -> None:
        """Ends the session with its hooks, threads and connections. The optimizer is plain again.

        progress() and result() keep their last values, and another close() does nothing. The optimizer may be wrapped
        again, for instance after add_param_group() or after parameters were unfrozen. Not needed at the end of a
        program.
        """
        self._gradtune.close()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises Error: close(), add the group, wrap() again."""
        raise Error(
            "gradtune: parameters were added to the optimizer after wrap, and would differ between ranks; close() it, "
            "add them, and wrap it again"
        )

    def refresh(self) -> None:
        """Wraps and tunes again after parameters were unfrozen, added or replaced, for example by switching an adapter.

        All ranks must call it, outside of backward passes, before the first backward pass of the new parameters. Rank
        0's values are copied to all ranks, as in wrap(). It also drops frozen parameters, which cost time until then.

        Raises:
            Error: As in wrap(), or because the model is a DistributedDataParallel.
        """
        self._gradtune.refresh()

    def broadcast_buffers(self) -> None:
        """Sends rank 0's buffers (running statistics) to all ranks; all ranks must call it.

        Each backward pass does this at its end. Call it for later changes, such as those of forward passes without a
        backward pass, before an evaluation.
        """
        self._gradtune.session.broadcast_buffers()


class _OfWrapped(type):
    def __instancecheck__(cls, instance: object) -> bool:
        wrap = getattr(instance, "__dict__", {}).get("_gradtune")
        return isinstance(wrap, Wrap) and wrap.is_hooked


class Optimizer(Methods, torch.optim.Optimizer, metaclass=_OfWrapped):
    """The type of an optimizer that wrap() returned, for isinstance() and type checkers; it keeps its own class.

    step, zero_grad, state_dict, ... are those of that class. A copy or a pickle of it is a plain optimizer. A
    gradient is a view of memory that the next backward pass overwrites, so clone() it to keep it.
    """


def names_of(methods: type[Methods]) -> list[str]:
    """Returns the names of the methods, those of base classes included."""
    return [name for name in dir(methods) if not name.startswith("_")]


def methods_of(wrap: Wrap, methods: type[Methods] = Methods) -> Mapping[str, Any]:
    """Returns the methods that the wrap's optimizers gain."""
    bound = methods()
    bound._gradtune = wrap
    return {name: getattr(bound, name) for name in names_of(methods)}
