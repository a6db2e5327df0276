# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune under Hugging Face's Trainer. Only this module imports transformers.

    trainer = Trainer(model, args, train_dataset=data)
    gradtune.for_transformers.attach(trainer)  # before train(); replaces DistributedDataParallel
    trainer.train()
"""

from __future__ import annotations

import functools
from typing import Any

from transformers import Trainer, TrainerCallback
from typing_extensions import Unpack

from ._errors import Error
from ._optimizer import Optimizer
from ._options import Options, as_given
from ._wrap import wrap

__all__ = ["GradtuneCallback", "attach"]


class GradtuneCallback(TrainerCallback):
    """Adds gradtune's scalars to what the Trainer logs, and leaves evaluations and saved checkpoints out of tuning.

    attach() adds it in front of the other callbacks, so that all trackers of `report_to` get the scalars.
    """

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any) -> None:
        """Adds the values of gradtune.SCALARS that exist by now to `logs`."""
        optimizer = _inside(more.get("optimizer"))
        if logs is not None and isinstance(optimizer, Optimizer):
            logs.update(optimizer.scalars())

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Excludes the current step, whose time contains the evaluation."""
        _exclude_step(more.get("optimizer"))

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Excludes the current step, whose time contains the saving."""
        _exclude_step(more.get("optimizer"))


def attach(trainer: Trainer, **options: Unpack[Options]) -> GradtuneCallback:
    """Makes a Trainer (also of a subclass) average and tune with gradtune in the place of DistributedDataParallel.

    Its optimizer is wrapped when train() makes it, with the options of gradtune.wrap(). Accumulation, clipping,
    schedulers and autocast work as before. `trainer.optimizer.optimizer` is the wrapped optimizer after that.

    Raises:
        Error: The Trainer is attached already.
        TypeError: An option has a wrong type or name.
    """
    given: Any = as_given(options)
    if any(isinstance(each, GradtuneCallback) for each in trainer.callback_handler.callbacks):
        raise Error("gradtune: the Trainer is attached already; allowed is one attach() for each Trainer")
    make = trainer.create_optimizer

    def create_optimizer(model: Any = None, *args: Any, **keywords: Any) -> Any:
        made = make(model, *args, **keywords)
        trained = trainer.model if model is None else model
        optimizer = _inside(made)
        if not isinstance(optimizer, Optimizer):
            trained.no_sync = wrap(optimizer, trained, **given).no_sync  # accelerate uses it while it accumulates
        return made

    accelerator = trainer.accelerator
    trainer.create_optimizer = create_optimizer
    # It moves the model to its device, without DistributedDataParallel.
    accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)
    callback = GradtuneCallback()
    trainer.callback_handler.callbacks.insert(0, callback)
    return callback


def _inside(optimizer: Any) -> Any:
    """The optimizer that accelerate holds, or this one."""
    return getattr(optimizer, "optimizer", optimizer)


def _exclude_step(optimizer: Any) -> None:
    optimizer = _inside(optimizer)
    if isinstance(optimizer, Optimizer):
        optimizer.exclude_step()
