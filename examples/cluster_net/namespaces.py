# SPDX-FileCopyrightText: The gradtune authors
# SPDX-License-Identifier: Apache-2.0
"""Linux namespaces through libc (Python has os.unshare and os.setns only since 3.12).

All namespaces are anonymous: nothing is bound under /run/netns, so each lives as long as a process or descriptor refers
to it. These processes all belong to one PID namespace whose first process dies with the launcher. So the kernel itself
removes every process, link and namespace, however the launcher ends.
"""

import contextlib
import ctypes
import os
import pathlib
import select
import signal
import sys
import traceback

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


class Unavailable(Exception):
    """This machine cannot provide the requested network; the message says what is missing."""


def _checked(result):
    if result != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def _unshare(flags):
    _checked(_libc.unshare(flags))


def _unshare_all():
    """Leaves the machine's namespaces: directly as root, otherwise through a user namespace."""
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID
    uid, gid = os.geteuid(), os.getegid()
    try:
        try:
            _unshare(flags)
        except PermissionError:
            _unshare(flags | CLONE_NEWUSER)
            pathlib.Path("/proc/self/setgroups").write_text("deny")
            pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            pathlib.Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise Unavailable(
            f"this machine refuses network namespaces ({error.strerror}). Run as root, or allow "
            "user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        ) from error


def _mount_own_proc():
    """Gives the PID namespace its own /proc. Containers may forbid it; then the old one stays."""
    with contextlib.suppress(OSError):
        _checked(_libc.mount(b"none", b"/proc", None, MS_REC | MS_PRIVATE, None))
        _checked(_libc.mount(b"proc", b"/proc", b"proc", 0, None))


def network_namespace():
    """Returns a descriptor of the caller's namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_new_network_namespace():
    """Moves the caller to a new namespace, and returns its descriptor."""
    _unshare(CLONE_NEWNET)
    return network_namespace()


@contextlib.contextmanager
def inside(descriptor, home):
    """Runs a block in a network namespace, with all that it starts or opens; then returns to `home`."""
    _checked(_libc.setns(descriptor, CLONE_NEWNET))
    try:
        yield
    finally:
        _checked(_libc.setns(home, CLONE_NEWNET))


def run_isolated(body):
    """Runs body() as the first process of new network, PID and mount namespaces; returns its exit status.

    SIGINT, SIGTERM and SIGHUP reach the body as SystemExit. When this process dies, from any signal, the body dies with
    everything that it started.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    _unshare_all()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until both sides have their handlers
    alive, held_by_launcher = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(held_by_launcher)
        _checked(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        if select.select([alive], [], [], 0)[0]:  # end of file: the launcher died before prctl
            os._exit(1)
        _first_process(body, signals)

    received = []

    def forward(number, _frame):
        received.append(number)
        os.kill(child, signal.SIGTERM)

    for number in signals:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if received:
        return 128 + received[0]
    return status if status >= 0 else 128 - status


def _first_process(body, signals):
    def stop(number, _frame):
        raise SystemExit(128 + number)

    # A terminal sends SIGINT to the ranks, to this process and to the launcher, which turns it into SIGTERM. So this
    # process needs a handler that does nothing; the ranks would inherit SIG_IGN.
    for number in signals:
        signal.signal(number, stop if number == signal.SIGTERM else lambda *_: None)
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        _mount_own_proc()
        status = body()
    except SystemExit as end:
        status = end.code
    except BaseException:  # the process ends here in any case
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
