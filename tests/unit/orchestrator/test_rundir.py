import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, ConflictError
from penstock.orchestrator.rundir import RunDir, find_run

HOLDER = """
import pathlib, sys
from penstock.orchestrator.rundir import RunDir
with RunDir(pathlib.Path(sys.argv[1])).held():
    print("held", flush=True)
    input()
"""


def test_a_run_is_held_by_one_process_and_free_when_that_is_killed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.make()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run_dir.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert run_dir.is_held()
    with pytest.raises(ConflictError, match="run run is running already"), run_dir.held():
        pass
    with pytest.raises(ConflictError):
        run_dir.set_aside()
    holder.kill()
    holder.communicate()
    assert not run_dir.is_held()
    with run_dir.held():
        assert run_dir.is_held()


def test_starting_over_keeps_one_run_before(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    for number in range(3):
        run_dir.set_aside()
        run_dir.make()
        run_dir.state.write_text(str(number))
    assert run_dir.state.read_text() == "2"
    assert RunDir(tmp_path / "run.previous").state.read_text() == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.previous"]


def test_a_directory_that_is_not_a_run_is_never_touched(tmp_path: Path) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.txt").write_text("all of it")
    for action in (RunDir(mine).set_aside, RunDir(mine).make):
        with pytest.raises(ConfigError, match="not the directory of a run"):
            action()
    assert [path.name for path in mine.iterdir()] == ["chapter.txt"]
    run_dir = RunDir(tmp_path / "run")
    run_dir.make()
    (tmp_path / "run.previous").mkdir()
    with pytest.raises(ConfigError, match="in the way"):
        run_dir.set_aside()
    assert run_dir.is_run


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to the run directory") as caught:
        RunDir(tmp_path / "file" / "run").make()
    assert "\n" not in str(caught.value)


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "one")
    run_dir.make()
    assert find_run("one", tmp_path / "runs") == find_run(str(run_dir.path), Path("elsewhere")) == run_dir
    with pytest.raises(ConfigError, match="no run 'two'"):
        find_run("two", tmp_path / "runs")


def test_the_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.make()
    with run_dir.held():
        child = subprocess.Popen(
            [sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
    assert not run_dir.is_held()
    child.communicate("\n")
