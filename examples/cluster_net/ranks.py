# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of one job: starts them in their nodes, passes on their output, and ends them together."""

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import time

from cluster_net import say
from cluster_net.changes import PERIOD_S
from cluster_net.network import INTERFACE, MTU_BYTES

MASTER_PORT = 29500  # free, because the network is new
END_S = 2.0  # between SIGTERM and SIGKILL


@dataclasses.dataclass(frozen=True)
class Layout:
    """The places of ranks: `ranks_per_node` consecutive ones on each of `nodes`, on `cores` in total."""

    nodes: int
    ranks_per_node: int
    cores: tuple

    @property
    def world_size(self):
        return self.nodes * self.ranks_per_node

    def cores_of(self, rank):
        """A separate share of the cores for each rank if there are enough, otherwise all of them."""
        share = len(self.cores) // self.world_size
        return self.cores[rank * share : (rank + 1) * share] if share else self.cores

    def describe(self, rate, delay=None):
        """GRADTUNE_NETWORK: the description of the network in a report."""
        shaping = "rate=none,burst=none"
        if rate:
            shaping = f"rate={rate.text},burst={rate.burst_bytes},gso={rate.segment_bytes}"
        shaping += f",delay={delay.text}" if delay else ""
        places = f"nodes={self.nodes},ranks={self.world_size},cores={len(self.cores)}"
        return f"netns,{shaping},mtu={MTU_BYTES},{places}"

    def variables(self, rank, network):
        """The environment of a rank, as a launcher sets it."""
        node, local_rank = divmod(rank, self.ranks_per_node)
        return {
            "OMP_NUM_THREADS": str(max(1, len(self.cores) // self.world_size)),
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_node),
            "NODE_RANK": str(node),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": network.addresses[0],
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "GRADTUNE_NETWORK": self.describe(network.rate, network.delay),
        }


class Rank:
    """One process. Rank 0 writes to the launcher's own output; lines of other ranks go to stderr, with a mark."""

    def __init__(self, number, command, layout, network):
        self.number = number
        self.exit_code = None
        self._rest = b""
        pipe = subprocess.PIPE if number else None
        with network.inside(number // layout.ranks_per_node):
            self.process = subprocess.Popen(
                command,
                bufsize=0,
                env=layout.variables(number, network),
                stdin=subprocess.DEVNULL,
                stdout=pipe,
                stderr=subprocess.STDOUT if number else None,
                preexec_fn=lambda: os.sched_setaffinity(0, layout.cores_of(number)),
            )
        self.ended = os.pidfd_open(self.process.pid)  # readable when it has ended
        if pipe:
            os.set_blocking(self.process.stdout.fileno(), False)

    def reap(self):
        status = self.process.wait()
        self.exit_code = status if status >= 0 else 128 - status

    def pass_output_on(self):
        """Forwards whole lines; returns False at the end of the output."""
        while True:
            chunk = self.process.stdout.read(65536)
            if chunk is None:
                return True
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if not chunk and self._rest:
                lines, self._rest = [self._rest], b""
            sys.stderr.buffer.writelines(b"[rank %d] %s\n" % (self.number, line) for line in lines)
            sys.stderr.buffer.flush()
            if not chunk:
                return False


class Job:
    """Runs a command on all ranks; once one fails, the others have `grace_s` to end."""

    def __init__(self, layout, network, grace_s):
        self._layout, self._network, self._grace_s = layout, network, grace_s
        self._ranks = []
        self._first_failure = None
        self._selector = selectors.DefaultSelector()

    def run(self, command, kill=None, changes=None):
        """Returns the first exit code other than 0, or 0.

        `kill` injects a fault: (rank, seconds). `changes` is polled to change the network.
        """
        timers = {}  # by what happens: when
        relay = self._network.relay
        if relay:
            self._selector.register(relay.ended, selectors.EVENT_READ, self._on_relay_end)
        try:
            for number in range(self._layout.world_size):
                self._ranks.append(self._start(number, command))
            if kill:
                timers["kill"] = time.monotonic() + kill[1]
            if changes:
                timers["change"] = time.monotonic()
            while self._running():
                if self._first_failure and "grace" not in timers:
                    timers["grace"] = time.monotonic() + self._grace_s
                due = [what for what, when in timers.items() if when <= time.monotonic()]
                if "grace" in due:
                    numbers = [rank.number for rank in self._running()]
                    say(f"ranks {numbers} still run {self._grace_s:g} s later: ended")
                    break
                if "kill" in due:
                    timers["kill"] = float("inf")
                    self._ranks[kill[0]].process.kill()
                if "change" in due:
                    timers["change"] = time.monotonic() + PERIOD_S
                    changes.look()
                self._handle_events(min(timers.values(), default=float("inf")) - time.monotonic())
        finally:
            self._end_remaining()
        return self._first_failure or 0

    def _start(self, number, command):
        rank = Rank(number, command, self._layout, self._network)
        self._selector.register(rank.ended, selectors.EVENT_READ, lambda: self._on_end(rank))
        if rank.process.stdout:
            output = rank.process.stdout
            self._selector.register(output, selectors.EVENT_READ, lambda: self._on_output(rank))
        return rank

    def _running(self):
        return [rank for rank in self._ranks if rank.exit_code is None]

    def _handle_events(self, timeout_s):
        """Calls the handlers of events within that time."""
        wait_s = None if timeout_s == float("inf") else max(0.0, timeout_s)
        for key, _ in self._selector.select(wait_s):
            key.data()

    def _on_end(self, rank):
        self._selector.unregister(rank.ended)
        rank.reap()
        if rank.process.stdout:
            rank.pass_output_on()
        if rank.exit_code and self._first_failure is None:
            self._first_failure = rank.exit_code
            killed = rank.process.returncode < 0
            by = f" ({signal.Signals(rank.exit_code - 128).name})" if killed else ""
            say(f"rank {rank.number} ended with exit code {rank.exit_code}{by}")

    def _on_output(self, rank):
        if not rank.pass_output_on():
            self._selector.unregister(rank.process.stdout)

    def _on_relay_end(self):
        """Raises Lost, because the ranks would otherwise wait for their timeouts."""
        relay = self._network.relay
        self._selector.unregister(relay.ended)
        raise relay.lost()

    def _end_remaining(self):
        """Sends SIGTERM, then SIGKILL. Processes that ranks started end with the PID namespace."""
        for stop in (signal.SIGTERM, signal.SIGKILL):
            for rank in self._running():
                with contextlib.suppress(ProcessLookupError):
                    rank.process.send_signal(stop)
            deadline = time.monotonic() + END_S
            while self._running() and time.monotonic() < deadline:
                self._handle_events(deadline - time.monotonic())
