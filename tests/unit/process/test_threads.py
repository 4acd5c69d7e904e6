import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest

from penstock.process.threads import Threads, num_given_up


def test_calls_run_at_once_up_to_a_number_and_all_are_answered() -> None:
    threads, both = Threads(2), threading.Barrier(2, timeout=20)
    running = most = 0
    lock = threading.Lock()

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1
        return number

    assert [future.result(20) for future in [threads.submit(call, number) for number in range(10)]] == list(range(10))
    assert most == 2


def test_what_a_call_raises_comes_out() -> None:
    threads = Threads(1)
    for error in (ValueError("mine"), SystemExit(3)):

        def call(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            threads.submit(call).result(20)


def test_a_call_that_nobody_waits_for_gives_up_its_place_and_is_counted_until_it_ends() -> None:
    threads, end, started, before = Threads(1), threading.Event(), threading.Event(), num_given_up()

    def hang() -> None:
        started.set()
        end.wait(20)

    hanging, queued, next_one = threads.submit(hang), threads.submit(hang), threads.submit(lambda: "on")
    assert started.wait(20)
    assert queued.cancel()
    assert hanging.cancel()
    assert next_one.result(20) == "on"
    assert num_given_up() == before + 1
    end.set()
    deadline = time.monotonic() + 20
    while num_given_up() > before and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert num_given_up() == before
    with pytest.raises(CancelledError):
        hanging.result()


def test_what_hangs_does_not_keep_the_process_from_ending() -> None:
    program = """
import asyncio, time
from penstock.process.threads import in_thread, num_given_up, use_threads

async def main():
    use_threads()
    for _ in range(3):
        for start in (asyncio.to_thread, in_thread):
            try:
                await asyncio.wait_for(start(time.sleep, 600), 0.05)
            except TimeoutError:
                pass
    print(num_given_up(), await asyncio.to_thread(int, "7"), await in_thread(int, "11", base=8))

asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == "6 7 9\n"


def test_that_there_is_no_thread_for_a_call_is_not_taken_for_what_the_call_raised() -> None:
    program = """
from penstock.errors import InfraError
from penstock.process.memory import limited_growth
from penstock.process.threads import Threads

threads = Threads(1)
with limited_growth(1 << 20):  # less than the stack of a thread
    for _ in range(2):
        try:
            threads.submit(int, "7").result(20)
        except InfraError as error:
            print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said == 2 * "the worker has no thread for a call: can't start new thread\n"


async def test_an_event_loop_takes_it_as_its_own() -> None:
    assert await asyncio.get_running_loop().run_in_executor(Threads(1), int, "7") == 7
