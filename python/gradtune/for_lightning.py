# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune under Lightning. Only this module imports lightning, or pytorch_lightning where that is installed alone.

    trainer = Trainer(strategy="ddp", devices=2, callbacks=[gradtune.for_lightning.GradtuneCallback()])
"""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from ._errors import Error
from ._optimizer import Optimizer
from ._options import Options, as_given
from ._wrap import wrap

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback

__all__ = ["GradtuneCallback"]


class GradtuneCallback(Callback):
    """Makes a Trainer with strategy "ddp" average and tune with gradtune in the place of DistributedDataParallel.

    All optimizers of the module are wrapped together, with the options of gradtune.wrap(). Loggers of the Trainer get
    gradtune's scalars every log_every_n_steps steps. Steps with a validation or a saved checkpoint are left out of
    tuning. `trainer.optimizers` are the wrapped optimizers.

    Raises:
        Error: in fit(), if the strategy is not one that uses DistributedDataParallel.
        TypeError: An option has a wrong type or name.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()
        self._options: Any = as_given(options)
        self._logged = -1  # the last step

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Changes the strategy, before it would wrap the model."""
        if stage != "fit":
            return
        strategy = trainer.strategy
        if not hasattr(strategy, "configure_ddp"):
            raise Error(
                f'gradtune: the strategy is {type(strategy).__name__}; allowed is strategy="ddp", or a DDPStrategy, which '
                "needs two devices or more"
            )

        def setup_optimizers(trainer: Any) -> None:
            type(strategy).setup_optimizers(strategy, trainer)
            strategy.optimizers = wrap(strategy.optimizers, pl_module, **self._options)

        strategy.configure_ddp = _does_nothing
        strategy.setup_optimizers = setup_optimizers
        strategy.block_backward_sync = lambda: strategy.optimizers[0].no_sync()

    def on_train_batch_end(self, trainer: Any, *_args: Any, **_more: Any) -> None:
        """Writes the values of gradtune.SCALARS that exist by now."""
        step = trainer.global_step
        if not trainer.loggers or step == self._logged or step % trainer.log_every_n_steps:
            return
        self._logged = step
        for optimizer in _wrapped(trainer)[:1]:  # those of one wrap have the same values
            values = optimizer.scalars()
            for logger in trainer.loggers:
                logger.log_metrics(values, step=step)

    def on_validation_start(self, trainer: Any, *_args: Any) -> None:
        """Excludes the current step, whose time contains the validation."""
        _exclude_step(trainer)

    def on_save_checkpoint(self, trainer: Any, *_args: Any) -> None:
        """Excludes the current step, whose time contains the saving."""
        _exclude_step(trainer)


def _does_nothing() -> None:
    pass


def _wrapped(trainer: Any) -> list[Optimizer]:
    return [each for each in trainer.optimizers if isinstance(each, Optimizer)]


def _exclude_step(trainer: Any) -> None:
    for optimizer in _wrapped(trainer)[:1]:
        optimizer.exclude_step()
