# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""gradtune between the ranks of a replica group of torchft, which may be lost and come back.

    torchft_lighthouse --min_replicas 1 --bind '[::]:29510'
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    until GROUP=0 torchrun --standalone --nproc-per-node 2 examples/python/in_torchft.py; do sleep 1; done
    until GROUP=1 torchrun --standalone --nproc-per-node 2 examples/python/in_torchft.py; do sleep 1; done

gradtune averages gradients inside a group, whose ranks stay the same for its life. torchft averages them between the
groups of the moment. A lost rank ends its group. When the group has been started again, torchft brings it up to date
from another one, and a new session begins with the strategy that the session before exported. The loops above start it:
torchrun's own restarts keep the store of the attempt before, which neither torchft nor c10d expects.
"""

import argparse
import datetime
import os
import sys
from pathlib import Path

import gradtune
import torch
import torch.distributed as dist
import torchft

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--strategy", type=Path, default=Path(f"strategy-{os.environ['GROUP']}.json"), help="file of this group")
given = parser.parse_args()

timeout = datetime.timedelta(seconds=30)
dist.init_process_group("gloo", timeout=timeout)  # the ranks of this group alone
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
# The recipe: the strategy of the session before, if there was one, and export_strategy() below.
begin = {"strategy": given.strategy} if given.strategy.exists() else {}
optimizer = gradtune.wrap(optimizer, model, **begin)


def save():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = torchft.Manager(
    pg=torchft.ProcessGroupGloo(timeout=timeout),
    load_state_dict=load,
    state_dict=save,
    min_replica_size=1,
    replica_id=f"group_{os.environ['GROUP']}",
    # All groups begin alike. Else each rank would take its first gradient from another group, and the ranks of a group,
    # which torchft expects to hold different shards, would drift apart.
    init_sync=False,
    timeout=timeout,
)
torch.manual_seed(1 + int(os.environ["GROUP"]) * dist.get_world_size() + dist.get_rank())
while manager.current_step() < given.steps:
    manager.start_quorum()
    inputs = torch.randn(32, 64)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), inputs.roll(1, dims=1)).backward()  # averages inside the group
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    manager.allreduce(flat).wait()  # averages between the groups
    for gradient, average in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(average.view_as(gradient))
    if manager.should_commit():
        optimizer.step()
    if dist.get_rank() == 0 and manager.current_step() % 20 == 0:
        optimizer.export_strategy(given.strategy)

digest = sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())
print(f"rank {dist.get_rank()} of group {os.environ['GROUP']}: {digest!r} after {manager.current_step()} steps", flush=True)
if dist.get_rank() == 0:
    print(optimizer.result(), file=sys.stderr, flush=True)
manager.shutdown()
optimizer.close()
dist.destroy_process_group()
