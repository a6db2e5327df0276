# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of examples/cluster: namespaces, the shaped network, its probe, and the ranks in it."""

import sys


def say(text):
    """Prints the launcher's own lines: never on stdout, which belongs to rank 0."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)
