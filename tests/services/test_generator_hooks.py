"""A generator's own five functions, in their own process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.buffer.compat.generators import hooks as hooks_module
from penstock.buffer.compat.generators.hooks import GeneratorHooks
from penstock.buffer.compat.generators.running import Generators, GeneratorsConfig
from penstock.buffer.compat.hooks import HookFault, HookSettings, ItemGroup

SETTINGS = HookSettings(task_type="t", group_size=4, min_valid_group_size=3)
HEAD = 'import os, time\n\nTASK_TYPE = "t"\n\ndef run_rollout(data):\n    pass\n\n'


def group(name: str, *rewards: float) -> ItemGroup:
    return name, [{"uid": f"{name}{place}", "instance_id": name, "messages": [], "reward": reward} for place, reward in enumerate(rewards)]


async def stream(groups: Iterable[ItemGroup]) -> AsyncIterator[ItemGroup]:
    for one in groups:
        yield one


@contextlib.asynccontextmanager
async def hooks_of(folder: Path, functions: str, *, seconds: float = 30.0) -> AsyncIterator[GeneratorHooks]:
    (folder / "t_generator.py").write_text(HEAD + functions)
    generators = Generators(GeneratorsConfig(directory=folder, folders=(folder,), data_root=folder, hook_seconds=seconds))
    try:
        hooks = generators.hooks("t")
        assert isinstance(hooks, GeneratorHooks)
        yield hooks
    finally:
        await generators.close()


def faults(answers: Iterable[Any]) -> list[str | None]:
    return [f"{answer.reason}: {answer.message}" if isinstance(answer, HookFault) else None for answer in answers]


ALL_FIVE = """
def get_group_data_meta_info(temp_data):
    assert type(temp_data) is dict
    return {"sizes": {name: len(items) for name, items in temp_data.items()}}

def is_valid_group(group, min_valid_group_size, task_type):
    assert type(group) is tuple and type(group[1]) is list and (min_valid_group_size, task_type) == (3, "t")
    finished = len(group[1]) >= min_valid_group_size
    return finished and group[0] != "bad", finished

def filter_item(item, task_type):
    assert task_type == "t"
    return item["reward"] > 0

def normalize_group_data(group, epsilon=1e-8):
    for item in group[1]:
        item["raw_reward"], item["reward"] = item["reward"], item["reward"] / 2
    return group

def pad_group_data(group, group_size):
    print("padding", group[0], group_size)
    return group[0], (group[1] * group_size)[:group_size]
"""


async def _all_five(folder: Path) -> None:
    async with hooks_of(folder, ALL_FIVE) as hooks:
        assert len(hooks.overridden) == 5
        assert await hooks.get_group_data_meta_info(stream([group("a", 1, 0), group("b", 1), group("a", 1)])) == {"sizes": {"a": 3, "b": 1}}
        assert await hooks.is_valid_group([group("a", 1, 1, 1), group("bad", 1, 1, 1), group("c", 1)], SETTINGS) == [
            (True, True),
            (False, True),
            (False, False),
        ]
        assert await hooks.filter_item([group("a", 1, 0, 0.5), group("b")], SETTINGS) == [[True, False, True], []]
        (one,) = await hooks.normalize_group_data([group("a", 1)])
        assert one == ("a", [{"uid": "a0", "instance_id": "a", "messages": [], "reward": 0.5, "raw_reward": 1}])
        (padded,) = await hooks.pad_group_data([group("a", 1, 0)], SETTINGS)
        assert not isinstance(padded, HookFault)
        assert (padded[0], [item["uid"] for item in padded[1]]) == ("a", ["a0", "a1", "a0", "a1"])
    assert "padding a 4" in (folder / "generators" / "t.hooks.log").read_text()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_functions_are_called_with_the_very_arguments_of_the_original(tmp_path: Path, run: Callable[[Any], None]) -> None:
    run(_all_five(tmp_path))


async def test_what_a_function_does_wrong_is_told_for_its_group_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    functions = """
def normalize_group_data(group):
    if group[0] == "raises":
        raise ValueError("no score\\nin 'this'")
    if group[0] == "nan":
        group[1][0]["reward"] = float("nan")
    if group[0] == "text":
        group[1][0]["reward"] = "high"
    if group[0] == "none":
        return None
    if group[0] == "set":
        return group[0], [{1, 2}]
    if group[0] == "exits":
        os._exit(5)
    return group
"""
    names = ["a", "raises", "nan", "b", "text", "none", "set", "exits", "c"]
    async with hooks_of(tmp_path, functions) as hooks:
        assert hooks.overridden == {"normalize_group_data"}
        told = faults(await hooks.normalize_group_data([group(name, 1) for name in names]))
    start = "hook_error:normalize_group_data: "
    assert [one and one.removeprefix(start) for one in told] == [
        None,
        "ValueError: no score\nin 'this'",
        "ValueError: Out of range float values are not JSON compliant",
        None,
        "the reward of an item must be a number or None, it is 'high'",
        "it must give (instance_id, items), it gave None",
        "TypeError: set is no JSON",
        "the process is gone (exit 5)",
        None,
    ]
    # In the log, too, on one line: a group that was dropped tells no more than the function's name.
    (line,) = (record.message for record in caplog.records if record.name == hooks_module.__name__)
    assert "normalize_group_data of generator" in line and "6 of 9 times" in line and r"ValueError: no score\nin 'this'" in line


async def test_a_function_that_hangs_is_given_up_and_its_process_replaced(tmp_path: Path) -> None:
    functions = """
def filter_item(item, task_type):
    if item["instance_id"] == "hangs":
        time.sleep(1000)
    return True

def is_valid_group(group, min_valid_group_size, task_type):
    return {"flag": True, "eager": (True, False), "odd": 7}.get(group[0], (True, True))

def pad_group_data(group, group_size):
    return group
"""
    async with hooks_of(tmp_path, functions, seconds=1.5) as hooks:
        # Loading is not part of a call's time.
        assert await hooks.filter_item([group("a", 1)], SETTINGS) == [[True]]
        told = await hooks.filter_item([group("hangs", 1), group("b", 1, 1)], SETTINGS)
        assert (faults(told)[0], told[1]) == ("hook_error:filter_item: no answer within 1.5 s", [True, True])
        verdicts = await hooks.is_valid_group([group(name, 1) for name in ("a", "flag", "eager", "odd")], SETTINGS)
        assert verdicts[:2] == [(True, True), (True, True)]
        assert faults(verdicts)[2:] == [
            "hook_error:is_valid_group: it calls a group valid that is not finished",
            "hook_error:is_valid_group: it must give (is_valid, is_finished), it gave 7",
        ]
        padded = faults(await hooks.pad_group_data([group("a", 1, 1, 1, 1), group("b", 1, 1, 1)], SETTINGS))
        assert padded == [None, "hook_error:pad_group_data: it gave 3 items, which is no multiple of the group size 4"]


async def test_one_that_always_dies_is_not_started_for_every_group(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    functions = f"""
def filter_item(item, task_type):
    open({str(tmp_path / "lives")!r}, "a").write("x")
    os._exit(1)
"""
    async with hooks_of(tmp_path, functions) as hooks:
        told = faults(await hooks.filter_item([group(str(number), 1) for number in range(20)], SETTINGS))
        assert None not in told
        assert (tmp_path / "lives").read_text() == "x" * hooks_module.MAX_DEATHS
        # The next read has its own patience.
        await hooks.filter_item([group("a", 1)], SETTINGS)
        assert (tmp_path / "lives").read_text() == "x" * (hooks_module.MAX_DEATHS + 1)
    lines = [record.message for record in caplog.records if record.name == hooks_module.__name__]
    assert [("20 of 20 times" in line, "1 of 1 times" in line, "the process is gone (exit 1)" in line) for line in lines] == [
        (True, False, True),
        (False, True, True),
    ]


async def test_a_file_that_cannot_be_loaded_is_a_fault_of_each_function(tmp_path: Path) -> None:
    async with hooks_of(tmp_path, "import not_there\ndef filter_item(item, task_type): ...\ndef get_group_data_meta_info(temp_data): ...\n") as hooks:
        (told,) = await hooks.filter_item([group("a", 1)], SETTINGS)
        assert isinstance(told, HookFault) and "cannot be loaded: ModuleNotFoundError" in told.message
        assert isinstance(await hooks.get_group_data_meta_info(stream([])), HookFault)


async def test_a_caller_that_leaves_in_the_middle_leaves_no_answer_for_the_next(tmp_path: Path) -> None:
    functions = f"""
import pathlib
def filter_item(item, task_type):
    pathlib.Path({str(tmp_path / "asked")!r}).touch()
    time.sleep(1000 if item["instance_id"] == "slow" else 0)
    return item["instance_id"] == "b"
"""
    async with hooks_of(tmp_path, functions) as hooks:
        task = asyncio.create_task(hooks.filter_item([group("slow", 1)], SETTINGS))
        async with asyncio.timeout(60):
            while not (tmp_path / "asked").exists():
                await asyncio.wait({task}, timeout=0.02)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await hooks.filter_item([group("b", 1)], SETTINGS) == [[True]]


async def test_a_task_type_without_functions_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "t_generator.py").write_text(HEAD)
    generators = Generators(GeneratorsConfig(directory=tmp_path, folders=(tmp_path,), data_root=tmp_path))
    assert generators.hooks("t") is None and generators.hooks("nobody") is None
    await generators.close()
