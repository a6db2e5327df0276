# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Loggers of other packages that take scalars. None of these packages is imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Write = Callable[[Mapping[str, float], int], None]


class ScalarWriter(Protocol):
    """As torch.utils.tensorboard.SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any: ...


class MetricsWriter(Protocol):
    """As the loggers of Lightning."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> Any: ...


class ValuesWriter(Protocol):
    """As a run of W&B, and accelerate's Accelerator."""

    def log(self, values: dict[str, Any], /, step: int | None = None) -> Any: ...


Writer = ScalarWriter | MetricsWriter | ValuesWriter


def write_with(writer: Any) -> Write:
    """Returns a function that writes values of a step; TypeError says which writers are allowed."""
    add = getattr(writer, "add_scalar", None)
    if callable(add):

        def write_each(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                add(name, value, step)

        return write_each
    for name in ("log_metrics", "log"):
        log: Any = getattr(writer, name, None)
        if _takes_values_and_step(log):

            def write_all(values: Mapping[str, float], step: int, log: Any = log) -> None:
                log(dict(values), step=step)

            return write_all
    raise TypeError(
        f"gradtune: writer is {writer!r}; allowed is an object with add_scalar(tag, value, step), such as "
        "torch.utils.tensorboard.SummaryWriter, with log_metrics(values, step=...) or log(values, step=...), such as a "
        "run of W&B, or None"
    )


def _takes_values_and_step(log: Any) -> bool:
    """False also for other functions with such a name, as of a logging.Logger."""
    if not callable(log):
        return False
    try:
        inspect.signature(log).bind({}, step=0)
    except (TypeError, ValueError):  # it takes something else, or does not say what
        return False
    return True
