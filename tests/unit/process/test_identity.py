import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.process.identity import cpu_seconds, identify
from penstock.process.ports import free_ports


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    own = identify(os.getpid())
    assert own.is_alive
    assert not replace(own, started_ticks=own.started_ticks - 1).is_alive


def test_a_process_that_has_ended_is_not_alive_even_before_it_is_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    known = identify(child.pid)
    assert known.is_alive
    known.kill_group()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not known.is_alive
    assert child.wait() == -signal.SIGKILL
    known.signal(signal.SIGTERM)


def test_cpu_time_of_a_process_grows_with_its_work() -> None:
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) < before + 0.02:
        sum(range(100_000))
    assert cpu_seconds(2**22 + 1) == 0.0


def test_free_ports_are_different_and_below_those_of_outgoing_connections() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not limits.exists():
        pytest.fail("this test reads Linux's range of ports")
    assert max(ports) < int(limits.read_text().split()[0])
