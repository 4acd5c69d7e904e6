from pathlib import Path

import pytest

from penstock.process.logs import follow, last_lines, last_words


def test_the_last_lines_of_a_log_that_is_larger_than_a_block(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("".join(f"line {number} {'x' * 300}\n" for number in range(1000)))
    assert [line.split()[1] for line in last_lines(log, 3)] == ["997", "998", "999"]
    assert len(last_lines(log, 900)) == 900
    assert len(last_lines(log, 5000)) == 1000


def test_a_log_that_is_missing_empty_or_unfinished(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    assert last_lines(log, 3) == []
    log.write_text("")
    assert last_lines(log, 3) == []
    log.write_bytes(b"one\ntwo\xff")
    assert last_lines(log, 1) == ["two\ufffd"]


def test_following_gives_what_is_added_until_it_is_over(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("before\n")
    asked = 0

    def is_over() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            with log.open("a") as file:
                file.write("after\n")
        return asked > 1

    assert "".join(follow(log, is_over)) == "after\n"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ("penstock: no room\x1b[2J left", "no room?[2J left"),
        ("2026-01-01 10:00:00,000 ERROR penstock.rollout.blocking: env.step blocks", "env.step blocks"),
        ("2026-01-01 10:00:00,000 INFO penstock.rollout.life: told to stop", ""),
        ("KeyError: 'mine'", ""),
    ],
)
def test_the_last_words_of_a_process_are_its_own_sentence_about_its_end(tmp_path: Path, last: str, words: str) -> None:
    log = tmp_path / "part.log"
    assert last_words(log) == ""
    log.write_text(f"penstock: of an earlier life\n{last}\n")
    assert last_words(log) == words
