# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""What is trained, as the extension asks for it.

It holds weak references alone: session -> model -> optimizer -> session would be a cycle through C++, which Python's
collector can not see.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules import module as _modules
from torch.utils.hooks import RemovableHandle

from . import _gradtune
from ._checks import check_model, check_optimizer, refuse

Named = list[tuple[str, torch.Tensor]]
Options = list[tuple[str, str]]
Group = tuple[str, list[torch.Tensor], str, bool, Options, bool]

# What wrappers put into names; without it a strategy or a checkpoint fits the model in any of them.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """Without the parts that torch.compile and checkpoint wrappers add."""
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def _text(value: Any) -> str | None:
    """A hyper-parameter as text that ranks can compare; None where it is none (a function, a large tensor)."""
    if isinstance(value, torch.Tensor):
        return repr(value.item()) if value.numel() == 1 else None
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        parts = [_text(item) for item in value]
        return None if any(part is None for part in parts) else f"({', '.join(str(part) for part in parts)})"
    return None


def _momentum(group: dict[str, Any]) -> str:
    if group.get("momentum"):
        return f"momentum {float(group['momentum']):g}"
    betas = group.get("betas")
    return f"beta1 {float(betas[0]):g}" if betas and float(betas[0]) else ""


class Trained:
    """A model and its optimizers."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        model: torch.nn.Module,
        attach: Callable[[Trained], None],
    ) -> None:
        """`attach`, a bound method, hooks it once it is known that it can be wrapped."""
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._model = weakref.ref(model)
        self._attach = weakref.WeakMethod(attach)
        self._identity = id(optimizers[0])
        self._stepped_ids: dict[int, list[int]] = {}
        self.count = _gradtune.RegistrationCount()

    def identity(self) -> int:
        return self._identity

    def watch(self) -> list[RemovableHandle]:
        """Counts what is registered in the model from here on. The hooks are torch's, and of all modules."""
        ours, count = self._model, self.count

        def registered(module: torch.nn.Module, _name: str, _value: Any) -> None:
            model = ours()
            if model is not None and any(each is module for each in model.modules()):
                count.add()

        # Annotated as hooks that return something, though they need not.
        register: Any = _modules
        disable: Any = torch.compiler.disable
        hook = disable(registered)
        return [
            register.register_module_parameter_registration_hook(hook),
            register.register_module_buffer_registration_hook(hook),
            register.register_module_module_registration_hook(hook),
        ]

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts where an optimizer's parameters are others than before: some are put in past registration."""
        # Each parameter lives as long as the session knows it, so that no other one gets its id.
        ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if self._stepped_ids.setdefault(id(optimizer), ids) != ids:
            self._stepped_ids[id(optimizer)] = ids
            self.count.add()

    def check(self) -> None:
        """Raises what keeps it from being wrapped, on this rank, and hooks it."""
        model = self._model()
        if model is None:
            refuse("the model is gone")
        for optimizer in self._alive():
            check_optimizer(optimizer)
            self.look(optimizer)
        check_model(model)
        attach = self._attach()
        assert attach is not None
        attach(self)

    def parameters(self) -> Named:
        model = self._model()
        if model is None:
            return self._stepped()
        return [(plain_name(name), p) for name, p in model.named_parameters(remove_duplicate=False)]

    def buffers(self) -> Named:
        model = self._model()
        return [] if model is None else [(plain_name(name), b) for name, b in model.named_buffers()]

    def groups(self) -> list[Group]:
        groups: list[Group] = []
        for i, optimizer in enumerate(self._alive()):
            for g, group in enumerate(optimizer.param_groups):
                options = [("class", type(optimizer).__name__), *self._options(optimizer, group)]
                # What is derived from SGD may do something else to gradients.
                name, is_sgd = f"{i}, group {g}", type(optimizer) is torch.optim.SGD
                needs_sparse = isinstance(optimizer, torch.optim.SparseAdam)
                groups.append((name, list(group["params"]), _momentum(group), is_sgd, options, needs_sparse))
        return groups

    @staticmethod
    def _options(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Options:
        options = []
        for key in sorted(key for key in group if key not in ("params", "param_names")):
            text = _text(group[key])
            if text is not None:
                options.append((key, text))
        # An optimizer whose state was loaded on some ranks alone would train them apart.
        state: dict[Any, Any] = next((optimizer.state[p] for p in group["params"] if p in optimizer.state), {})
        step = _text(state["step"]) if "step" in state else None
        options.append(("state", ", ".join(sorted(str(key) for key in state)) + (f" (step {step})" if step else "")))
        return options

    def _alive(self) -> Iterator[torch.optim.Optimizer]:
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def _stepped(self) -> Named:
        """Of a model that is gone, what is still trained."""
        return [("", p) for o in self._alive() for group in o.param_groups for p in group["params"]]
