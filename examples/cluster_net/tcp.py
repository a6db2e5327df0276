# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""TCP settings of the nodes, the same on every machine."""

import pathlib


def set_up_tcp(window_bytes=0):
    """Lets TCP in the caller's network namespace fill a link soon, also after idling, whatever earlier connections saw.

    Returns the description for a report. A delay needs a window.

    The queues never drop, so Reno, which every kernel has, opens its window once and for all: times are then the
    link's. BBR would stop for 200 ms every 10 s to look for a shorter round trip. It also lets a link idle now and
    then if both directions are full. CUBIC ends its start early when round trips grow.
    """
    folder = pathlib.Path("/proc/sys/net/ipv4")
    settings = {
        "tcp_congestion_control": "reno",
        "tcp_slow_start_after_idle": "0",
        "tcp_no_metrics_save": "1",
    }
    for name in ("tcp_rmem", "tcp_wmem") if window_bytes else ():
        least, default, most = map(int, (folder / name).read_text().split())
        settings[name] = f"{least} {max(default, window_bytes)} {max(most, 2 * window_bytes)}"
    told = []
    for name, value in settings.items():
        try:
            (folder / name).write_text(value)
            told.append(f"{name}={value}")
        except OSError as error:
            kept = (folder / name).read_text().strip()
            told.append(f"{name}={kept} ({value} refused: {error.strerror})")
    return ", ".join(told)
