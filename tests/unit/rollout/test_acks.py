from pathlib import Path

from penstock.buffer.api import Written
from penstock.rollout.writing import AcksLog


def noted(path: Path, *answers: Written) -> str:
    with AcksLog(path) as acks:
        acks.note(answers)
    return path.read_text()


def test_only_what_was_acknowledged_is_noted_and_every_life_adds_to_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "acks" / "worker.log"
    assert noted(path, Written(uid="a", digest="1"), Written(uid="b", code="conflict", message="taken")) == "a 1\n"
    assert noted(path, Written(uid="c", digest="2"), Written(uid="d", digest="3", stale=True)) == "a 1\nc 2\nd 3\n"


def test_a_note_that_the_power_cut_off_does_not_become_the_beginning_of_the_next(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text("a 1\nb")
    assert noted(path, Written(uid="c", digest="2")) == "a 1\nb\nc 2\n"
