# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""How gradtune tells what went wrong, and what a user should know."""

from __future__ import annotations

import warnings


class Error(RuntimeError):
    """What gradtune can not do, or what went wrong between ranks.

    The message says what was wrong and what is allowed; of errors between ranks also which rank reports, which one is
    suspected, and the step. Also raised by `loss.backward()`. After a code other than "invalid" and "io" training can
    not go on in this process.

    code: "invalid" (input that is not allowed), "mismatch" (ranks, a file and a job differ), "timeout", "lost" (a rank
    is gone), "corrupt" (a file or payload), "io" (the system said no), "peer" (another rank told what failed there).
    """

    code: str

    def __init__(self, message: str, code: str = "invalid") -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.code)


def warn(sentence: str) -> None:
    """Called by the extension, in the middle of the program's own call."""
    warnings.warn(f"gradtune: {sentence}", UserWarning, stacklevel=2)
