# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Checks before a run that the network is as slow as it should be.

It tests long transfers, a message after idling and, with a delay, round trips. A shaper can be too generous (a large
bucket gives whole messages for nothing) or too slow (a machine without time to serve it). Both would falsify every
comparison, and neither shows in a job's own figures. Arrival times are the kernel's (SO_TIMESTAMPNS), so a receiver
that waits for a core on a busy machine is not mistaken for a slow network.
"""

import contextlib
import dataclasses
import select
import socket
import statistics
import struct
import time

SUSTAINED = 0  # used instead of a message's size
ROUND_TRIP = 1  # a message of that size, and back
SUSTAINED_S = 0.3
REPETITIONS = {ROUND_TRIP: 5, SUSTAINED: 1, 256 << 10: 3, 1 << 20: 3, 4 << 20: 1}  # the median counts
REPETITIONS_OF_DOUBTFUL = 3
IDLE_S = 0.3
LONGEST_MESSAGE_S = 1.0  # larger messages are left out, except the smallest one
ATTEMPTS = 3
START_S = 0.00015  # TCP's start-up time, which counts if a whole message takes a millisecond
ROUND_TRIP_START_S = 0.0003  # allowed for a round trip beside the delay
WARM_UP_ROUND_TRIPS = 20  # during which TCP opens its window
STUCK_S = 10
SO_TIMESTAMPNS = 35


class Refused(Exception):
    """The network differs from the request; the message gives the measured and expected values."""


@dataclasses.dataclass
class Link:
    """A connection over which one direction between two nodes is measured."""

    name: str
    sender: socket.socket
    receiver: socket.socket
    idle_since: float = 0.0
    buffer: bytearray = dataclasses.field(default_factory=lambda: bytearray(1 << 20), repr=False)

    def send(self, size_bytes):
        """Sends after idling. Returns the seconds until all arrived, and the bytes/s of all but the first tenth."""
        message = memoryview(bytes(size_bytes))
        arrivals = []  # seconds, bytes so far
        received = 0
        time.sleep(max(0.0, self.idle_since + IDLE_S - time.monotonic()))
        start = time.time()
        while received < size_bytes:
            writers = [self.sender] if message else []
            readable, writable, _ = select.select([self.receiver], writers, [], STUCK_S)
            if not readable and not writable:
                raise Refused(f"{self.name}: nothing moved for {STUCK_S} s")
            if writable:
                message = message[self.sender.send(message) :]
            if readable:
                arrived_s, count = self._receive(self.receiver)
                received += count
                arrivals.append((arrived_s, received))
        self.idle_since = time.monotonic()
        early_s, early_bytes = next(seen for seen in arrivals if seen[1] >= size_bytes / 10)
        end_s, end_bytes = arrivals[-1]
        return end_s - start, (end_bytes - early_bytes) / max(end_s - early_s, 1e-9)

    def round_trip(self):
        """Seconds for a byte to go there and back, without the time until this process noticed."""
        total_s = 0.0
        for sender, receiver in ((self.sender, self.receiver), (self.receiver, self.sender)):
            start = time.time()
            sender.send(b"?")
            if not select.select([receiver], [], [], STUCK_S)[0]:
                raise Refused(f"{self.name}: nothing arrived for {STUCK_S} s")
            total_s += self._receive(receiver)[0] - start
        self.idle_since = time.monotonic()
        return total_s

    def _receive(self, receiver):
        """Returns the arrival time of the last available byte, and the number of bytes."""
        count, ancillary, _, _ = receiver.recvmsg_into([self.buffer], socket.CMSG_SPACE(16))
        if not ancillary:  # a busy kernel takes a moment to start its time stamps
            return time.time(), count
        seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
        return seconds + nanoseconds * 1e-9, count


@dataclasses.dataclass(frozen=True)
class Finding:
    """A measurement of one link and size: a message's seconds, or the sustained bytes/s.

    `slack_s` is the time that TCP may add to a message without a fault of the network.
    """

    link: Link
    size_bytes: int
    measured: float
    expected: float
    slack_s: float

    @property
    def ratio(self):
        """A ratio of times: above 1 is too slow."""
        if self.size_bytes == SUSTAINED:
            return self.expected / self.measured
        return self.measured / self.expected

    @property
    def accepted(self):
        if self.size_bytes == SUSTAINED:
            return 0.95 <= self.ratio <= 1.05
        tolerance = 0.05 if self.size_bytes >= 1 << 20 else 0.10
        return 1 - tolerance <= self.ratio <= 1 + tolerance + self.slack_s / self.expected

    @property
    def what(self):
        if self.size_bytes == SUSTAINED:
            return "sustained"
        if self.size_bytes == ROUND_TRIP:
            return "round trip"
        return f"{self.size_bytes >> 10} KiB after idling"

    def __str__(self):
        scale, unit = (8e-6, "Mbit/s of payload") if self.size_bytes == SUSTAINED else (1e3, "ms")
        measured = f"{self.measured * scale:.2f} {unit}, expected {self.expected * scale:.2f}"
        return f"{self.link.name}, {self.what}: {measured}"


def check(network):
    """Returns a finding for every link and size, or none for an unshaped network; raises Refused.

    A value outside the tolerance is measured again, because other work on the machine disturbs single figures.
    """
    if network.rate is None:
        return []
    findings = []
    with contextlib.ExitStack() as stack:
        links = [_connect(network, stack, *pair) for pair in _neighbours(len(network.addresses))]
        if network.delay:
            for link in links:
                link.send(round(network.rate.payload_bytes_per_s * _warm_up_s(network.delay)))
        pending = {size_bytes: links for size_bytes in _sizes(network)}
        for attempt in range(ATTEMPTS):
            latest = []
            for size_bytes, some in pending.items():
                repetitions = REPETITIONS_OF_DOUBTFUL if attempt else REPETITIONS[size_bytes]
                latest += _measure(network, size_bytes, some, repetitions)
            findings += [finding for finding in latest if finding.accepted]
            off = [finding for finding in latest if not finding.accepted]
            if not off:
                return findings
            pending = {
                size_bytes: [finding.link for finding in off if finding.size_bytes == size_bytes]
                for size_bytes in pending
            }
    promise = f"--rate {network.rate.text}"
    promise += f" --delay {network.delay.text}" if network.delay else ""
    raise Refused(
        f"the network is not what {promise} promises, {ATTEMPTS} times over (5 % are allowed, "
        "10 % below 1 MiB and of round trips): " + "; ".join(map(str, off))
    )


def summary(findings):
    """For each size, the ratio of measured to expected time that is furthest from 1."""
    worst = {}
    for finding in findings:
        ratios = worst.get(finding.what, 1.0), finding.ratio
        worst[finding.what] = max(ratios, key=lambda ratio: abs(ratio - 1))
    return ", ".join(f"{what} {ratio:.3f}" for what, ratio in worst.items())


def _sizes(network):
    rate = network.rate
    messages = [size for size in REPETITIONS if size not in (SUSTAINED, ROUND_TRIP)]
    return ([ROUND_TRIP] if network.delay else []) + [SUSTAINED] + [
        size
        for size in messages
        if START_S < rate.seconds(size)  # else the burst swallows the message
        and (rate.seconds(size) <= LONGEST_MESSAGE_S or size == min(messages))
    ]


def _warm_up_s(delay):
    """A new connection's window grows by a factor in each round trip; this time is enough for any window."""
    return SUSTAINED_S + WARM_UP_ROUND_TRIPS * 2 * delay.seconds


def _expected(network, size_bytes):
    """Seconds of a message or round trip, or the sustained bytes/s; and the slack, see Finding."""
    rate, delay_s = network.rate, network.delay.seconds if network.delay else 0.0
    if size_bytes == SUSTAINED:
        return rate.payload_bytes_per_s, 0.0
    if size_bytes == ROUND_TRIP:
        return 2 * delay_s, ROUND_TRIP_START_S
    # After idling, TCP may hold back data beyond its window or its own pacing, until the first acknowledgement or
    # for as long as the burst saves. That is no fault of a network with a delay.
    held_back_s = 2 * delay_s + rate.burst_bytes / rate.bytes_per_s if delay_s else 0.0
    return delay_s + rate.seconds(size_bytes), START_S + held_back_s


def _neighbours(nodes):
    """Both directions between each node and the next, around the ring."""
    pairs = {(node, (node + 1) % nodes) for node in range(nodes)}
    return sorted(pairs | {(there, here) for here, there in pairs})


def _connect(network, stack, here, there):
    with network.inside(there):
        listener = stack.enter_context(socket.create_server((network.addresses[there], 0)))
    with network.inside(here):
        sender = stack.enter_context(socket.create_connection(listener.getsockname(), STUCK_S))
    receiver = stack.enter_context(listener.accept()[0])
    for end in (sender, receiver):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    sender.setblocking(False)
    return Link(f"node {here} to {there}", sender, receiver)


def _measure(network, size_bytes, links, repetitions):
    expected, slack_s = _expected(network, size_bytes)

    def once(link):
        if size_bytes == SUSTAINED:
            return link.send(round(expected * SUSTAINED_S))[1]
        return link.round_trip() if size_bytes == ROUND_TRIP else link.send(size_bytes)[0]

    results = [[once(link) for link in links] for _ in range(repetitions)]
    return [
        Finding(link, size_bytes, statistics.median(measured), expected, slack_s)
        for link, measured in zip(links, zip(*results))
    ]
