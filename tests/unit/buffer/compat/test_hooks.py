"""A read through functions that a generator brings: what each may do, and what becomes of a group when one misbehaves."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.buffer.compat.config import CompatConfig
from penstock.buffer.compat.hooks import HookFault, HookName, Hooks, HookSettings, ItemGroup
from penstock.buffer.compat.reader import Batch
from penstock.buffer.compat.service import CompatService
from penstock.buffer.service import BufferService
from penstock.buffer.store.sqlite import SqliteStore


class Own:
    """Hooks made of plain functions, as a generator's process would answer. What is not given is not overridden."""

    def __init__(self, **functions: Any) -> None:
        self._functions = functions
        self.asked: list[tuple[str, Any]] = []

    @property
    def overridden(self) -> frozenset[HookName]:
        return frozenset(self._functions)  # type: ignore[arg-type]

    async def get_group_data_meta_info(self, groups: AsyncIterator[ItemGroup]) -> dict[str, Any] | HookFault:
        data: dict[str, list[Any]] = {}
        async for instance, items in groups:
            data.setdefault(instance, []).extend(items)
        return self._answer("get_group_data_meta_info", data)  # type: ignore[no-any-return]

    async def is_valid_group(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[Any]:
        return [self._answer("is_valid_group", group, settings.min_valid_group_size, settings.task_type) for group in groups]

    async def filter_item(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[Any]:
        return [[self._answer("filter_item", item, settings.task_type) for item in items] for _, items in groups]

    async def normalize_group_data(self, groups: Sequence[ItemGroup]) -> list[Any]:
        return [self._answer("normalize_group_data", group) for group in groups]

    async def pad_group_data(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[Any]:
        return [self._answer("pad_group_data", group, settings.group_size) for group in groups]

    def _answer(self, name: str, *args: Any) -> Any:
        self.asked.append((name, args))
        return self._functions[name](*args)


def item(uid: str, instance: str, reward: Any) -> bytes:
    return json.dumps({"uid": uid, "instance_id": instance, "messages": [], "reward": reward}).encode()


async def served(batch: Batch) -> list[dict[str, Any]]:
    return [one async for groups in batch.items for items in groups for one in json.loads(b"[%b]" % items)] if batch.items is not None else []


def damage(directory: Path, uid: str) -> None:
    with sqlite3.connect(directory / "store.sqlite") as connection:
        damaged = "UPDATE item_bodies SET body = replace(CAST(body AS TEXT), 'reward', 'rewart')"
        connection.execute(f"{damaged} WHERE number = (SELECT number FROM items WHERE uid = ?)", (uid,))


class Stage:
    """A service on a real file."""

    def __init__(self, directory: Path, hooks: Hooks | None, **settings: Any) -> None:
        self.service = BufferService(SqliteStore(directory / "store.sqlite"), expire_seconds=60.0, max_waiting=8)
        self.compat = CompatService(self.service, CompatConfig(**({"group_size": 2} | settings)), lambda task_type: hooks)

    async def pair(self, instance: str, rewards: tuple[Any, ...] = (1.0, 0.0)) -> None:
        for place, reward in enumerate(rewards):
            await self.compat.write(item(f"{instance}{place}", instance, reward))

    def state(self, group_id: str) -> tuple[str, str | None]:
        group = self.service.buffer.store.group("default", group_id)
        assert group is not None
        return group.state.value, group.reason


async def test_own_functions_are_used_in_the_place_of_the_defaults(tmp_path: Path) -> None:
    own = Own(
        get_group_data_meta_info=lambda data: {"instances": sorted(data)},
        is_valid_group=lambda group, least, task: (True, len(group[1]) >= least),
        filter_item=lambda item, task: True,
        normalize_group_data=lambda group: (group[0], [{**found, "reward": 10} for found in group[1]]),
        pad_group_data=lambda group, size: (group[0], group[1] * 2),
    )
    stage = Stage(tmp_path, own)
    async with stage.service.running():
        await stage.pair("a", (-1, True))
        batch = await stage.compat.reader.read(None)
        assert [(found["uid"], found["reward"]) for found in await served(batch)] == [("a0", 10), ("a1", 10)] * 2
        assert batch.meta_info["instances"] == ["a"]
        assert batch.meta_info["finished_groups"] == ["a"]
        assert batch.read_id is not None
        assert len(await served(await stage.compat.reader.read_again(batch.read_id))) == 4
    asked = dict(own.asked)
    assert asked["is_valid_group"] == (("a", [json.loads(item("a0", "a", -1)), json.loads(item("a1", "a", 1))]), 2, "default")
    assert asked["pad_group_data"][1] == 2


@pytest.mark.parametrize(
    ("functions", "reason"),
    [
        ({"is_valid_group": lambda *_: HookFault(hook="is_valid_group", message="KeyError")}, "hook_error:is_valid_group"),
        ({"is_valid_group": lambda *_: (True, False)}, "hook_error:is_valid_group"),
        ({"is_valid_group": lambda *_: (False, True)}, "not_valid"),
        ({"filter_item": lambda *_: False}, "too_few_valid"),
        ({"normalize_group_data": lambda group: HookFault(hook="normalize_group_data", message="hung")}, "hook_error:normalize_group_data"),
        (
            {"normalize_group_data": lambda group: (group[0], [{**found, "reward": float("nan")} for found in group[1]])},
            "hook_error:normalize_group_data",
        ),
        ({"pad_group_data": lambda group, size: (group[0], group[1][:1])}, "hook_error:pad_group_data"),
    ],
)
async def test_a_group_whose_hook_misbehaves_is_dropped_and_the_others_are_served(tmp_path: Path, functions: dict[str, Any], reason: str) -> None:
    """The function misbehaves for one instance only."""

    def only_for_bad(function: Any, fine: Any) -> Any:
        return lambda subject, *more: function(subject, *more) if "bad" in str(subject) else fine(subject, *more)

    fine = {
        "is_valid_group": lambda *_: (True, True),
        "filter_item": lambda *_: True,
        "normalize_group_data": lambda group: group,
        "pad_group_data": lambda group, size: group,
    }
    stage = Stage(tmp_path, Own(**{name: only_for_bad(function, fine[name]) for name, function in functions.items()}))
    async with stage.service.running():
        await stage.pair("bad")
        await stage.pair("good")
        batch = await stage.compat.reader.read(None)
        assert {found["instance_id"] for found in await served(batch)} == {"good"}
        assert stage.state("bad/0") == ("dropped", reason)
        assert batch.meta_info["dropped"] == {reason: 1}


async def test_an_own_function_decides_what_is_finished(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Own(is_valid_group=lambda group, *_: (len(group[1]) == 3,) * 2), group_size=4)
    async with stage.service.running():
        await stage.pair("a", (1.0, 0.0))
        assert (await stage.compat.reader.read(None)).items is None
        assert stage.state("a/0") == ("open", None)
        await stage.compat.write(item("a2", "a", 0.5))
        batch = await stage.compat.reader.read(None)
        assert len(await served(batch)) == 4
        assert stage.state("a/0") == ("spent", None)
        assert batch.meta_info["finished_groups"] == ["a"]
        assert await stage.compat.finished_ids("default") == ["a"]


@pytest.mark.parametrize(("least", "state"), [(0.5, ("spent", None)), (0.7, ("dropped", "timeout"))])
async def test_a_function_that_waits_for_more_waits_no_longer_than_the_clock(tmp_path: Path, least: float, state: tuple[str, str | None]) -> None:
    own = Own(is_valid_group=lambda group, *_: (len(group[1]) == 4,) * 2)
    stage = Stage(tmp_path, own, group_size=4, min_valid_group_size_ratio=0.5, min_valid_item_size_ratio=0.5, min_timeout_group_size_ratio=least)
    async with stage.service.running():
        await stage.pair("a")
        assert (await stage.compat.reader.read(None)).items is None
        assert stage.state("a/0") == ("ready", None)
        now = stage.service.now
        stage.service.now = lambda: now() + 301.0
        batch = await stage.compat.reader.read(None)
        assert len(await served(batch)) == (4 if state[0] == "spent" else 0)
        assert stage.state("a/0") == state


async def test_a_failing_meta_hook_is_told_and_stops_nothing(tmp_path: Path) -> None:
    fault = HookFault(hook="get_group_data_meta_info", message="ZeroDivisionError: division by zero")
    stage = Stage(tmp_path, Own(get_group_data_meta_info=lambda data: fault))
    async with stage.service.running():
        await stage.pair("a")
        batch = await stage.compat.reader.read(None)
        assert len(await served(batch)) == 2
        assert batch.meta_info["hook_error"] == "get_group_data_meta_info: ZeroDivisionError: division by zero"
        assert batch.meta_info["total_samples"] == 2


async def test_statistics_of_a_generator_leave_out_what_is_damaged(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Own(get_group_data_meta_info=lambda data: {"instances": {name: len(items) for name, items in data.items()}}), cache_bytes=1)
    async with stage.service.running():
        await stage.pair("a")
        await stage.pair("b")
        await stage.service.settled()
        damage(tmp_path, "a1")
        batch = await stage.compat.reader.read(None)
        assert batch.meta_info["instances"] == {"a": 1, "b": 2}
        assert {found["instance_id"] for found in await served(batch)} == {"b"}
        assert stage.state("a/0") == ("dropped", "damaged")


async def test_a_read_that_finds_too_little_tells_what_it_has_dropped(tmp_path: Path) -> None:
    stage = Stage(tmp_path, None)
    async with stage.service.running():
        await stage.pair("a", (1.0, 1.0))
        for _ in range(2):
            assert (await stage.compat.reader.read(None)).meta_info["dropped"] == {"equal_rewards": 1}
        await stage.pair("b")
        batch = await stage.compat.reader.read(None)
        assert (batch.meta_info["dropped"], batch.meta_info["finished_groups"]) == ({"equal_rewards": 1}, ["a", "b"])


async def test_a_batch_through_hooks_is_as_small_as_it_can_be(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Own(filter_item=lambda *_: True))
    async with stage.service.running():
        for instance in "abc":
            await stage.pair(instance)
        assert len(await served(await stage.compat.reader.read(3))) == 4
        assert stage.state("c/0") == ("ready", None)


async def test_an_item_that_comes_while_hooks_compute_is_not_lost(tmp_path: Path) -> None:
    """The group that it belongs to was asked about without it, and so is left for the next read."""
    stage: Stage

    class Slow(Own):
        async def is_valid_group(self, groups: Sequence[ItemGroup], settings: HookSettings) -> list[Any]:
            answers = await super().is_valid_group(groups, settings)
            if len(groups[0][1]) == 2:
                await stage.compat.write(item("a2", "a", 0.5))
            return answers

    stage = Stage(tmp_path, Slow(is_valid_group=lambda *_: (True, True)), group_size=4)
    async with stage.service.running():
        await stage.pair("a")
        assert (await stage.compat.reader.read(None)).items is None
        assert [found["uid"] for found in await served(await stage.compat.reader.read(None))] == ["a0", "a1", "a2", "a0"]


async def test_settings_of_a_started_task_outlive_the_process(tmp_path: Path) -> None:
    stage = Stage(tmp_path, None)
    async with stage.service.running():
        await stage.compat.use(stage.compat.prepared({"task_type": "math", "num_repeat_per_sample": "3"}))
        await stage.pair("a", (1.0, 0.0, 1.0))
        assert stage.state("a/0") == ("ready", None)
    again = Stage(tmp_path, None)
    async with again.service.running():
        await again.pair("b", (1.0, 0.0))
        assert again.state("b/0") == ("open", None)
        group = again.service.buffer.store.group("default", "b/0")
        assert group is not None
        assert (group.environment, group.size) == ("math", 3)
        assert await again.compat.finished_ids("math") == ["a"]


@pytest.mark.parametrize(
    "fields",
    [
        b'"reward": 1.0, "messages": []',
        b'"reward":true,"messages":[{"role":"user","content":"a \\"reward\\" of \\n 1"}]',
        b'"messages": [{"reward": 5}], "reward" : 1e0',
        b'"\\u0072eward": 1, "messages": [{"reward": 5}]',
        b'"messages": [{"content": "x\\"reward"}], "\\u0072eward": 1',
        b'"name": "reward", "reward": 1, "messages": []',
        b'"raw_reward": 7, "reward": 1, "messages": []',
    ],
)
async def test_only_the_reward_of_an_item_is_changed_however_it_is_spelled(tmp_path: Path, fields: bytes) -> None:
    written = b'{"uid": "u", "instance_id": "a", %b}' % fields
    for number, cache_bytes in enumerate((1 << 20, 1)):
        directory = tmp_path / str(number)
        directory.mkdir()
        stage = Stage(directory, None, cache_bytes=cache_bytes)
        async with stage.service.running():
            await stage.compat.write(written)
            await stage.compat.write(item("v", "a", 0.0))
            first, _ = await served(await stage.compat.reader.read(None))
        assert first["reward"] == pytest.approx(1.0, abs=1e-7)
        assert first["raw_reward"] == 1
        assert {name: value for name, value in first.items() if not name.endswith("reward")} == {
            name: value for name, value in json.loads(written).items() if not name.endswith("reward")
        }


async def test_a_group_whose_bytes_are_damaged_is_left_out_and_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path, None, cache_bytes=1)
    async with stage.service.running():
        await stage.pair("a")
        await stage.pair("b")
        await stage.service.settled()
        damage(tmp_path, "a1")
        batch = await stage.compat.reader.read(None)
        assert {found["instance_id"] for found in await served(batch)} == {"b"}
        assert batch.damaged == ["a/0"]
