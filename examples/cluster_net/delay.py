# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""A delay for every frame between nodes: the program cluster_relay (relay.cc) replaces the switch.

It works in user space because kernels often lack netem. It uses packet sockets because they need no device that only
root may open. Token buckets remain the only place where bandwidth is limited.
"""

import dataclasses
import json
import os
import pathlib
import re
import select
import subprocess

from cluster_net.namespaces import Unavailable

SHORTEST_S, LONGEST_S = 100e-6, 0.2
START_S = 10
TOLERANCE, LATE_START_S = 0.1, 0.15e-3  # average lateness of frames that is allowed, as in the probe
_BUILD = pathlib.Path(__file__).resolve().parents[2] / "build"
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Lost(Exception):
    """The relay ended during a run."""


@dataclasses.dataclass(frozen=True)
class Delay:
    """The one-way delay of every frame between two nodes."""

    text: str
    seconds: float
    longest_s: float  # the delay wanders between the two

    @staticmethod
    def parse(text):
        """The delay, or None for "none"; ValueError says what is allowed."""
        if text == "none":
            return None
        shortest, dots, longest = text.partition("..")
        shortest_s, longest_s = _seconds(shortest), _seconds(longest if dots else shortest)
        if not SHORTEST_S <= shortest_s <= longest_s <= LONGEST_S:
            raise ValueError(
                f"'{text}' is no delay: expected 100us to 200ms, such as 5ms, a range such as 10ms..15ms, or none"
            )
        return Delay(text, shortest_s, longest_s)


def _seconds(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)", text)
    return float(match[1]) * _UNIT_S[match[2]] if match else 0


def find_relay(named):
    """Returns the program with that path, or the newest one that was built beside the sources."""
    if named is not None:
        if not os.access(named, os.X_OK) or os.path.isdir(named):
            raise ValueError(f"--relay {named}: no such program")
        return named
    found = sorted(_BUILD.glob("*/examples/cluster_relay"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(
            f"--delay needs the program cluster_relay, and none is under {_BUILD}: './run build' "
            "builds it, --relay PATH names another"
        )
    return found[-1]


class Relay:
    """The running program. It ends with this process, which holds its standard input."""

    def __init__(self, program, delay, slots, slot_bytes, interfaces):
        numbers = [round(delay.seconds * 1e9), round(delay.longest_s * 1e9), slots, slot_bytes]
        try:
            self._process = subprocess.Popen(
                [program, *map(str, numbers), *interfaces],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # a terminal's SIGINT is for the ranks, which still need the relay
            )
        except OSError as error:
            raise Unavailable(f"cannot start {program}: {error.strerror}") from error
        self.latest = {}
        self._delay = delay
        self.ended = os.pidfd_open(self._process.pid)  # readable when it has ended
        if self._answer() != "ready":
            raise Unavailable(f"the relay did not start: {self._epitaph()}")

    def wander(self):
        """From now on the delay changes, if it is a range."""
        self._write("wander\n")

    def ask(self):
        """Returns its counts since the last call (Relay::tell in relay.cc); `latest` keeps them."""
        self._write("\n")
        try:
            self.latest = json.loads(self._answer())
        except ValueError:
            raise self.lost() from None
        return self.latest

    def summary(self, seconds):
        """Describes the accuracy of the delay and the relay's use of CPU during a job of that length."""
        share = self.latest["cpu_s"] / seconds
        late_s = self.latest["mean_late_s"]
        too_late = late_s > TOLERANCE * self._delay.seconds + LATE_START_S
        return (
            f"relay: {self.latest['frames']} frames, {late_s * 1e3:.2f} ms late on average, "
            f"at most {self.latest['max_late_s'] * 1e3:.2f}; {share:.0%} of a core"
            + ("; LATE: the machine was too busy for this delay" if too_late else "")
        )

    def lost(self):
        return Lost(f"the relay has ended: {self._epitaph()}")

    def _write(self, line):
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.lost() from None

    def _epitaph(self):
        self._process.kill()  # in case it hangs
        said = self._process.communicate()[1].strip()
        return said or f"exit code {self._process.returncode}"

    def _answer(self):
        if not select.select([self._process.stdout], [], [], START_S)[0]:
            return ""
        return self._process.stdout.readline().strip()
