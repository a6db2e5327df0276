#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Tests examples/cluster: the environment of ranks, correct shaping, the end of jobs, and that nothing is left
behind."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
CLUSTER = [sys.executable, str(EXAMPLES / "cluster")]
RELAY = os.environ.get("CLUSTER_RELAY")  # the program, for --delay
TRAIN = os.environ.get("TRAIN_SYNTHETIC")  # a job of gradtune
REFUSED, UNAVAILABLE = 3, 4
WAIT_S = 20  # far more than any command here takes
# Pauses before each attempt at a shaped network: on a busy machine the probe refuses the link that it measures.
PAUSES_S = (0, 5, 15, 30)

PRINT_PLACE = """
import json, os
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
         "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
         "OMP_NUM_THREADS", "GRADTUNE_NETWORK"]
place = {name: os.environ[name] for name in names}
print(json.dumps({**place, "cores": sorted(os.sched_getaffinity(0))}))
"""

# Code for two ranks that time a transfer. It has their meeting point, a connection once the other rank listens, and
# the rate in bytes/s of the rest after a given share has come.
MEET = """
import os, socket, struct, sys, time
address, size = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), int(sys.argv[1])
is_first = os.environ["RANK"] == "0"
def connected():
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.01)
def answer_calls(connection, count):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(count):
        connection.sendall(connection.recv(1))
def times_of_calls(connection, count):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times_s = []
    for _ in range(count):
        start = time.monotonic()
        connection.sendall(b"?")
        connection.recv(1)
        times_s.append(time.monotonic() - start)
    return times_s
def rate_after(share, connection):
    arrivals, received = [], 0
    while chunk := connection.recv(1 << 20):
        received += len(chunk)
        arrivals.append((time.monotonic(), received))
    early = next(arrival for arrival in arrivals if arrival[1] >= size * share)
    return (received - early[1]) / (arrivals[-1][0] - early[0])
"""

# Rank 1 sends. Rank 0 prints the rate without the first tenth, which an idle link's burst speeds up.
TRANSFER = (
    MEET
    + """
if is_first:
    with socket.create_server(address) as listener, listener.accept()[0] as connection:
        print(rate_after(0.1, connection))
else:
    connected().sendall(bytes(size))
"""
)

# Rank 1 calls rank 0, which answers every byte; it prints the shortest time. Then it sends at full speed, and rank 0
# prints the rate of the second half, when TCP's window has opened. Rank 1 also prints the number of TCP's
# retransmissions.
CALL_AND_TRANSFER = (
    MEET
    + """
CALLS = 20
if is_first:
    with socket.create_server(address) as listener, listener.accept()[0] as connection:
        answer_calls(connection, CALLS)
        print(rate_after(0.5, connection))
else:
    connection = connected()
    times_s = times_of_calls(connection, CALLS)
    connection.sendall(bytes(size))
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    print("shortest", min(times_s), "sent twice", struct.unpack_from("I", info, 100)[0])
"""
)

# Rank 1 calls rank 0 as often as the argument says, and prints the times. Rank 0 prints the network.
CALLS = (
    MEET
    + """
if is_first:
    print(os.environ["GRADTUNE_NETWORK"])
    with socket.create_server(address) as listener, listener.accept()[0] as connection:
        answer_calls(connection, size)
else:
    print("times", *times_of_calls(connected(), size))
"""
)

# A network that is shaped differently from its claim; a short probe is enough.
WRONG_CLAIM = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
from cluster_net import namespaces, probe
from cluster_net.delay import Delay
from cluster_net.network import Network, Rate, require_tools
def body():
    (rate, delay), (claimed_rate, claimed_delay), relay = [
        argument.split(",") for argument in sys.argv[2:5]
    ]
    network = Network(2, Rate.parse(rate), Delay.parse(delay), *relay)
    network.rate, network.delay = Rate.parse(claimed_rate), Delay.parse(claimed_delay)
    probe.REPETITIONS = {probe.ROUND_TRIP: 3, probe.SUSTAINED: 1, 256 << 10: 1}
    probe.IDLE_S = 0.05
    try:
        probe.check(network)
    except probe.Refused as error:
        print(error)
        return 3
    return 0
require_tools()
sys.exit(namespaces.run_isolated(body))
"""


def run_cluster(options, *command, variables=None):
    return run(
        *CLUSTER, *options.split(), *(["--"] if command else []), *command, variables=variables
    )


def run_shaped(options, *command):
    """Tries again after a while if the probe refused."""
    for pause_s in PAUSES_S:
        time.sleep(pause_s)
        done = run_cluster(options, *command)
        if done.returncode != REFUSED:
            break
    return done


def run(*command, variables=None):
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S + 30, check=False, env=environment
    )


def setUpModule():
    done = run_cluster("--rate none", "true")
    if done.returncode == UNAVAILABLE:
        raise unittest.SkipTest(done.stderr.strip())
    assert done.returncode == 0, done.stderr


class Variables(unittest.TestCase):
    def test_every_rank_is_told_its_place(self):
        done = run_cluster(
            "--nodes 2 --ranks-per-node 2 --rate none",
            *(sys.executable, "-c", PRINT_PLACE),
            variables={"OMP_NUM_THREADS": "3"},
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        marked = re.findall(r"^\[rank (\d)\] (.*)$", done.stderr, re.M)
        lines = {"0": done.stdout, **dict(marked)}
        self.assertEqual(sorted(lines), ["0", "1", "2", "3"])
        cores = sorted(os.sched_getaffinity(0))
        share = len(cores) // 4
        for rank in range(4):
            place = json.loads(lines[str(rank)])
            own_cores = cores[rank * share : (rank + 1) * share] if share else cores
            self.assertEqual(place.pop("cores"), own_cores)
            self.assertEqual(
                place,
                {
                    "RANK": str(rank),
                    "WORLD_SIZE": "4",
                    "LOCAL_RANK": str(rank % 2),
                    "LOCAL_WORLD_SIZE": "2",
                    "NODE_RANK": str(rank // 2),
                    "GROUP_RANK": str(rank // 2),
                    "MASTER_ADDR": "198.18.0.1",
                    "MASTER_PORT": "29500",
                    "GLOO_SOCKET_IFNAME": "eth0",
                    "NCCL_SOCKET_IFNAME": "eth0",
                    "OMP_NUM_THREADS": "3",
                    "GRADTUNE_NETWORK": "netns,rate=none,burst=none,mtu=1500,nodes=2,ranks=4,"
                    f"cores={len(cores)}",
                },
            )

    def test_threads_default_to_the_cores_of_a_rank(self):
        unset = ("env", "--unset=OMP_NUM_THREADS")
        done = run(*unset, *CLUSTER, "--rate", "none", "--", "sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertEqual(done.stdout.strip(), str(max(1, len(os.sched_getaffinity(0)) // 2)))


class Shaping(unittest.TestCase):
    def test_transfer_takes_the_links_rate_and_is_counted(self):
        size_bytes, rate_bytes_per_s = 8_000_000, 200e6 / 8 * 1448 / 1514
        done = run_shaped("--rate 200mbit", sys.executable, "-c", TRANSFER, str(size_bytes))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("burst=25000,gso=22500,", done.stderr)
        ratio = float(done.stdout) / rate_bytes_per_s
        self.assertLess(ratio, 1.05, "the link gave more than it has")
        self.assertGreater(ratio, 0.75, "the link gave far less than it has")  # possible on a busy machine
        counted = re.search(
            r"node 0 sent \d+ received (\d+) dropped 0; node 1 sent (\d+) received \d+ dropped 0",
            done.stderr,
        )
        self.assertIsNotNone(counted, done.stderr)
        # The headers of frames that were passed on in one piece count once.
        expected_bytes = size_bytes * 22_500 / (22_500 - 66)
        for counted_bytes in map(int, counted.groups()):
            self.assertAlmostEqual(counted_bytes / expected_bytes, 1, delta=0.03)

    def test_a_rate_file_changes_the_rate_under_way(self):
        size_bytes, rate_bytes_per_s = 4_000_000, 40e6 / 8 * 1448 / 1514
        with tempfile.NamedTemporaryFile("w+", suffix=".rate") as file:
            file.write("200mbit")
            file.flush()
            change = (
                "if [ $RANK = 1 ]; then for rate in fast 40mbit; do "
                f"sleep 0.4; echo $rate > {file.name}; done; sleep 0.4; fi"
            )
            command = ("sh", "-c", change + '; exec "$@"', "sh", sys.executable, "-c", TRANSFER)
            done = run_shaped(f"--rate 200mbit --rate-file {file.name}", *command, str(size_bytes))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'fast' is no rate: expected 1mbit or more", done.stderr)
        self.assertIn("the rate is 40mbit from now on", done.stderr)
        ratio = float(done.stdout) / rate_bytes_per_s
        self.assertLess(ratio, 1.05)
        self.assertGreater(ratio, 0.75)

    def test_a_full_link_that_gets_slower_carries_what_waited(self):
        with tempfile.NamedTemporaryFile("w+", suffix=".rate") as file:
            file.write("1gbit")
            file.flush()
            change = f"[ $RANK = 0 ] || (sleep 0.8; echo 100mbit > {file.name}) &"
            command = ("sh", "-c", change + ' exec "$@"', "sh", "timeout", "20", sys.executable)
            size_bytes = 110_000_000  # takes 0.9 s at 1 Gbit/s
            options = f"--rate 1gbit --rate-file {file.name}"
            done = run_shaped(options, *command, "-c", TRANSFER, str(size_bytes))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the rate is 100mbit from now on", done.stderr)

    def test_probe_refuses_a_network_that_is_slower_or_faster_than_claimed(self):
        for claim in ("200mbit", "800mbit"):
            with self.subTest(claim=claim):
                shapes = ("400mbit,none", f"{claim},none", "no relay")
                done = run(sys.executable, "-c", WRONG_CLAIM, str(EXAMPLES), *shapes)
                self.assertEqual(done.returncode, REFUSED, done.stderr)
                self.assertRegex(
                    done.stdout,
                    rf"not what --rate {claim} promises.*node 0 to 1, sustained: "
                    r"[\d.]+ Mbit/s of payload, expected [\d.]+",
                )


@unittest.skipUnless(RELAY, "no relay: CLUSTER_RELAY does not name the program")
class Delay(unittest.TestCase):
    def run_delayed(self, options, *command):
        for _ in range(3):  # a busy machine may be too late
            done = run_shaped(f"--relay {RELAY} {options}", *command)
            if "LATE" not in done.stderr:
                break
        if "LATE" in done.stderr:
            self.skipTest(done.stderr.strip())
        if done.returncode == UNAVAILABLE:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_round_trips_and_rate_are_what_was_asked_for(self):
        for rate_mbit, delay_ms, size_bytes in ((200, 5, 10_000_000), (1000, 1, 40_000_000)):
            with self.subTest(rate_mbit=rate_mbit, delay_ms=delay_ms):
                done = self.run_delayed(
                    f"--rate {rate_mbit}mbit --delay {delay_ms}ms",
                    *(sys.executable, "-c", CALL_AND_TRANSFER, str(size_bytes)),
                )
                shortest_s, sent_twice = re.search(
                    r"shortest ([\d.]+) sent twice (\d+)", done.stderr
                ).groups()
                round_trip_s = 2e-3 * delay_ms
                self.assertGreaterEqual(float(shortest_s), round_trip_s, "ahead of its time")
                self.assertLess(float(shortest_s), 1.1 * round_trip_s + 0.3e-3)
                # If the relay cannot have priority, TCP may take a late frame for a lost one.
                self.assertLess(int(sent_twice), 10, "lost, or out of order")
                ratio = float(done.stdout) / (rate_mbit * 1e6 / 8 * 1448 / 1514)
                self.assertLess(ratio, 1.05, "the link gave more than it has")
                self.assertGreater(ratio, 0.6, "the link gave far less than it has")
                self.assertEqual(re.findall(r"dropped (\d+)", done.stderr), ["0", "0"])
                self.assertIn("TCP of every node: tcp_congestion_control=reno, ", done.stderr)
                self.assertRegex(done.stderr, r"relay: \d+ frames, [\d.]+ ms late on average")

    def test_a_range_wanders_between_its_ends(self):
        done = self.run_delayed(
            "--rate 200mbit --delay 4ms..12ms", sys.executable, "-c", CALLS, "60"
        )
        self.assertIn(",delay=4ms..12ms,", done.stdout)
        times_s = [float(word) for word in re.search(r"times (.*)", done.stderr)[1].split()]
        self.assertGreaterEqual(min(times_s), 8e-3, "ahead of its time")
        self.assertLess(min(times_s), 16e-3)
        self.assertGreater(max(times_s), 16e-3)
        self.assertLess(sorted(times_s)[50], 26e-3)

    def test_is_told_to_ranks_and_holds_between_any_nodes(self):
        done = self.run_delayed(
            "--nodes 3 --rate 100mbit --delay 500us", "sh", "-c", "echo $GRADTUNE_NETWORK"
        )
        shape = "netns,rate=100mbit,burst=12500,gso=11250,delay=500us,mtu=1500,nodes=3,"
        self.assertTrue(done.stdout.startswith(shape), done.stdout)
        self.assertIn("probe, measured / expected time: round trip ", done.stderr)

    def test_probe_refuses_a_delay_that_is_longer_or_shorter_than_claimed(self):
        for claim in ("3ms", "8ms"):
            with self.subTest(claim=claim):
                shapes = ("400mbit,5ms", f"400mbit,{claim}", RELAY)
                done = run(sys.executable, "-c", WRONG_CLAIM, str(EXAMPLES), *shapes)
                self.assertEqual(done.returncode, REFUSED, done.stderr)
                self.assertRegex(
                    done.stdout,
                    rf"not what --rate 400mbit --delay {claim} promises.*node 0 to 1, round trip: "
                    r"[\d.]+ ms, expected [\d.]+",
                )

    @unittest.skipUnless(TRAIN, "TRAIN_SYNTHETIC does not name the program: this build has no LibTorch")
    def test_gradtune_finds_delay_and_rate_before_the_first_step(self):
        for rate_mbit, delay_ms in ((20, 25), (400, 10)):
            with self.subTest(rate_mbit=rate_mbit, delay_ms=delay_ms), tempfile.TemporaryDirectory() as folder:
                journal = pathlib.Path(folder, "job.jsonl")
                job = (TRAIN, "--model", "tiny", "--steps", "3", "--no-eval", "--journal", str(journal))
                self.run_delayed(f"--rate {rate_mbit}mbit --delay {delay_ms}ms", *job)
                link = json.loads(journal.read_text().splitlines()[0])["idle_links"]["flat"]
                self.assertAlmostEqual(link["message_us"], 1e3 * delay_ms, delta=300 * delay_ms)
                self.assertAlmostEqual(link["wait_us"], 1e3 * delay_ms, delta=300 * delay_ms)
                byte_us = 8 / rate_mbit * 1514 / 1448
                self.assertAlmostEqual(link["byte_us"], byte_us, delta=0.3 * byte_us)

    def test_too_much_under_way(self):
        done = run_cluster(f"--rate 100gbit --delay 200ms --relay {RELAY}", "true")
        self.assertEqual(done.returncode, UNAVAILABLE)
        self.assertIn("with --rate 100gbit --delay 200ms too much is under way", done.stderr)

    def test_relay_that_does_not_work(self):
        done = run_cluster("--rate 200mbit --delay 1ms --relay /bin/false", "true")
        self.assertEqual(done.returncode, UNAVAILABLE)
        self.assertIn("the relay did not start: exit code 1", done.stderr)
        self.assertIn("gradtune can pace its own traffic, though not delay it", done.stderr)


class ExitStatus(unittest.TestCase):
    def test_first_failure_of_a_rank(self):
        done = run_cluster("--rate none", "sh", "-c", "exit $((RANK * 7))")
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("rank 1 ended with exit code 7", done.stderr)

    def test_killed_rank_counts_and_others_have_time_to_end(self):
        script = "[ $RANK = 1 ] && exec sleep 60; sleep 1.5; echo ended; exit 5"
        done = run_cluster("--rate none --kill 1@0.2", "sh", "-c", script)
        self.assertEqual(done.returncode, 128 + signal.SIGKILL, done.stderr)
        self.assertEqual(done.stdout, "ended\n")
        self.assertIn("rank 1 ended with exit code 137 (SIGKILL)", done.stderr)

    def test_ranks_that_do_not_end_in_time_are_ended(self):
        script = "[ $RANK = 1 ] && exit 5; exec sleep 600"
        done = run_cluster("--rate none --grace 0.2", "sh", "-c", script)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("ranks [0] still run 0.2 s later: ended", done.stderr)

    def test_unknown_command(self):
        done = run_cluster("--rate none", "/no/such/program")
        self.assertEqual(done.returncode, 127)
        self.assertIn("cannot start /no/such/program: No such file or directory", done.stderr)

    def test_wrong_arguments_say_what_is_allowed(self):
        for options, message in (
            ("", "required: --rate"),
            ("--rate 5", "'5' is no rate: expected 1mbit or more"),
            ("--rate none --nodes 1", "--nodes 1: expected 2 to 64"),
            ("--rate none --ranks-per-node 0", "--ranks-per-node 0: expected 1 or more"),
            ("--rate none --kill 2@1", "expected RANK@SECONDS with a rank below 2"),
            ("--rate none --delay 5ms", "--delay needs a --rate other than none"),
            ("--delay 5ms", "required: --rate"),
            ("--rate 1gbit --delay 5ms --rate-file x", "a link that changes has no delay"),
            ("--rate none --rate-file x", "--rate-file needs a --rate other than none to begin"),
            ("--rate 200mbit --delay 5", "'5' is no delay: expected 100us to 200ms"),
            ("--rate 200mbit --delay 9ms..5ms", "'9ms..5ms' is no delay: expected 100us to 200ms"),
            ("--rate 200mbit --delay 5ms..", "'5ms..' is no delay: expected 100us to 200ms"),
            ("--rate 200mbit --delay 1s", "'1s' is no delay: expected 100us to 200ms"),
            ("--rate 200mbit --delay soon", "'soon' is no delay: expected 100us to 200ms"),
            ("--rate 200mbit --delay 1ms --relay /no/relay", "--relay /no/relay: no such program"),
            ("--rate none --kill 1@soon", "--kill: 'soon' is no number of seconds"),
        ):
            with self.subTest(options=options):
                done = run_cluster(options, "true")
                self.assertEqual(done.returncode, 2)
                self.assertIn(message, done.stderr)

    def test_missing_command(self):
        done = run_cluster("--rate none")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no command: it follows '--'", done.stderr)


class NothingLeftBehind(unittest.TestCase):
    """Ranks leave a child behind in its own session, which is the hardest kind to find again."""

    options = "--rate none"
    expected_processes = 2 + 4  # launcher and first process, two ranks with a child each

    def setUp(self):
        self.marker = f"{self.id()}-{os.getpid()}-{time.monotonic_ns()}"
        self.machine = self.named_objects()
        self.addCleanup(self.check_nothing_is_left)

    @staticmethod
    def named_objects():
        """Links and namespaces that are visible to all."""
        folders = map(pathlib.Path, ("/sys/class/net", "/run/netns"))
        return [sorted(os.listdir(folder)) for folder in folders if folder.exists()]

    def command(self, end):
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)", self.marker]
        return ["sh", "-c", f'setsid "$@" & {end}', "sh", *sleeper]

    def processes(self):
        """Numbers of all processes of this test: launcher, ranks and their children."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.marker.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue  # it has ended in the meantime
        return found

    def wait_for_processes(self, enough):
        deadline = time.monotonic() + WAIT_S
        while not enough(len(self.processes())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()

    def check_nothing_is_left(self):
        self.assertEqual(self.wait_for_processes(lambda count: count == 0), [])
        self.assertEqual(self.named_objects(), self.machine)

    def start(self):
        """A launcher whose ranks run and would continue."""
        expected = self.expected_processes
        for pause_s in PAUSES_S:
            time.sleep(pause_s)
            launcher = subprocess.Popen(
                [*CLUSTER, *self.options.split(), "--", *self.command('exec "$@"')],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.addCleanup(launcher.wait)
            self.addCleanup(launcher.kill)
            started = self.wait_for_processes(
                lambda count, launcher=launcher: count == expected or launcher.poll() is not None
            )
            if launcher.returncode != REFUSED:
                break
        self.assertEqual(len(started), expected)
        return launcher

    def test_after_success(self):
        done = run_cluster(self.options, *self.command("exit 0"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_after_failure(self):
        command = self.command('[ $RANK = 0 ] && exit 9; exec "$@"')
        done = run_shaped(f"{self.options} --grace 0", *command)
        self.assertEqual(done.returncode, 9, done.stderr)

    def test_after_sigint(self):
        launcher = self.start()
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(launcher.wait(WAIT_S), 128 + signal.SIGINT)

    def test_after_sigterm(self):
        launcher = self.start()
        launcher.terminate()
        self.assertEqual(launcher.wait(WAIT_S), 128 + signal.SIGTERM)

    def test_after_sigkill(self):
        launcher = self.start()
        launcher.kill()
        self.assertEqual(launcher.wait(WAIT_S), -signal.SIGKILL)


@unittest.skipUnless(RELAY, "no relay: CLUSTER_RELAY does not name the program")
class NothingLeftBehindWithDelay(NothingLeftBehind):
    """The relay counts too: its name has the mark."""

    expected_processes = NothingLeftBehind.expected_processes + 1
    test_after_success = test_after_sigterm = None  # as without a relay; probes take seconds

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.relay = pathlib.Path(folder.name, self.marker)
        self.relay.symlink_to(pathlib.Path(RELAY).resolve())
        self.options = f"--rate 100mbit --delay 1ms --relay {self.relay}"

    def test_after_the_relay_was_killed(self):
        launcher = self.start()
        (relay,) = filter(self.is_relay, self.processes())
        os.kill(relay, signal.SIGKILL)
        self.assertEqual(launcher.wait(WAIT_S), REFUSED)

    def is_relay(self, process):
        program = pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0]
        return program == str(self.relay).encode()


if __name__ == "__main__":
    unittest.main(verbosity=2)
