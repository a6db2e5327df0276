# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""A link that changes while a job runs: a file gives the rate."""

from cluster_net import say
from cluster_net.network import Rate

PERIOD_S = 0.05


class RateFile:
    """Watches a file with one rate in it. Text that is not a rate changes nothing, and is reported."""

    def __init__(self, path, network):
        self._path, self._network = path, network
        self._text = self._read()

    def look(self):
        text = self._read()
        if text in (None, self._text):
            return
        self._text = text
        try:
            rate = Rate.parse(text)
        except ValueError as error:
            say(f"{self._path}: {error}; the rate stays")
            return
        self._network.set_rate(rate)
        say(f"the rate is {text} from now on")

    def _read(self):
        try:
            with open(self._path, encoding="utf-8") as file:
                return file.read().strip()
        except OSError:
            return None
