# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Detects the end of training (a program, a child of multiprocessing, or a thread) and the exception that ended it."""

from __future__ import annotations

import atexit
import multiprocessing
import sys
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from typing import Any


class ExitWatch:
    """Calls `ended` once, on the training thread, with the text of an uncaught exception that ended it, else None."""

    def __init__(self, ended: Callable[[str | None], None]) -> None:
        self._ended: Callable[[str | None], None] | None = ended
        self._finalize: Finalize | None = None
        self._thread = threading.current_thread()
        self._previous: Callable[[threading.ExceptHookArgs], Any] | None = None
        if multiprocessing.parent_process() is None:
            atexit.register(self._program_ends)
        # A forked child ends without atexit, and both kinds of children end before their exceptions are reported
        # elsewhere.
        else:
            self._finalize = Finalize(None, self._child_ends, exitpriority=0)
        if self._thread is not threading.main_thread():
            self._previous = threading.excepthook
            threading.excepthook = self._thread_ends

    def cancel(self) -> None:
        """Prevents the call of `ended`."""
        self._ended = None
        atexit.unregister(self._program_ends)
        if self._finalize is not None:
            self._finalize.cancel()
        if self._previous is not None and threading.excepthook == self._thread_ends:
            threading.excepthook = self._previous

    def _call(self, why: str | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(why)

    def _program_ends(self) -> None:
        # An interactive session keeps an old exception.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._call(None if error is None else _sentence("program", error))

    def _child_ends(self) -> None:
        error: BaseException | None = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # torch's children exit with it after they wrote their exception
            error = error.__context__ if error.code else None
        self._call(None if error is None else _sentence("process", error))

    def _thread_ends(self, args: threading.ExceptHookArgs) -> None:
        assert self._previous is not None
        self._previous(args)
        if args.thread is self._thread and args.exc_value is not None and args.exc_type is not SystemExit:
            self._call(_sentence("thread", args.exc_value))


def _sentence(what: str, error: BaseException) -> str:
    return f"its {what} ended with {type(error).__name__}: {error}"
