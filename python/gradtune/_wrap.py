# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The function wrap()."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast, overload

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Unpack

from . import _gradtune
from ._checks import check_group, check_optimizer, refuse
from ._errors import Error
from ._hooked import Wrap
from ._optimizer import Methods, Optimizer, methods_of, names_of
from ._options import Options, as_given, with_options
from .replicas import between_replicas, is_replicated


def check(optimizers: Sequence[torch.optim.Optimizer], models: Sequence[torch.nn.Module]) -> None:
    """Raises for optimizers and models that cannot be wrapped, as far as one rank can tell without a session."""
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(
                f"gradtune: the model is a {type(model).__name__}; allowed is a torch.nn.Module, or a list of them"
            )
    if not models:
        raise Error("gradtune: wrap needs at least one model")
    if not optimizers:
        raise Error("gradtune: wrap needs at least one optimizer")
    for optimizer in optimizers:
        name = type(optimizer).__name__
        inside = "allowed is one, such as the one that a wrapper holds, which stays the object that it is"
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"gradtune: {name} is not a torch.optim.Optimizer; {inside}")
        if isinstance(optimizer, Optimizer):
            raise Error("gradtune: the optimizer is wrapped already; close() it first")
        if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
            raise Error(f"gradtune: {name} has no step hooks, which a torch.optim.Optimizer has; {inside}")
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise Error("gradtune: an optimizer is in the list twice")


def _make_hook_of(ddp: DistributedDataParallel, session: _gradtune.Session) -> None:
    try:
        session.attach(ddp.reducer, ddp.process_group)
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        raise Error(f"gradtune: DistributedDataParallel takes one communication hook in its life: {why}") from None


def begin(
    made: Wrap,
    models: Sequence[weakref.ref[torch.nn.Module]],
    group: dist.ProcessGroup,
    options: Mapping[str, Any],
    methods: Mapping[str, Any],
) -> None:
    """Attaches a wrap to its models, and starts its session; all ranks call it."""
    alive = [model for model in (reference() for reference in models) if model is not None]
    trained = made.kind_of_trained(made.alive(), alive, options.get("ignore", ()), made.attach)
    given = {**options, "ignore": trained.ignored} if trained.ignored else dict(options)
    session = None
    try:
        session = made.make_session(trained, group, given)
        if made.ddp is not None:
            _make_hook_of(made.ddp, session)
        made.start(session, methods)
    except BaseException as error:  # the program may catch it and train in another way
        made.detach()
        if session is not None:
            session.close(f"wrap() ended with {type(error).__name__}: {error}")
        raise


def _begin(
    made: Wrap,
    models: Sequence[weakref.ref[torch.nn.Module]],
    group: dist.ProcessGroup,
    options: Mapping[str, Any],
) -> None:
    begin(made, models, group, options, methods_of(made))


def _wrap_replicas(
    optimizers: Sequence[torch.optim.Optimizer],
    models: Sequence[torch.nn.Module],
    group: dist.ProcessGroup | None,
    options: Mapping[str, Any],
) -> None:
    if group is not None:
        refuse("a group was given for a model with replicas; allowed is None, as the model's mesh has the group")
    for optimizer in optimizers:
        check_optimizer(optimizer)
    replicas = between_replicas(models, **cast(Options, options))
    for optimizer in optimizers:
        vars(optimizer).update(replicas.methods())


def _wrap_whole(
    optimizers: Sequence[torch.optim.Optimizer],
    models: Sequence[torch.nn.Module],
    group: dist.ProcessGroup | None,
    options: dict[str, Any],
) -> None:
    ddp = models[0] if isinstance(models[0], DistributedDataParallel) and len(models) == 1 else None
    if ddp is not None:  # DDP broadcasts buffers itself
        models, group = [ddp.module], group or ddp.process_group
        options["broadcast_buffers"] = False
    made = Wrap(optimizers, ddp, names_of(Methods))
    whose = [weakref.ref(each) for each in models]
    made.begin = functools.partial(_begin, models=whose, group=check_group(group), options=options)
    made.begin(made)


@overload
def wrap(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | Sequence[torch.nn.Module],
    group: dist.ProcessGroup | None = None,
    **options: Unpack[Options],
) -> Optimizer: ...


@overload
def wrap(
    optimizer: Sequence[torch.optim.Optimizer],
    model: torch.nn.Module | Sequence[torch.nn.Module],
    group: dist.ProcessGroup | None = None,
    **options: Unpack[Options],
) -> list[Optimizer]: ...


@with_options
def wrap(
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    model: torch.nn.Module | Sequence[torch.nn.Module],
    group: dist.ProcessGroup | None = None,
    **options: Unpack[Options],
) -> Optimizer | list[Optimizer]:
    """Averages the model's gradients over the ranks of `group` while backward runs, and tunes the communication.

    Returns the same object, or the same objects of a sequence, of the same class, with the methods of
    gradtune.Optimizer. Learning-rate schedulers and GradScaler that hold it go on working. state_dict() is that of
    the plain optimizer, and a copy or a pickle is a plain optimizer. Any torch.optim.Optimizer may be wrapped if its
    step() uses the gradients of one backward pass, also one that holds another optimizer (Lookahead).

    Collective: all ranks of `group` (None: the default process group) must call it, with the same model and options,
    instead of DistributedDataParallel. Call it when the model is on its device, all of its parameters exist, and
    parameters that should be frozen are frozen; before or after torch.compile(model). After freezing or unfreezing
    parameters later, call refresh().

    Several optimizers of one model are wrapped together, and need not step equally often. A loss with parameters of
    its own is wrapped with the model, in a list of modules. The two models of a GAN may have one wrap or two.

    To keep DistributedDataParallel, pass it as the model: gradtune becomes its communication hook. A gradient is then
    ready only with its DDP bucket; DistributedDataParallel(..., bucket_cap_mb=1e-6) has one bucket for each tensor.
    no_sync() and buffers are DDP's. After close() DDP averages as before.

    A model that FSDP2 shards on a 2-D mesh gets between_replicas(), and the optimizer the methods of gradtune.Replicas.
    Then nothing but gradients is sent or compared.

    Options, parameters, buffers and hyper-parameters are compared over ranks. Then all ranks get rank 0's parameters
    and buffers; buffers also after each backward pass. Collectives run on gradtune's own groups, made through the
    store of `group`.

    An option that is None is taken from the variable GRADTUNE_<NAME>, then from the JSON file that GRADTUNE_CONFIG
    names, then from its default.

    Args:
        fidelity: Changes to training that tuning may make: exact, half (also 16 bits on the wire) or lossy (also lossy
            compressors, with error feedback). Default: half.
        compressors: Compressors that are allowed, such as topk:0.02 or bf16. Default: the default list.
        error_budget: Largest one-step error of a compressed bucket, relative to its norm. Default: twice the error seen
            in trainings, or just before.
        strategy: File to start from, as export_strategy() wrote it. Default: none. The
            word "none" is no file either, and overrides the variable.
        tuning_budget: Steps after which tuning ends; with 0 nothing is tuned, and the strategy of the file (or the
            baseline) is pinned. Default: 400.
        timeout: Seconds that one communication may take. Default: the process group's. A timedelta is allowed too.
        collectives: Transport of gradients: auto (nccl if it is the process group's backend for their device, else
            gloo), gloo (through the host) or nccl. Default: auto.
        journal: File (JSON lines) to which rank 0 writes every step, measurement and decision. Default: none.
        quiet: No progress on standard error. Default: false.
        broadcast_buffers: All ranks get rank 0's buffers, such as the running statistics of BatchNorm, after wrap() and
            after every backward pass. Default: true.
        ignore: Names of parameters, buffers or modules that each rank keeps for itself, such as a rank's experts: they
            are not sent, compared or averaged. Default: none. The model's _ddp_params_and_buffers_to_ignore are added.

    For experts:
        policy: The policy that proposes strategies: auto, mergecomp, fixed or exhaustive. Default: auto.
        tuning_share: Share of time lost against the baseline after which tuning ends. Default: 0.25.
        lossy_after: Steps before any lossy compressor may run. Default: the need of each compressor. The need is 80
            for int3packed and powersgd if an optimizer is not SGD, else 0.
        memory_budget: Bytes of residuals and payloads. Default: no limit.
        host_threads: Threads that may compress beside the training thread. Default: cores - 1.
        seed: Seed of the tuner's random choices and of random compressors. Default: 0.

    Raises:
        Error: Ranks differ, torch.distributed is not initialised, an option has a value that is not allowed, or an
            object is not supported. If one rank raises, the others are told at once. Not supported are parameters that
            are sharded (DTensor, FSDP) without replicas, lazy, sparse, complex, on several devices or missing from the model;
            DistributedDataParallel around a part of the model or with a hook already; optimizers that evaluate their
            closure several times (LBFGS), step inside backward or are wrapped already.
        TypeError: An argument has a wrong type or name.
    """
    given = as_given(options)
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    models = list(model) if isinstance(model, Sequence) else [model]
    check(optimizers, models)
    (_wrap_replicas if is_replicated(models) else _wrap_whole)(optimizers, models, group, given)
    wrapped = [cast(Optimizer, each) for each in optimizers]
    return wrapped if isinstance(optimizer, Sequence) else wrapped[0]
