# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""What a wrapped optimizer can do.

The user's object stays the one that it is, and of the class that it is: what holds it already (learning-rate
schedulers, GradScaler, frameworks) goes on working, and so does what its class asks of itself. The methods are
attributes of that one object, bound to the wrap and not to the optimizer, which so is in no cycle of references.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch

from ._checks import no_join
from ._errors import Error
from ._hooked import ScalarWriter, Wrap
from ._options import PathLike
from ._results import Progress, Result


class Methods:
    """What an optimizer gains by wrap()."""

    _gradtune: Wrap

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate: around all but the last of several passes before a step."""
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
        """What gradtune itself knows: how far tuning is, residuals, random state. By all ranks, outside of backward.

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

    def refresh(self) -> None:
        """After parameters were unfrozen, added or replaced, as where an adapter is switched: wraps anew, and tunes anew.

        By all ranks alike, outside of backward passes, before the first backward pass of what is new. Rank 0's values
        hold everywhere, as after wrap(). It also lets go of what was frozen, which costs time until then.
        """
        self._gradtune.refresh()

    def broadcast_buffers(self) -> None:
        """Brings rank 0's buffers (running statistics) to all ranks, which call it together.

        They come at the end of each backward pass: this is for what changed since, as by forward passes without a
        backward pass, before an evaluation.
        """
        self._gradtune.session.broadcast_buffers()


NAMES = [name for name in vars(Methods) if not name.startswith("_")]


class _OfWrapped(type):
    def __instancecheck__(cls, instance: object) -> bool:
        wrap = getattr(instance, "__dict__", {}).get("_gradtune")
        return isinstance(wrap, Wrap) and wrap.is_hooked


class Optimizer(Methods, torch.optim.Optimizer, metaclass=_OfWrapped):
    """An optimizer that wrap() returned, to isinstance() and to type checkers: it keeps its own class.

    step, zero_grad, state_dict, ... are those of that class. A copy or a pickle of it is a plain optimizer. A gradient
    is a view of memory that the next backward pass writes again: clone() what is to be kept.
    """


def methods_of(wrap: Wrap) -> Mapping[str, Any]:
    """The methods that its optimizers gain."""
    bound = Methods()
    bound._gradtune = wrap
    return {name: getattr(bound, name) for name in NAMES}
