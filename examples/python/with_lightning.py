# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune under Lightning: torchrun --nproc-per-node 2 examples/python/with_lightning.py"""

import gradtune.for_lightning
import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


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
    strategy=DDPStrategy(process_group_backend="gloo"),
    callbacks=[gradtune.for_lightning.GradtuneCallback()],  # the recipe: wraps one optimizer, or the two of a GAN
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
