# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the options of wrap() from Python values to those that the extension takes."""

from __future__ import annotations

import datetime
import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

Fidelity = Literal["exact", "half", "lossy"]
Policy = Literal["auto", "mergecomp", "fixed", "exhaustive"]
Collectives = Literal["auto", "gloo", "nccl"]
PathLike = str | os.PathLike[str]
Seconds = float | datetime.timedelta


class Options(TypedDict, total=False):
    """The options by name. The docstring of wrap() describes them."""

    fidelity: Fidelity | None
    compressors: Sequence[str] | None
    error_budget: float | None
    strategy: PathLike | None
    tuning_budget: int | None
    timeout: Seconds | None
    collectives: Collectives | None
    journal: PathLike | None
    quiet: bool | None
    broadcast_buffers: bool | None
    ignore: Sequence[str] | None
    policy: Policy | None
    tuning_share: float | None
    lossy_after: int | None
    memory_budget: int | None
    host_threads: int | None
    seed: int | None


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
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _seconds(value: Any) -> float:
    return value.total_seconds() if isinstance(value, datetime.timedelta) else _number(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a bool")
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence):
        raise TypeError("a sequence of str")
    return [_text(item) for item in value]


# The extension checks values; this module checks only Python types.
_BY_TYPE: dict[Any, Callable[[Any], Any]] = {
    Fidelity | None: _text,
    Policy | None: _text,
    Collectives | None: _text,
    PathLike | None: _path,
    Seconds | None: _seconds,
    Sequence[str] | None: _texts,
    float | None: _number,
    int | None: _integer,
    bool | None: _flag,
}
_TYPES = get_type_hints(Options)


def as_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that are not None. TypeError names the option and the types that are allowed."""
    given = {}
    for name, value in options.items():
        if name not in _TYPES:
            raise TypeError(
                f"gradtune: unexpected keyword argument '{name}'{_remark(name)}; the options are {', '.join(_TYPES)}"
            )
        if value is None:
            continue
        try:
            given[name] = _BY_TYPE[_TYPES[name]](value)
        except TypeError as wanted:
            raise TypeError(f"gradtune: option {name} is {value!r}; allowed is {wanted}") from None
    return given


def _remark(name: str) -> str:
    """Returns why an option is unknown, or which one was probably meant."""
    if name == "forward_overlap":
        return " (it is for optimizers of C++ alone)"
    meant = difflib.get_close_matches(name.lower(), _TYPES, n=1, cutoff=0.7)
    return f" (did you mean {meant[0]}?)" if meant else ""


_F = TypeVar("_F", bound=Callable[..., Any])


def with_options(function: _F) -> _F:
    """Shows the options by name in help() of a function that takes them as `**options`."""
    shown = inspect.signature(function)
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _TYPES.items()
    ]
    positional = [each for each in shown.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    setattr(function, "__signature__", shown.replace(parameters=[*positional, *options]))  # noqa: B010
    return function
