# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""What only Python can tell that it can not be wrapped. Each refusal is by name, and before any collective."""

from __future__ import annotations

from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._errors import Error

# Optimizers by the name of their class and what is wrong with them. By name, as some live in packages of their own.
_OPTIMIZERS = {
    "LBFGS": "it evaluates its closure several times and decides by the loss of one rank",
    "ZeroRedundancyOptimizer": "it keeps a part of the parameters on each rank, and sends them itself; wrap one of the "
    "class that it was given",
    "PostLocalSGDOptimizer": "it averages parameters itself",
    "DeepSpeedZeroOptimizer": "it keeps a part of the gradients on each rank, and sends them itself",
    "AcceleratedOptimizer": "it is a wrapper of accelerate; wrap the optimizer before accelerator.prepare()",
    "FP16_Optimizer": "it has a communication of its own",
    "DeMo": "it has a communication of its own, of gradients that are not averaged",
    "LOMO": "it steps inside backward",
    "AdaLomo": "it steps inside backward",
}


def refuse(sentence: str) -> NoReturn:
    """Raises Error."""
    raise Error(f"gradtune: {sentence}")


def check_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The group, or the default one for None. Raises Error where there is none, or this rank is not in it."""
    if group is None:
        if not (dist.is_available() and dist.is_initialized()):
            raise Error(
                "gradtune: torch.distributed is not initialised; call torch.distributed.init_process_group() first"
            )
        return _that_sends(cast(dist.ProcessGroup, dist.group.WORLD))
    if cast(object, group) is dist.GroupMember.NON_GROUP_MEMBER:
        raise Error("gradtune: this rank is not in the group; allowed is a group that holds it")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"gradtune: group is {group!r}; allowed is a torch.distributed.ProcessGroup")
    return _that_sends(group)


def _that_sends(group: dist.ProcessGroup) -> dist.ProcessGroup:
    if dist.get_backend(group) == "fake":
        raise Error("gradtune: the group's backend is fake: its other ranks are not there; allowed is another, as gloo")
    return group


def no_join(*_args: Any, **_kwargs: Any) -> NoReturn:
    """What torch.distributed.algorithms.Join and DistributedDataParallel.join() call first, before any collective."""
    raise Error(
        "gradtune: join() is not served: a rank that has no more inputs can not take part in the steps of the others; "
        "allowed are as many steps on every rank, which DistributedSampler sees to"
    )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises Error for an optimizer that can not be served."""
    for base in type(optimizer).__mro__:
        if base.__name__ in _OPTIMIZERS:
            refuse(
                f"{type(optimizer).__name__} can not be wrapped: {_OPTIMIZERS[base.__name__]}; allowed are optimizers "
                "that use the gradients of one backward pass, which every rank holds whole"
            )
    if any(p.is_sparse for group in optimizer.param_groups for p in group["params"]):
        refuse("a parameter of the optimizer is sparse; gradients may be of dense parameters")


def check_model(model: torch.nn.Module) -> None:
    """Raises Error for a model that something else communicates for, or whose parameters are not there as a whole."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        where = f"the module {name}" if name else "the model"
        if kind == "DistributedDataParallel":
            refuse(
                f"{where} is wrapped in DistributedDataParallel, which averages gradients as well; allowed is the model "
                "itself (model.module)"
            )
        if kind in ("DataParallel", "FullyShardedDataParallel") or kind.startswith("FSDP"):
            refuse(f"{where} is wrapped in {kind}, which gradtune does not serve; allowed is the model itself")
    for name, parameter in model.named_parameters():
        check_parameter(name, parameter)


def check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    """Raises Error, with its name, for one that is lazy, sharded, or steps itself."""
    if is_lazy(parameter):
        refuse(f"parameter {name} is lazy and has no shape yet; run one forward pass before wrap")
    if is_traceable_wrapper_subclass(parameter) or is_traceable_wrapper_subclass(parameter.data):
        refuse(
            f"parameter {name} is a {type(parameter.data).__name__}: sharded or composite tensors (DTensor, FSDP2, "
            "quantized ones) are not served; allowed are plain tensors, which every rank holds whole"
        )
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        refuse(
            f"parameter {name} has a post-accumulate-gradient hook, which may use the gradient before it is averaged "
            "(an optimizer that steps inside backward?); remove it, or register it after wrap"
        )
