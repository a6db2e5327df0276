# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes joined by a switch: one network namespace each, a veth pair from its eth0 to a bridge, and token buckets.

Every node's egress is shaped with a burst of 1 ms of the rate. So an idle link gives away at most 1 ms, and the rate
holds while the machine computes. A link that changes has a burst of at least 12.5 kB, which below 100 Mbit/s is more.
If more than two nodes can send to one receiver, its ingress is shaped too, on the switch's port, with twice the burst.
So the sender's bucket remains the one that limits. With a delay, a relay replaces the bridge (delay.py). Loss is not
emulated.
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
FRAME_BYTES = MTU_BYTES + 14  # the size that a bucket counts, with the Ethernet header
PAYLOAD_BYTES = MTU_BYTES - 52  # IP and TCP headers, with time stamps
# TCP keeps at most its window in flight (tcp_rmem: some 6 MB per connection). So a queue of this length never drops
# on the way out. On the way in it drops only the excess over a dozen full windows.
QUEUE_LIMIT_BYTES = 64 << 20
# For a link that changes: 1 ms of 100 Mbit/s. Its pieces are eight frames.
CHANGING_BURST_BYTES = 12500
# The relay works by frames: TCP hands them over as large as fit through a bucket with their headers, and each slot
# holds one.
LARGEST_SEGMENT_BYTES = 63 << 10
SLOT_SLACK_BYTES = 1 << 10
FRAMES_BESIDE = 256  # small frames that may be in flight beside a link full of normal ones
RELAY_LIMIT_BYTES = 1 << 30  # of memory that cannot be swapped
MAX_NODES = 64
INTERFACE = "eth0"

_UNIT_BITS = {"mbit": 1e6, "gbit": 1e9}


@dataclasses.dataclass(frozen=True)
class Rate:
    """A link's speed as tc writes it."""

    text: str
    bytes_per_s: float
    changes: bool = False  # while the job runs: see of_changing_link

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

        A bucket never passes a frame that is larger than itself. So data that waits in a bucket waits for ever if the
        bucket gets smaller than a frame. An existing connection keeps the size of its pieces.
        """
        return dataclasses.replace(self, changes=True)

    @property
    def burst_bytes(self):
        """1 ms of the rate, but at least a frame: a smaller bucket would pass none."""
        least = CHANGING_BURST_BYTES if self.changes else FRAME_BYTES
        return max(round(self.bytes_per_s / 1000), least)

    @property
    def payload_bytes_per_s(self):
        return self.bytes_per_s * PAYLOAD_BYTES / FRAME_BYTES

    @property
    def segment_bytes(self):
        """The largest piece that TCP may hand to the link without the bucket splitting it."""
        fitting = CHANGING_BURST_BYTES if self.changes else self.burst_bytes
        return min(max(round(0.9 * fitting), 2 * FRAME_BYTES), LARGEST_SEGMENT_BYTES)

    def seconds(self, payload_bytes):
        """The time of one message on an idle link."""
        return (payload_bytes * FRAME_BYTES / PAYLOAD_BYTES - self.burst_bytes) / self.bytes_per_s


UNSHAPED = Rate.parse("40gbit")  # far more than a veth carries; removing a bucket would drop its contents


@dataclasses.dataclass
class Counters:
    """The traffic of one node's interface."""

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
    """Debian keeps ip and tc in folders that are only in root's PATH."""
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Unavailable(f"'{tool}' is not installed (package iproute2)")


class Network:
    """Builds the network around the calling process, which must be alone in a new network namespace: the switch.

    `relay` is the program of that name, for a delay. The network is never taken down: the kernel removes it with the
    last process inside.
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
                window_bytes = 4 * self._bytes_under_way(2 * delay.longest_s) if delay else 0
                self.tcp = set_up_tcp(window_bytes)  # the description for reports

    def set_rate(self, rate):
        """Sets the rate from now on; data that waits in the buckets stays there.

        Allowed only if the first rate was of_changing_link, and without a delay.
        """
        self.rate = (rate or UNSHAPED).of_changing_link()
        for node in range(len(self._nodes)):
            with self.inside(node):
                self._shape_node(self.rate)
            if len(self._nodes) > 2:
                with inside(self._switch, self._switch):
                    self._shape(f"port{node}", 2 * self.rate.burst_bytes)

    @contextlib.contextmanager
    def inside(self, node):
        """Runs a block inside the node, with all that it starts or opens."""
        with inside(self._nodes[node], self._switch):
            yield

    def counters(self):
        """Bytes on every node's interface, and the drops of the buckets and the relay."""
        result = []
        relayed = self.relay.ask()["dropped"] if self.relay else [0] * len(self._nodes)
        for node in range(len(self._nodes)):
            with self.inside(node):
                (link,) = json.loads(_run(f"ip -json -statistics link show {INTERFACE}"))
                dropped = _drops(INTERFACE)
            if not self.relay:  # the relay counts the frames that the bucket after it refuses
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
        slots = FRAMES_BESIDE + self._bytes_under_way(self.delay.longest_s) // FRAME_BYTES
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
        # The bucket splits larger pieces, and then both ends handle single frames, which takes half of two cores at
        # 200 Mbit/s. A real network card does that by itself.
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
