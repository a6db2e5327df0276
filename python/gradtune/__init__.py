# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Self-tuning gradient communication for data-parallel training.

torch.distributed.init_process_group("gloo")
adamw = torch.optim.AdamW(model.parameters(), 1e-3)
optimizer = gradtune.wrap(adamw, model)  # replaces DistributedDataParallel(model)

for batch in loader:
    optimizer.zero_grad()
    loss(model, batch).backward()  # gradients are communicated meanwhile, and are averages afterwards
    optimizer.step()  # tunes while it trains
print(optimizer.result())
"""

from ._errors import Error
from ._load import VERSION as __version__
from ._optimizer import Optimizer
from ._results import SCALARS, STAGES, Progress, Result, Scalar
from ._rounds import RoundProgress, RoundsOptimizer, rounds
from ._wrap import wrap
from .replicas import Replicas, between_replicas

__all__ = [
    "SCALARS",
    "STAGES",
    "Error",
    "Optimizer",
    "Progress",
    "Replicas",
    "Result",
    "RoundProgress",
    "RoundsOptimizer",
    "Scalar",
    "__version__",
    "between_replicas",
    "rounds",
    "wrap",
]
