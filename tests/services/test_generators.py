"""Generators in processes of their own: real files, real processes, and a buffer and an engine that the test writes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.unit.buffer.generators.scripted import Buffer, completion, serving

from penstock.buffer.compat.generators.lives import GeneratorState, RolloutState
from penstock.buffer.compat.generators.running import Generators, GeneratorsConfig
from penstock.errors import ConfigError, ConflictError, InvalidError, UnknownError
from penstock.process.identity import identify

T = TypeVar("T")
FILES = Path(__file__).parent.parent / "data" / "generators"
FOREVER = """
import multiprocessing, os, pathlib, signal, time

TASK_TYPE = "forever"

def run_rollout(data):
    {before}
    workers = [multiprocessing.Process(target=time.sleep, args=(1000,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    pathlib.Path(data["mark"]).write_text(" ".join(str(pid) for pid in [os.getpid(), *(worker.pid for worker in workers)]))
    {after}
    workers[0].join()
"""


def says(path: str, body: Any) -> tuple[int, Any]:
    """An engine that answers with the words it was asked with."""
    return 200, completion(body["messages"][-1]["content"].split()[-1])


@dataclass
class Place:
    """A folder with generators and problems, a buffer and an engine."""

    folder: Path
    buffer: Buffer
    payload: dict[str, Any]
    finished: list[str]

    @contextlib.asynccontextmanager
    async def generators(self, **settings: Any) -> AsyncIterator[Generators]:
        async def finished(task_type: str) -> Sequence[str]:
            return self.finished

        config = GeneratorsConfig(directory=self.folder / "buffer", folders=(self.folder / "files",), data_root=self.folder, **settings)
        generators = Generators(config, finished)
        try:
            yield generators
        finally:
            await generators.close()

    def write(self, name: str, text: str) -> None:
        (self.folder / "files" / f"{name}_generator.py").write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    shutil.copytree(FILES, tmp_path / "files")
    (tmp_path / "buffer").mkdir()
    problems = [{"instance_id": number, "prompt": [{"role": "user", "content": f"say {number}"}], "label": str(number)} for number in range(3)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    buffer = Buffer()
    with serving(buffer) as buffer_url, serving(says) as engine_url:
        payload = {
            "task_type": "counting",
            "remote_engine_url": engine_url,
            "remote_buffer_url": buffer_url,
            "input_file": "problems.jsonl",
            "num_repeat_per_sample": "2",
            "num_epoch": "2",
            "num_process": "2",
            "sampling_params": {"max_tokens": "16", "temperature": 0.7},
            "mark": str(tmp_path / "mark"),
        }
        yield Place(tmp_path, buffer, payload, [])


async def eventually(look: Callable[[], T | None]) -> T:
    """What `look` finds, once it finds something."""
    async with asyncio.timeout(60):
        while True:
            found = look()
            if found:
                return found
            await asyncio.sleep(0.02)


async def until(generators: Generators, task_type: str, *states: RolloutState) -> GeneratorState:
    return await eventually(lambda: next((one for one in generators.states() if one.task_type == task_type and one.state in states), None))


async def until_marked(place: Place) -> list[int]:
    """The processes that a generator has started, once it has."""
    mark = place.folder / "mark"
    return await eventually(lambda: [int(pid) for pid in mark.read_text().split()] if mark.exists() else None)


async def until_gone(pids: Sequence[int]) -> None:
    await eventually(lambda: not any(identify(pid).started_ticks and identify(pid).is_alive for pid in pids))


OVER = (RolloutState.FINISHED, RolloutState.FAILED, RolloutState.STOPPED)


async def test_an_unmodified_generator_runs_from_start_to_end(place: Place) -> None:
    place.finished = ["1"]
    async with place.generators() as generators:
        started = await generators.start(place.payload)
        assert (started.state, started.num_skipped) == (RolloutState.STARTING, 1)
        ended = await until(generators, "counting", *OVER)
        assert (ended.state, ended.reason, ended.pid) == (RolloutState.FINISHED, None, None), generators.logs("counting")
        lines = generators.logs("counting")
    # The store knows 1 as a text, the file as a number; it was finished once, in one of two epochs.
    assert Counter(item["instance_id"] for item in place.buffer.items) == {0: 4, 1: 2, 2: 4}
    assert {item["reward"] for item in place.buffer.items} == {1}
    extra = place.buffer.items[0]["extra_info"]
    assert (extra["temperature"], extra["max_tokens"], extra["top_p"], extra["versions"][0]["policy"]) == (0.7, 16, 1, "p")
    assert any("max_tokens is 16 <class 'int'>" in line for line in lines)
    assert any("4/4 rollouts" in line or "6/6 rollouts" in line for line in lines)


async def test_a_generator_with_its_own_loop_and_its_own_imports_runs_too(place: Place) -> None:
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "looping", "skip_instance_ids": [2], "num_epoch": 1})
        ended = await until(generators, "looping", *OVER)
        assert ended.state is RolloutState.FINISHED, generators.logs("looping")
        assert ended.functions == ("filter_item", "is_valid_group", "normalize_group_data")
        assert not any("HTTP Request" in line for line in generators.logs("looping"))
    assert Counter(item["instance_id"] for item in place.buffer.items) == {0: 2, 1: 2}
    assert {item["extra_info"]["is_right"] for item in place.buffer.items} == {1}


async def test_generators_run_where_openai_is_not_installed(place: Place) -> None:
    # The last place that is looked at, put first: there the stand-in is.
    counting = (FILES / "counting_generator.py").read_text().replace('"counting"', '"bare"')
    place.write("bare", "import sys\nsys.path.insert(0, sys.path[-1])\nimport openai\nprint(openai.__name__, hasattr(openai, 'AsyncOpenAI'))\n" + counting)
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "bare", "num_epoch": 1})
        assert (await until(generators, "bare", *OVER)).state is RolloutState.FINISHED, generators.logs("bare")
        assert "openai False" in generators.logs("bare")
    assert len(place.buffer.items) == 6
    assert all(item["extra_info"]["tokens"] for item in place.buffer.items)


async def test_a_file_whose_text_does_not_tell_is_run_once_until_it_changes(place: Place) -> None:
    text = f"open({str(place.folder / 'runs')!r}, 'a').write('x')\nTASK_TYPE = 'a' + 'b'\ndef run_rollout(data): ...\n"
    place.write("unsure", text)
    async with place.generators() as generators:
        await eventually(lambda: "ab" in generators.discovery.found)
        with pytest.raises(UnknownError):
            await generators.start(place.payload | {"task_type": "absent"})
        assert (place.folder / "runs").read_text() == "x"
        place.write("unsure", text + "\n")
        with pytest.raises(UnknownError):
            await generators.start(place.payload | {"task_type": "absent"})
        assert (place.folder / "runs").read_text() == "xx"


async def test_a_file_that_hangs_when_it_is_looked_at_holds_up_nobody(place: Place) -> None:
    hangs = "import os, pathlib, time\nTASK_TYPE = str(1)\npathlib.Path({!r}).write_text(str(os.getpid()))\ntime.sleep(1000)\n"
    place.write("stuck", hangs.format(str(place.folder / "mark")))
    async with asyncio.timeout(30), place.generators() as generators:
        assert "counting" in generators.discovery.found
        pids = await until_marked(place)
    await until_gone(pids)


async def test_the_shipped_generator_is_there_without_a_file(place: Place) -> None:
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "math", "num_epoch": 1})
        assert (await until(generators, "math", *OVER)).state is RolloutState.FINISHED, generators.logs("math")
    assert len(place.buffer.items) == 6


async def test_a_client_names_only_what_was_found(place: Place) -> None:
    place.write("broken", "def run_rollout(data)\n")
    async with place.generators() as generators:
        assert [(refused.path.name, refused.reason) for refused in generators.discovery.refused] == [
            ("broken_generator.py", "it is not valid Python: expected ':' (line 1)")
        ]
        for name in ("broken", "counting_generator", "os", str(place.folder / "files" / "counting_generator.py"), "../counting"):
            with pytest.raises(UnknownError, match="no generator has TASK_TYPE"):
                await generators.start(place.payload | {"task_type": name})
        with pytest.raises(InvalidError, match="data root"):
            await generators.start(place.payload | {"input_file": "/etc/passwd"})
        assert all(state.state is RolloutState.IDLE for state in generators.states())
        # A file that is added or mended while the buffer runs is found at the next start.
        place.write("broken", 'TASK_TYPE = "mended"\ndef run_rollout(data): ...\n')
        await generators.start(place.payload | {"task_type": "mended"})
        assert (await until(generators, "mended", *OVER)).state is RolloutState.FINISHED


async def test_a_second_start_while_it_runs_starts_nothing(place: Place) -> None:
    place.write("forever", FOREVER.format(before="", after=""))
    payload = place.payload | {"task_type": "forever"}
    async with place.generators() as generators:
        first = await generators.start(payload)
        await until_marked(place)
        place.finished = ["0"]
        again = await generators.start(payload)
        assert (again.pid, again.started_at) == (first.pid, first.started_at)
        with pytest.raises(ConflictError, match="/generators/forever/stop"):
            await generators.start(payload | {"num_epoch": 3})
        # Its items would be taken for those of the other.
        with pytest.raises(ConflictError, match="generator forever is running"):
            await generators.start(place.payload)


async def test_a_stopped_generator_takes_along_what_it_has_started(place: Place) -> None:
    place.write("forever", FOREVER.format(before="", after=""))
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "forever"})
        pids = await until_marked(place)
        stopped = await generators.stop("forever")
        assert (stopped.state, stopped.reason) == (RolloutState.STOPPED, None)
        await until_gone(pids)
        assert (await generators.stop("forever")).state is RolloutState.STOPPED
        with pytest.raises(UnknownError):
            await generators.stop("counting")


async def test_one_that_does_not_listen_is_killed(place: Place) -> None:
    place.write("forever", FOREVER.format(before="signal.signal(signal.SIGTERM, signal.SIG_IGN)", after=""))
    async with place.generators(stop_seconds=0.2) as generators:
        await generators.start(place.payload | {"task_type": "forever"})
        pids = await until_marked(place)
        assert (await generators.stop("forever")).state is RolloutState.STOPPED
        await until_gone(pids)


async def test_a_killed_generator_has_failed_and_the_next_start_is_a_new_one(place: Place) -> None:
    place.write("forever", FOREVER.format(before="", after=""))
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "forever"})
        pids = await until_marked(place)
        os.kill(pids[0], signal.SIGKILL)
        failed = await until(generators, "forever", *OVER)
        assert (failed.state, failed.reason) == (RolloutState.FAILED, "the process ended with SIGKILL")
        await until_gone(pids)
        (place.folder / "mark").unlink()
        await generators.start(place.payload | {"task_type": "forever"})
        assert (await until_marked(place))[0] != pids[0]


@pytest.mark.parametrize(
    "after, reason",
    [
        ("raise ValueError('the moon is wrong')", "ValueError: the moon is wrong"),
        ("os._exit(7)", "the process ended with exit 7"),
        ("raise SystemExit(4)", "SystemExit: 4"),
    ],
)
async def test_a_generator_that_fails_says_why_with_its_last_lines(place: Place, after: str, reason: str) -> None:
    place.write("forever", FOREVER.format(before="print('so far so good', flush=True)", after=after))
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "forever"})
        failed = await until(generators, "forever", *OVER)
        assert (failed.state, failed.reason) == (RolloutState.FAILED, reason)
        assert "so far so good" in "\n".join([*failed.last_lines, *generators.logs("forever")])
        await until_gone(await until_marked(place))


async def test_a_generator_that_cannot_be_loaded_has_failed(place: Place) -> None:
    place.write("poor", 'import a_package_that_is_not_there\nTASK_TYPE = "poor"\ndef run_rollout(data): ...\n')
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "poor"})
        failed = await until(generators, "poor", *OVER)
        assert failed.reason == "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"


async def test_generators_end_with_the_service(place: Place) -> None:
    place.write("forever", FOREVER.format(before="", after=""))
    async with place.generators() as generators:
        await generators.start(place.payload | {"task_type": "forever"})
        pids = await until_marked(place)
    await until_gone(pids)


async def test_the_servers_secrets_are_not_the_generators(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TOKENS", "admin=secret")
    monkeypatch.setenv("PENSTOCK_TOKEN", "secret")
    place.write("spy", 'import os\nTASK_TYPE = "spy"\ndef run_rollout(data): print([os.environ.get(name) for name in ("PENSTOCK_TOKENS", "PENSTOCK_TOKEN")])\n')
    async with place.generators(token="write-only") as generators:
        await generators.start(place.payload | {"task_type": "spy"})
        await until(generators, "spy", *OVER)
        assert "['', 'write-only']" in (place.folder / "buffer" / "generators" / "spy.log").read_text()
        assert "['', '***']" in generators.logs("spy"), "and what it is given is not told to others"


def test_a_folder_that_is_not_there_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--generators"):
        GeneratorsConfig(directory=tmp_path, folders=(tmp_path / "absent",))
    with pytest.raises(ConfigError, match="--data-root"):
        GeneratorsConfig(directory=tmp_path, data_root=tmp_path / "absent")


async def test_files_that_come_and_go_are_seen_when_somebody_looks(place: Place) -> None:
    async with place.generators() as generators:
        place.write("late", 'TASK_TYPE = "late"\n\n\ndef run_rollout(data):\n    pass\n')
        assert "late" not in {state.task_type for state in generators.states()}
        await generators.look_again()
        assert "late" in {state.task_type for state in generators.states()}
        (place.folder / "files" / "late_generator.py").unlink()
        await generators.look_again()
        assert "late" not in {state.task_type for state in generators.states()}
