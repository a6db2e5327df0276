# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The trained parameters, in the form that the extension needs.

It holds only weak references: session -> model -> optimizer -> session would be a cycle through C++, which Python's
collector cannot see.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.nn.modules import module as _modules
from torch.utils.hooks import RemovableHandle

from . import _gradtune
from ._checks import check_model, check_optimizer, check_stepped, plain_name, refuse

Named = list[tuple[str, torch.Tensor]]
Options = list[tuple[str, str]]
Takes = Literal["any", "as before", "sparse"]
Group = tuple[str, list[torch.Tensor], str, bool, Options, Takes]


def _text(value: Any) -> str | None:
    """Returns a hyper-parameter as text that ranks can compare; None for other values (a function, a large tensor)."""
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


def _takes(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Takes:
    """The gradients that a step accepts: a momentum buffer that began as a sparse gradient accepts no dense one."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        return "sparse"
    return "as before" if group.get("momentum") else "any"


def to_be_ignored(model: torch.nn.Module) -> list[str]:
    """The existing names that a model tells DistributedDataParallel to ignore."""
    told = {plain_name(name).removeprefix(".") for name in getattr(model, "_ddp_params_and_buffers_to_ignore", ())}
    return sorted(
        told.intersection(plain_name(name) for name, _ in model.named_parameters(remove_duplicate=False))
        | told.intersection(plain_name(name) for name, _ in model.named_buffers(remove_duplicate=False))
    )


class Trained:
    """Models and their optimizers. With several models, names begin with the model's number."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        models: Sequence[torch.nn.Module],
        ignore: Sequence[str],
        attach: Callable[[Trained], None],
    ) -> None:
        """`ignore`: the user's names. `attach`, a bound method, hooks this object once the checks have passed."""
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self._models = [weakref.ref(model) for model in models]
        self.ignored = [*ignore, *(prefix + name for prefix, m in self._alive_models() for name in to_be_ignored(m))]
        self._attach = weakref.WeakMethod(attach)
        self._identity = id(optimizers[0])
        self._stepped_ids: dict[int, list[int]] = {}
        self.count = _gradtune.RegistrationCount()

    def identity(self) -> int:
        return self._identity

    def watch(self) -> list[RemovableHandle]:
        """Counts registrations in the models from here on. The hooks are torch's, and apply to all modules."""
        ours, count = self._models, self.count

        def registered(module: torch.nn.Module, _name: str, _value: Any) -> None:
            for reference in ours:
                model = reference()
                if model is not None and any(each is module for each in model.modules()):
                    count.add()

        # Their annotations require a result, which they need not return.
        register: Any = _modules
        disable: Any = torch.compiler.disable
        hook = disable(registered)
        return [
            register.register_module_parameter_registration_hook(hook),
            register.register_module_buffer_registration_hook(hook),
            register.register_module_module_registration_hook(hook),
        ]

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        """Counts changes of an optimizer's parameters, because some are set without registration."""
        # Each parameter lives as long as the session knows it, so its id is not reused.
        ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if self._stepped_ids.setdefault(id(optimizer), ids) != ids:
            self._stepped_ids[id(optimizer)] = ids
            self.count.add()

    def check(self) -> None:
        """Raises the error that prevents a wrap on this rank; otherwise hooks the optimizers."""
        if self._is_gone():
            refuse("the model is gone")
        for optimizer in self._alive():
            check_optimizer(optimizer)
            self.look(optimizer)
        for prefix, model in self._alive_models():
            self.check_model(model, prefix)
        check_stepped(list(self._alive()), [p for _, model in self._alive_models() for p in model.parameters()])
        attach = self._attach()
        assert attach is not None
        attach(self)

    def check_model(self, model: torch.nn.Module, prefix: str) -> None:
        """Raises Error for a model that is not served."""
        check_model(model, prefix, self.ignored)

    def parameters(self) -> Named:
        if self._is_gone():
            return self._stepped()
        return [
            (prefix + plain_name(name), p)
            for prefix, model in self._alive_models()
            for name, p in model.named_parameters(remove_duplicate=False)
        ]

    def buffers(self) -> Named:
        if self._is_gone():
            return []
        return [
            (prefix + plain_name(name), b)
            for prefix, model in self._alive_models()
            for name, b in model.named_buffers(remove_duplicate=False)
        ]

    def groups(self) -> list[Group]:
        groups: list[Group] = []
        for i, optimizer in enumerate(self._alive()):
            for g, group in enumerate(optimizer.param_groups):
                options = [("class", type(optimizer).__name__), *self._options(optimizer, group)]
                # A class derived from SGD may treat gradients differently.
                name, is_sgd = f"{i}, group {g}", type(optimizer) is torch.optim.SGD
                groups.append((name, list(group["params"]), _momentum(group), is_sgd, options, _takes(optimizer, group)))
        return groups

    @staticmethod
    def _options(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Options:
        options = []
        for key in sorted(key for key in group if key not in ("params", "param_names")):
            text = _text(group[key])
            if text is not None:
                options.append((key, text))
        # If an optimizer's state was loaded on only some ranks, they would train apart.
        state: dict[Any, Any] = next((optimizer.state[p] for p in group["params"] if p in optimizer.state), {})
        step = _text(state["step"]) if "step" in state else None
        options.append(("state", ", ".join(sorted(str(key) for key in state)) + (f" (step {step})" if step else "")))
        return options

    def _is_gone(self) -> bool:
        return any(reference() is None for reference in self._models)

    def _alive_models(self) -> Iterator[tuple[str, torch.nn.Module]]:
        for i, reference in enumerate(self._models):
            model = reference()
            if model is not None:
                yield ("" if len(self._models) == 1 else f"{i}."), model

    def _alive(self) -> Iterator[torch.optim.Optimizer]:
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def _stepped(self) -> Named:
        """The parameters that are still trained after the model is gone."""
        return [("", p) for o in self._alive() for group in o.param_groups for p in group["params"]]
