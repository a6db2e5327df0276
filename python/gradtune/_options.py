# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The options of wrap(), from what Python programs give to what the extension takes."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PathLike = str | os.PathLike[str]
Seconds = float | datetime.timedelta


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a str")
    return value


def _path(value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError("a str or an os.PathLike")
    return str(os.fspath(value))


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError("an int")
    return int(value.__index__())


def _number(value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError("a float")
    return float(value)


def _seconds(value: Any) -> float:
    return value.total_seconds() if isinstance(value, datetime.timedelta) else _number(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a bool")
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split(",")
    if not isinstance(value, Sequence):
        raise TypeError("a sequence of str")
    return [_text(item) for item in value]


_KINDS: dict[str, Callable[[Any], Any]] = {
    "fidelity": _text,
    "compressors": _texts,
    "error_budget": _number,
    "lossy_after": _integer,
    "policy": _text,
    "strategy": _path,
    "tuning_budget": _integer,
    "tuning_share": _number,
    "memory_budget": _integer,
    "host_threads": _integer,
    "timeout": _seconds,
    "journal": _path,
    "seed": _integer,
    "quiet": _flag,
    "broadcast_buffers": _flag,
}


def as_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None. TypeError names the option and what it may be; values are judged by the extension."""
    given = {}
    for name, value in options.items():
        if value is None:
            continue
        try:
            given[name] = _KINDS[name](value)
        except TypeError as wanted:
            raise TypeError(f"gradtune: option {name} is {value!r}; allowed is {wanted}") from None
    return given
