import os
import subprocess
import sys

from penstock.process.memory import held_bytes

MB = 1 << 20


def test_what_a_process_has_started_counts_and_sessions_of_their_own_do_not() -> None:
    program = "import sys; held = bytearray(64 << 20); print(flush=True); sys.stdin.read()"
    before = held_bytes(os.getpid())
    for own_session, grown in ((False, True), (True, False)):
        child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=own_session)
        try:
            assert child.stdout is not None
            child.stdout.readline()
            assert (held_bytes(os.getpid()) - before > 60 * MB) is grown
            assert held_bytes(child.pid) > 64 * MB
        finally:
            child.communicate()
    assert held_bytes(2**22 + 1) == 0


def test_whoever_asks_for_more_than_the_limit_is_refused_and_can_go_on_until_it_is_lifted() -> None:
    program = """
from penstock.process.memory import limited_growth
def ask():
    try:
        return len(bytearray(80 << 20)) >> 20
    except MemoryError:
        return "refused"
with limited_growth(64 << 20):
    print(ask(), len(bytearray(32 << 20)) >> 20)
    with limited_growth(1 << 40):  # a lower limit stays
        print(ask())
    print(ask())
print(ask())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.split("\n") == ["refused 32", "refused", "refused", "80", ""]
