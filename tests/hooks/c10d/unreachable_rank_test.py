#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""On two machines, the rank of the second, or both, offer the others a loopback address. Both say so, in time.

usage: unreachable_rank_test.py PROCESS_GROUP_TEST
"""

import pathlib
import subprocess
import sys
import unittest

CLUSTER = pathlib.Path(__file__).resolve().parents[3] / "examples" / "cluster"
UNAVAILABLE = 4
NO_NAME_SERVER = "RES_OPTIONS=timeout:1 attempts:1"  # c10d looks up the names of addresses, and no server answers
PROGRAM = sys.argv.pop()


class UnreachableRank(unittest.TestCase):
    def expect_both_tell(self, choose_interface):
        rank = ["env", "ON_MACHINES_OF_THEIR_OWN=1", NO_NAME_SERVER, "sh", "-c", f'{choose_interface}; exec "$@"', "rank", PROGRAM]
        done = subprocess.run(
            [sys.executable, CLUSTER, "--rate", "none", "--nodes", "2", "--", *rank]
            + ["--gtest_filter=ProcessGroup.AnAddressThatOthersCanNotReachIsNamed"],
            capture_output=True, text=True, timeout=80, check=False,
        )
        if done.returncode == UNAVAILABLE:
            self.skipTest("no network namespaces here")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual((done.stdout + done.stderr).count("[  PASSED  ] 1 test."), 2)

    def test_of_one_rank(self):
        self.expect_both_tell("[ $RANK = 0 ] || export GLOO_SOCKET_IFNAME=lo")

    def test_of_both(self):
        self.expect_both_tell("export GLOO_SOCKET_IFNAME=lo")


if __name__ == "__main__":
    unittest.main()
