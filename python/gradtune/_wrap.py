# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The one call."""

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
from ._checks import check_group
from ._errors import Error
from ._hooked import Wrap
from ._optimizer import NAMES, Optimizer, methods_of
from ._options import Options, as_given, with_options
from ._trained import Trained


def _check(optimizers: Sequence[torch.optim.Optimizer], models: Sequence[torch.nn.Module]) -> None:
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


def _begin(
    made: Wrap,
    models: Sequence[weakref.ref[torch.nn.Module]],
    group: dist.ProcessGroup,
    options: Mapping[str, Any],
) -> None:
    alive = [model for model in (reference() for reference in models) if model is not None]
    trained = Trained(made.alive(), alive, options.get("ignore", ()), made.attach)
    given = {**options, "ignore": trained.ignored} if trained.ignored else dict(options)
    ddp, session = made.ddp, None
    arrival = _gradtune.Arrival.hooks if ddp is None else _gradtune.Arrival.handed_over
    try:
        session = _gradtune.Session(trained, trained.count, group, given, arrival)
        if ddp is not None:
            _make_hook_of(ddp, session)
        made.start(session, methods_of(made))
    except BaseException as error:  # the program may catch it, and train otherwise
        made.detach()
        if session is not None:
            session.close(f"wrap() ended with {type(error).__name__}: {error}")
        raise


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
    """Averages the model's gradients over the ranks of `group` while backward runs, and tunes how they travel.

    Returns the same object, or the same objects of a sequence, of the same class, with the methods of
    gradtune.Optimizer. What holds it already (learning-rate schedulers, GradScaler) goes on working, state_dict() is
    that of the plain optimizer, and a copy or a pickle is a plain optimizer. Any torch.optim.Optimizer may be wrapped
    whose step() uses gradients of one backward pass, also one that holds another one (Lookahead).

    Collective: all ranks of `group` (None: the default process group) call it, with the same model and options, in the
    place of DistributedDataParallel. Call it when the model is where it is trained, with all of its parameters known
    and those to be frozen frozen, before or after torch.compile(model). What is frozen or unfrozen later is followed by
    refresh().

    Several optimizers of one model are one wrap, and need not step equally often. What has parameters beside the model,
    such as a loss, is wrapped with it, as a list of modules. The two models of a GAN may be two wraps, or one: in one,
    each backward pass sends the gradients of both.

    Who must keep DistributedDataParallel gives it as the model: gradtune becomes its communication hook. Gradients then
    are ready a bucket of DDP's at a time; DistributedDataParallel(..., bucket_cap_mb=1e-6) has one for each tensor.
    no_sync() is DDP's, and so are buffers. After close() DDP averages as it did before.

    Parameters and buffers are those of rank 0 afterwards; buffers also after each backward pass. Options, parameters, buffers
    and hyper-parameters are compared over ranks before. Collectives run on groups of gradtune's own, made by way of the
    store of `group`.

    An option that is None is taken from the variable GRADTUNE_<NAME>, then from the JSON file that GRADTUNE_CONFIG
    names, then it has its default.

    Args:
        fidelity: what tuning may change. "exact": fp32 sums, nothing lossy. "half" (default): also 16 bits on the wire.
            "lossy": also compressors that lose, with error feedback.
        compressors: allow-list, such as ["topk:0.02", "bf16"]; default: what the fidelity admits of the default list.
        error_budget: largest one-step error of a compressed bucket, relative to its norm; default: 1.2 times what was
            seen after the commit.
        lossy_after: steps before any lossy compressor may run. Default: as each one needs, which is 80 for
            ``int3packed`` and ``powersgd`` where an optimizer is not SGD, else 0.
        policy: who proposes strategies; default "auto".
        strategy: file to start from, as export_strategy() wrote it.
        tuning_budget: steps after which tuning ends and the baseline stays; default 400. 0: nothing is tuned, the
            strategy of the file (or the baseline) is pinned.
        tuning_share: the same as a share of time lost against the baseline; default 0.25.
        memory_budget: bytes of residuals and payloads; default: no limit.
        host_threads: threads that may compress beside the one that trains; default: cores minus one.
        timeout: seconds, or a timedelta, that any communication may take; default: the timeout of the process group.
        collectives: what carries gradients on a CUDA device: "gloo" (default), by way of the host, or "nccl".
        journal: file (JSON lines) in which rank 0 writes every step, measurement and decision.
        seed: of the tuner's random choices and of random compressors; default 0.
        quiet: no progress on sys.stderr; default False.
        broadcast_buffers: buffers are those of rank 0; False: they are each rank's own. Default True.
        ignore: names of parameters, buffers or modules that stay each rank's own, such as a rank's experts: they are
            not sent, compared or averaged. Besides those in the model's _ddp_params_and_buffers_to_ignore.

    Raises:
        Error: ranks that differ, and by name what can not be served: parameters that are sharded (DTensor, FSDP), lazy,
            sparse, complex, on several devices or missing from the model; DistributedDataParallel around
            a part of the model, or with a communication hook already; optimizers that evaluate their closure several
            times (LBFGS) or that step inside backward; an optimizer that is wrapped already; torch.distributed that is
            not initialised; an option's value. What one rank can not do the others are told at once.
        TypeError: an argument of another type or name.
    """
    given = as_given(options)
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    models = list(model) if isinstance(model, Sequence) else [model]
    _check(optimizers, models)
    ddp = model if isinstance(model, DistributedDataParallel) else None
    if ddp is not None:  # which broadcasts buffers itself
        models, group = [ddp.module], group or ddp.process_group
        given["broadcast_buffers"] = False
    made = Wrap(optimizers, ddp, NAMES)
    whose = [weakref.ref(each) for each in models]
    made.begin = functools.partial(_begin, models=whose, group=check_group(group), options=given)
    made.begin(made)
    wrapped = [cast(Optimizer, each) for each in optimizers]
    return wrapped if isinstance(optimizer, Sequence) else wrapped[0]
