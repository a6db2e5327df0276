# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Errors, warnings and lines of gradtune."""

from __future__ import annotations

import logging
import sys
import warnings

_PREFIX = "gradtune: "
_LOGGER = logging.getLogger("gradtune")


class Error(RuntimeError):
    """An unsupported request, or a failure between ranks. `loss.backward()` raises it too.

    The message says what was wrong and what is allowed. For errors between ranks it also names the rank that reports,
    the suspected rank, and the step. After a code other than "invalid" and "io", training cannot go on in this
    process.

    The attribute `code` is one of these:
    - "invalid": the input is not allowed.
    - "mismatch": ranks, or a file and a job, differ.
    - "timeout": a wait took too long.
    - "lost": a rank is gone.
    - "corrupt": a file or payload is damaged.
    - "io": the system reported an error.
    - "peer": another rank reported its own failure.
    """

    code: str

    def __init__(self, message: str, code: str = "invalid") -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.code)


def warn(sentence: str) -> None:
    """Warns the user. The extension calls it, within a call of the program."""
    warnings.warn(f"gradtune: {sentence}", UserWarning, stacklevel=2)


def say(text: str) -> None:
    """Shows lines for people: by `logging` (logger "gradtune", level INFO) if the program has configured it, or on stderr.

    Configured means that a handler gets records of this logger, and that the logger has a level of its own or lets
    INFO pass. So a root logger at its default level, which other packages may have set up, does not hide decisions.
    The extension calls it.
    """
    if _LOGGER.hasHandlers() and (_LOGGER.level != logging.NOTSET or _LOGGER.isEnabledFor(logging.INFO)):
        for line in text.splitlines():
            _LOGGER.info("%s", line.removeprefix(_PREFIX))  # the record has the logger's name
    elif sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
