# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes joined by a switch: one network namespace each, a veth pair from its eth0 to a bridge, and
token buckets.

Every node's egress is shaped with a burst of 1 ms of the rate: an idle link then gives away at most
1 ms, and the rate holds while the machine computes. A link that changes has one of 12.5 kB at least,
which below 100 Mbit/s is more. Where more than two nodes can meet at one
receiver its ingress is shaped too, on the switch's port, with twice the burst, so that the sender's
bucket stays the one that is felt. With a delay the switch is a relay in place of the bridge
(delay.py). Loss is not emulated.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess

from cluster_net.delay import Relay
from cluster_net.namespaces import (
    Unavailable,
    enter_new_network_namespace,
    inside,
    network_namespace,
)
from cluster_net.tcp import set_up_tcp

MTU_BYTES = 1500
FRAME_BYTES = MTU_BYTES + 14  # what a bucket counts: Ethernet header included
PAYLOAD_BYTES = MTU_BYTES - 52  # IP and TCP headers, with time stamps
# TCP keeps no more than its window in flight (tcp_rmem: some 6 MB a connection), so a queue of this
# length never drops on the way out, and on the way in only what a dozen full windows exceed.
QUEUE_LIMIT_BYTES = 64 << 20
# Of a link that changes: 1 ms of 100 Mbit/s. Its pieces are eight frames.
CHANGING_BURST_BYTES = 12500
# The relay works by frames: TCP hands them over as large as fit through a bucket with their
# headers, and its slots hold one each.
LARGEST_SEGMENT_BYTES = 63 << 10
SLOT_SLACK_BYTES = 1 << 10
FRAMES_BESIDE = 256  # small ones that may be under way beside a link full of the usual ones
RELAY_LIMIT_BYTES = 1 << 30  # of memory that cannot be swapped
MAX_NODES = 64
INTERFACE = "eth0"

_UNIT_BITS = {"mbit": 1e6, "gbit": 1e9}


@dataclasses.dataclass(frozen=True)
class Rate:
    """A link's speed as tc writes it."""

    text: str
    bytes_per_s: float
    changes: bool = False  # while the job runs: of_changing_link

    @staticmethod
    def parse(text):
        """The rate, or None for "none"; ValueError says what is allowed."""
        if text == "none":
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", text)
        if not match or float(match[1]) < 1:
            raise ValueError(
                f"'{text}' is no rate: expected 1mbit or more, such as 200mbit or 2.5gbit, or none"
            )
        return Rate(text, float(match[1]) * _UNIT_BITS[match[2]] / 8)

    def of_changing_link(self):
        """The same speed, with pieces and buckets that fit every rate of such a link.

        A bucket never lets pass what is larger than itself, and what waits in it waits for ever
        when it gets smaller than that. How large its pieces are a connection does not learn anew.
        """
        return dataclasses.replace(self, changes=True)

    @property
    def burst_bytes(self):
        """1 ms of the rate, but at least a frame: a smaller bucket would let none pass."""
        least = CHANGING_BURST_BYTES if self.changes else FRAME_BYTES
        return max(round(self.bytes_per_s / 1000), least)

    @property
    def payload_bytes_per_s(self):
        return self.bytes_per_s * PAYLOAD_BYTES / FRAME_BYTES

    @property
    def segment_bytes(self):
        """As much as TCP may hand to the link in one piece without the bucket taking it apart."""
        fitting = CHANGING_BURST_BYTES if self.changes else self.burst_bytes
        return min(max(round(0.9 * fitting), 2 * FRAME_BYTES), LARGEST_SEGMENT_BYTES)

    def seconds(self, payload_bytes):
        """How long one message takes on an idle link."""
        return (payload_bytes * FRAME_BYTES / PAYLOAD_BYTES - self.burst_bytes) / self.bytes_per_s


UNSHAPED = Rate.parse("40gbit")  # far beyond what a veth carries; a bucket that is taken away drops what it holds


@dataclasses.dataclass
class Counters:
    """What crossed one node's interface."""

    tx_bytes: int = 0
    rx_bytes: int = 0
    dropped: int = 0

    def since(self, earlier):
        return Counters(
            self.tx_bytes - earlier.tx_bytes,
            self.rx_bytes - earlier.rx_bytes,
            self.dropped - earlier.dropped,
        )


def require_tools():
    """Debian keeps ip and tc where only root's PATH looks."""
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Unavailable(f"'{tool}' is not installed (package iproute2)")


class Network:
    """Builds the network around the calling process, which must be alone in a fresh network
    namespace: the switch. `relay` is the program of that name, for a delay.

    It is never taken down: the kernel removes it with the last process inside.
    """

    def __init__(self, nodes, rate, delay=None, relay=None):
        self.rate = rate
        self.delay = delay
        self.relay = None
        self.addresses = [f"198.18.0.{node + 1}" for node in range(nodes)]
        self._switch = network_namespace()
        self._nodes = [enter_new_network_namespace() for _ in range(nodes)]
        with inside(self._switch, self._switch):
            self._lay_cables()
            if delay:
                self.relay = self._start_relay(relay)
            else:
                self._bridge()
            if rate and nodes > 2:
                for node in range(nodes):
                    self._shape(f"port{node}", 2 * rate.burst_bytes)
        for node in range(nodes):
            with self.inside(node):
                _run("ip link set lo up")
                _run(f"ip address add {self.addresses[node]}/15 dev {INTERFACE}")
                _run(f"ip link set {INTERFACE} up")
                if rate:
                    self._shape_node(rate)
                window_bytes = 4 * self._bytes_under_way(2 * delay.seconds) if delay else 0
                self.tcp = set_up_tcp(window_bytes)  # what a report says of it

    def set_rate(self, rate):
        """From now on; what waits in the buckets stays there. Only where the first rate was one
        of_changing_link, and without a delay."""
        self.rate = (rate or UNSHAPED).of_changing_link()
        for node in range(len(self._nodes)):
            with self.inside(node):
                self._shape_node(self.rate)
            if len(self._nodes) > 2:
                with inside(self._switch, self._switch):
                    self._shape(f"port{node}", 2 * self.rate.burst_bytes)

    @contextlib.contextmanager
    def inside(self, node):
        """What the block starts or opens belongs to the node."""
        with inside(self._nodes[node], self._switch):
            yield

    def counters(self):
        """Bytes on every node's interface, and what the buckets and the relay dropped."""
        result = []
        relayed = self.relay.ask()["dropped"] if self.relay else [0] * len(self._nodes)
        for node in range(len(self._nodes)):
            with self.inside(node):
                (link,) = json.loads(_run(f"ip -json -statistics link show {INTERFACE}"))
                dropped = _drops(INTERFACE)
            if not self.relay:  # which counts what the bucket behind it refuses
                dropped += _drops(f"port{node}")
            tx, rx = link["stats64"]["tx"], link["stats64"]["rx"]
            dropped += tx["dropped"] + rx["dropped"] + relayed[node]
            result.append(Counters(tx["bytes"], rx["bytes"], dropped))
        return result

    def _lay_cables(self):
        for node, namespace in enumerate(self._nodes):
            peer = f"name {INTERFACE} mtu {MTU_BYTES} netns /proc/self/fd/{namespace}"
            _run(f"ip link add port{node} mtu {MTU_BYTES} type veth peer {peer}", [namespace])
            _run(f"ip link set port{node} up")

    def _bridge(self):
        _run("ip link add switch type bridge stp_state 0 mcast_snooping 0")
        _run("ip link set switch up")
        for node in range(len(self._nodes)):
            _run(f"ip link set port{node} master switch")

    def _start_relay(self, program):
        slots = FRAMES_BESIDE + self._bytes_under_way(self.delay.seconds) // FRAME_BYTES
        slot_bytes = 1 << (self.rate.segment_bytes + SLOT_SLACK_BYTES - 1).bit_length()
        interfaces = [f"port{node}" for node in range(len(self._nodes))]
        if len(interfaces) * slots * slot_bytes > RELAY_LIMIT_BYTES:
            raise Unavailable(
                f"with --rate {self.rate.text} --delay {self.delay.text} too much is under way: "
                f"{len(interfaces)} queues of {slots * slot_bytes >> 20} MiB are more than "
                f"{RELAY_LIMIT_BYTES >> 20} MiB"
            )
        return Relay(program, self.delay, slots, slot_bytes, interfaces)

    def _bytes_under_way(self, seconds):
        return round(self.rate.bytes_per_s * seconds) + self.rate.burst_bytes

    def _shape_node(self, rate):
        self._shape(INTERFACE, rate.burst_bytes)
        # The bucket takes larger pieces apart, and then both ends handle single frames, at 200 Mbit/s
        # with half of two cores. A real network card does that by itself.
        _run(f"ip link set {INTERFACE} gso_max_size {rate.segment_bytes}")

    def _shape(self, interface, burst_bytes):
        bucket = f"rate {self.rate.text} burst {burst_bytes} limit {QUEUE_LIMIT_BYTES}"
        _run(f"tc qdisc replace dev {interface} root tbf {bucket}")


def _drops(interface):
    qdiscs = json.loads(_run(f"tc -json -statistics qdisc show dev {interface}"))
    return sum(qdisc["drops"] for qdisc in qdiscs)


def _run(line, pass_fds=()):
    command = line.split()
    done = subprocess.run(command, capture_output=True, text=True, pass_fds=pass_fds, check=False)
    if done.returncode != 0:
        needed = {"tc": "tbf (module sch_tbf)", "ip": "veth and bridge"}[command[0]]
        raise Unavailable(
            f"'{line}' failed: {done.stderr.strip()}. The kernel must offer {needed} "
            "in namespaces of this user"
        )
    return done.stdout
