# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of one machine, as a launcher would start them."""
import os
import socket
import subprocess


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def variables(rank, size, port):
    """The environment that a launcher gives to a rank; rank 0 listens on that port."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def run_on_ranks(command, size, **more):
    """Runs the command as so many ranks; raises if one of them fails."""
    port = free_port()
    ranks = [subprocess.Popen(command, env={**os.environ, **variables(rank, size, port), **more}, text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for rank in range(size)]
    said = [rank.communicate()[1] for rank in ranks]
    for rank, process in enumerate(ranks):
        if process.returncode != 0:
            raise RuntimeError(f"rank {rank} of {' '.join(command)} ended with code {process.returncode}:\n{said[rank][-2000:]}")
