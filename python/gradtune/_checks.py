# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that only Python can make before a wrap. Each refusal names its cause, and precedes any collective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._errors import Error

# Optimizers that are refused, by class name, with the reason. Names are used because some are in other packages.
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
    """Returns the group, or the default one for None. Raises Error if there is none, or this rank is not in it."""
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
    """torch.distributed.algorithms.Join and DistributedDataParallel.join() call this first, before any collective."""
    raise Error(
        "gradtune: join() is not served: a rank that has no more inputs can not take part in the steps of the others; "
        "allowed are as many steps on every rank, which DistributedSampler sees to"
    )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raises Error for an optimizer that cannot be wrapped."""
    for base in type(optimizer).__mro__:
        if base.__name__ in _OPTIMIZERS:
            refuse(
                f"{type(optimizer).__name__} can not be wrapped: {_OPTIMIZERS[base.__name__]}; allowed are optimizers "
                "that use the gradients of one backward pass, which every rank holds whole"
            )
    if any(p.is_sparse for group in optimizer.param_groups for p in group["params"]):
        refuse("a parameter of the optimizer is sparse; gradients may be of dense parameters")


def check_stepped(optimizers: Sequence[torch.optim.Optimizer], of_model: Sequence[torch.Tensor]) -> None:
    """Raises Error for a parameter of an optimizer that is not in the model."""
    known = {id(parameter) for parameter in of_model}
    for parameter in (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]):
        if not parameter.requires_grad or id(parameter) in known:
            continue
        what = f"the optimizer has a parameter of shape {list(parameter.shape)} that is not in the module: it would differ"
        halves = (torch.bfloat16, torch.float16)
        if parameter.dtype not in halves and any(p.dtype in halves and p.shape == parameter.shape for p in of_model):
            refuse(
                f"{what} between ranks; where it is a copy of a parameter in more bits (master weights), wrap an "
                "optimizer of the model's own parameters, wrap(torch.optim.SGD(model.parameters(), 0.0), model), before "
                "the copies are made, and in each step call its step() before yours"
            )
        refuse(
            f"{what} between ranks; give wrap all modules whose parameters are trained, such as a loss with weights: "
            "wrap(optimizer, [model, loss])"
        )


# Prefixes that wrappers add to names. Without them a strategy or a checkpoint fits the model in any wrapper.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """Returns the name without the parts that torch.compile and checkpoint wrappers add."""
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def is_ignored(name: str, ignored: Sequence[str]) -> bool:
    """True for a name of these, and for names in a module of these."""
    name = plain_name(name)
    return any(name == each or name.startswith(f"{each}.") for each in ignored)


def check_model(model: torch.nn.Module, prefix: str = "", ignored: Sequence[str] = ()) -> None:
    """Raises Error for a model whose gradients another component communicates, or whose parameters are not complete.

    `prefix` is put before its names. Names in `ignored` are not checked.
    """
    for name, module in model.named_modules(prefix=prefix.removesuffix(".")):
        if is_ignored(name, ignored):
            continue
        kind = type(module).__name__
        where = f"the module {name}" if name else "the model"
        if kind == "DistributedDataParallel":
            refuse(
                f"{where} is wrapped in DistributedDataParallel, which averages gradients as well; allowed is the model "
                "itself (model.module)"
            )
        if kind in ("DataParallel", "FullyShardedDataParallel"):
            refuse(f"{where} is wrapped in {kind}, which gradtune does not serve; allowed is the model itself")
        if kind.startswith("FSDP"):
            refuse(
                f"{where} is sharded by fully_shard() without replicas ({kind}), so that each gradient is reduced to one "
                "rank; allowed is a 2-D mesh, on which gradtune communicates between the replicas"
            )
    for name, parameter in model.named_parameters(prefix=prefix.removesuffix(".")):
        if not is_ignored(name, ignored):
            check_parameter(name, parameter)


def check_in_unit(name: str, parameter: torch.Tensor) -> None:
    """Raises Error for a trained parameter that FSDP2 does not shard."""
    if parameter.requires_grad and not isinstance(parameter, DTensor):
        refuse(
            f"parameter {name} is in no unit of FSDP2, and its gradient would stay each rank's own; allowed is to shard its "
            "module too, or to freeze it"
        )


def check_parameter(name: str, parameter: torch.nn.Parameter) -> None:
    """Raises Error, with its name, for a parameter that is lazy or sharded, or whose hook steps it."""
    if is_lazy(parameter):
        refuse(f"parameter {name} is lazy and has no shape yet; run one forward pass before wrap")
    if is_traceable_wrapper_subclass(parameter) or is_traceable_wrapper_subclass(parameter.data):
        refuse(
            f"parameter {name} is a {type(parameter.data).__name__}: sharded or composite tensors (DTensor, FSDP2, "
            "quantized ones) are not served; allowed are plain tensors, which every rank holds whole"
        )
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        refuse(
            f"parameter {name} has a post-accumulate-gradient hook, which finds this rank's own gradient, and not the "
            "average (an optimizer that steps inside backward?); remove it, and use gradients when backward() has "
            "returned"
        )
