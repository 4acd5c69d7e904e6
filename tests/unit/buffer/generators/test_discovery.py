from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from penstock.buffer.compat.generators.describing import describe
from penstock.buffer.compat.generators.discovery import DescribeError, Discovery, UnsureError, discover, outline_of
from penstock.buffer.compat.generators.processes import ChildSettings

GOOD = 'TASK_TYPE = "{}"\n\ndef run_rollout(data):\n    pass\n'


def never(path: Path) -> NoReturn:
    raise AssertionError(f"{path.name} need not be run to know what it defines")


def look(folder: Path, **files: str) -> Discovery:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return discover([folder], never)


def reasons(discovery: Discovery) -> dict[str, str]:
    return {refused.path.name: refused.reason for refused in discovery.refused}


def test_generators_are_found_by_the_end_of_their_name(tmp_path: Path) -> None:
    discovery = look(tmp_path, web_generator=GOOD.format("web"), helper=GOOD.format("helper"), generator_of_web=GOOD.format("other"))
    assert {task_type: found.path.name for task_type, found in discovery.found.items()} == {"web": "web_generator.py", "math": "base_generator.py"}
    assert discovery.refused == ()


def test_a_file_that_is_no_generator_is_refused_with_its_reason_and_the_others_load(tmp_path: Path) -> None:
    (tmp_path / "h_generator.py").write_bytes(b'TASK_TYPE = "h"\0')
    discovery = look(
        tmp_path,
        a_generator=GOOD.format("a"),
        b_generator="def run_rollout(data): ...",
        c_generator='TASK_TYPE = "c"',
        d_generator="def run_rollout(data)\n    pass",
        e_generator=GOOD.format("a"),
        f_generator="TASK_TYPE = 7\ndef run_rollout(data): ...",
        g_generator=GOOD.format("../g"),
    )
    assert discovery.found.keys() == {"a", "math"}
    assert reasons(discovery) == {
        "b_generator.py": "it does not define TASK_TYPE",
        "c_generator.py": "it does not define run_rollout",
        "d_generator.py": "it is not valid Python: expected ':' (line 1)",
        "e_generator.py": "its TASK_TYPE 'a' is that of a_generator.py already",
        "f_generator.py": "its TASK_TYPE must be a text, it is 7",
        "g_generator.py": reasons(discovery)["g_generator.py"],
        "h_generator.py": "it is not valid Python: source code string cannot contain null bytes",
    }
    assert "TASK_TYPE" in reasons(discovery)["g_generator.py"]


def test_a_file_of_the_users_has_the_task_type_before_the_shipped_one(tmp_path: Path) -> None:
    assert look(tmp_path, base_generator=GOOD.format("math")).found["math"].path == tmp_path / "base_generator.py"


def test_a_generator_brings_the_functions_that_it_defines_or_imports(tmp_path: Path) -> None:
    text = GOOD.format("a") + "from elsewhere import filter_item, x as pad_group_data\ndef is_valid_group(group, size, task_type): ...\nimport json\n"
    assert look(tmp_path, a_generator=text).found["a"].hooks == {"filter_item", "pad_group_data", "is_valid_group"}


@pytest.mark.parametrize(
    "text",
    [
        "TASK_TYPE = 'a' + 'b'\ndef run_rollout(data): ...",
        "if True:\n    TASK_TYPE = 'ab'\ndef run_rollout(data): ...",
        "TASK_TYPE = 'a'\nTASK_TYPE = 'ab'\ndef run_rollout(data): ...",
        "TASK_TYPE = 'a'\nTASK_TYPE += 'b'\ndef run_rollout(data): ...",
        "from json import *\nTASK_TYPE = 'ab'\ndef run_rollout(data): ...",
        "TASK_TYPE = 'ab'\ndef run_rollout(data): ...\nif True:\n    filter_item = len",
    ],
)
async def test_what_the_text_does_not_tell_is_found_out_by_another_process(tmp_path: Path, text: str) -> None:
    assert outline_of(text.encode()) is None
    (tmp_path / "x_generator.py").write_text(text)
    settings = ChildSettings(folders=(tmp_path,), environment={})
    outline = await describe(tmp_path / "x_generator.py", settings, tmp_path / "log")
    assert outline.task_type == "ab"
    assert outline.names >= {"TASK_TYPE", "run_rollout"}
    assert ("filter_item" in outline.names) == ("filter_item" in text)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("import os\nTASK_TYPE = str(1)\nos._exit(3)", "its process ended without a word"),
        ("TASK_TYPE = str(1)\nraise ValueError('not today')", "ValueError: not today"),
        ("TASK_TYPE = str(1)\nimport time\ntime.sleep(1000)", "it was not done after 2 s"),
    ],
)
async def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "x_generator.py"
    path.write_text(text)
    with pytest.raises(DescribeError) as told:
        await describe(path, ChildSettings(folders=(tmp_path,), environment={}), tmp_path / "log", seconds=2 if "sleep" in text else 60)

    def known(path: Path) -> NoReturn:
        raise told.value

    (refused,) = discover([tmp_path], known).refused
    assert refused.reason == f"it cannot be loaded: {reason}"


def test_a_file_that_was_not_run_yet_is_neither_found_nor_refused(tmp_path: Path) -> None:
    (tmp_path / "x_generator.py").write_text("TASK_TYPE = str(1)\ndef run_rollout(data): ...")

    def unknown(path: Path) -> NoReturn:
        raise UnsureError

    discovery = discover([tmp_path], unknown)
    assert (discovery.unsure, discovery.refused, discovery.found.keys()) == ((tmp_path / "x_generator.py",), (), {"math"})


def test_reading_a_file_does_not_run_it(tmp_path: Path) -> None:
    look(tmp_path, a_generator=GOOD.format("a") + f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    assert not (tmp_path / "mark").exists()
