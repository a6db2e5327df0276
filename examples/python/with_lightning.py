# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune under Lightning: torchrun --nproc-per-node 2 examples/python/with_lightning.py"""

import gradtune
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


# --- the recipe
class GradtuneStrategy(DDPStrategy):
    def configure_ddp(self):
        pass

    def setup_optimizers(self, trainer):
        super().setup_optimizers(trainer)
        self.optimizers = gradtune.wrap(self.optimizers, self.lightning_module)  # one, or the two of a GAN

    def block_backward_sync(self):
        return self.optimizers[0].no_sync()


# ---


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 16), torch.randint(4, (512,)))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=GradtuneStrategy(process_group_backend="gloo"),
    max_steps=20,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
module = Classifier()
trainer.fit(module, DataLoader(data, batch_size=8))
total = torch.cat([p.detach().flatten() for p in module.parameters()])
assert torch.equal(*trainer.strategy.all_gather(total).unbind()), "ranks drifted apart"
if trainer.global_rank == 0:
    print(trainer.optimizers[0].result())
