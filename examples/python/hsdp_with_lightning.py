# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune between the replicas of Lightning's ModelParallelStrategy:
torchrun --nproc-per-node 4 examples/python/hsdp_with_lightning.py"""

import os

import gradtune
import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        self.replicas = None

    def configure_model(self):
        # The strategy's mesh has two dimensions; here the second one is that of the shards.
        for layer in (self.layers[0], self.layers[2]):
            fully_shard(layer, mesh=self.device_mesh)
        fully_shard(self.layers, mesh=self.device_mesh)
        self.replicas = gradtune.between_replicas(self.layers)  # the recipe: this line

    def training_step(self, batch, _):
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)

    def train_dataloader(self):
        data = TensorDataset(torch.randn(512, 16), torch.randint(4, (512,)))
        return DataLoader(data, batch_size=8, sampler=DistributedSampler(data))


torch.manual_seed(0)
devices = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=devices,
    num_nodes=int(os.environ["WORLD_SIZE"]) // devices,
    strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2, process_group_backend="gloo"),
    max_steps=16,
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
module = Classifier()
trainer.fit(module)
if trainer.global_rank == 0:
    print(module.replicas.result())
module.replicas.close()
