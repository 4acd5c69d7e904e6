import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.process.points import POINTS, reach

PROGRAM = """
from penstock.process.points import reach
for number in range(5):
    print(number, flush=True)
    reach("learner.after_cut")
    reach("learner.after_keep")
    reach("buffer.after_commit")
"""


def run(**environment: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True)
    return done.returncode, done.stdout.split()[-1]


def test_nothing_happens_at_a_point_unless_told() -> None:
    for point in POINTS:
        reach(point)


def test_a_process_dies_where_it_was_told_and_the_time_it_was_told() -> None:
    assert run(PENSTOCK_DIE_AT="learner.after_keep") == (-signal.SIGKILL, "0")
    assert run(PENSTOCK_DIE_AT="learner.after_cut:3") == (-signal.SIGKILL, "2")


def test_a_process_that_is_to_die_once_lives_the_second_time(tmp_path: Path) -> None:
    marker = str(tmp_path / "died")
    assert run(PENSTOCK_DIE_AT="learner.after_cut:2", PENSTOCK_DIE_ONCE=marker) == (-signal.SIGKILL, "1")
    assert run(PENSTOCK_DIE_AT="learner.after_cut:2", PENSTOCK_DIE_ONCE=marker) == (0, "4")


def test_each_life_of_a_part_dies_at_the_next_line_of_a_plan_that_is_its_own(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.write_text("learner.after_keep:2\nserver.after_swap\nlearner.after_cut:4\n")
    assert run(PENSTOCK_DIE_PLAN=str(plan)) == (-signal.SIGKILL, "1")
    assert run(PENSTOCK_DIE_PLAN=str(plan)) == (-signal.SIGKILL, "3")
    assert run(PENSTOCK_DIE_PLAN=str(plan)) == (0, "4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan", "plan.0", "plan.2"]
