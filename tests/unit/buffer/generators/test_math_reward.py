from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.buffer.compat.shim.generator.reward_utils import _math_verify
from penstock.buffer.compat.shim.generator.reward_utils.math_utils import equal_answers, final_answer, get_rule_based_math_reward, math_reward


@pytest.mark.parametrize(
    "reply, answer",
    [
        (r"First \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"<think>\boxed{9}</think> The answer is 8.", "8"),
        (r"\boxed{ 3 } and an open \boxed{4", "3"),
        ("3 + 4 makes\n#### 7\nDone.", "7"),
        ("The answer is: 1,234.50 dollars, because 7 is odd.", "1,234.50"),
        ("Answer: x = 5", "x = 5"),
        ("the answer is Paris.", "Paris"),
        ("We have 12 apples and -7 pears", "-7"),
        ("a ratio of 3/4", "3/4"),
        ("nothing to count", None),
        ("", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_final_answer_of_a_reply(reply: str, answer: str | None) -> None:
    assert final_answer(reply) == answer


@pytest.mark.parametrize(
    "left, right",
    [
        ("42", "42.0"),
        ("1/2", "0.5"),
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac12", "1/2"),
        (r"50\%", "0.5"),
        ("1,000,000", "1000000"),
        (r"\$12", "12"),
        ("$ 12 $", "12"),
        ("x = 5", "5"),
        (r"\text{Yes}", "yes"),
        (r"\left(1, \frac{2}{4}\right)", "(1.0, 0.5)"),
        ("[0,1)", "[0, 1)"),
        (r"90^\circ", "90"),
        ("+3", "3"),
        ("2 \\sqrt{3}", r"2\sqrt{3}"),
    ],
)
def test_answers_that_are_equal(left: str, right: str) -> None:
    assert equal_answers(left, right)
    assert equal_answers(right, left)


@pytest.mark.parametrize(
    "left, right", [("42", "43"), ("", ""), ("1/0", "1"), ("(1,2)", "(2,1)"), ("[0,1)", "[0,1]"), ("1,2", "12"), ("0.5", "50"), ("1" * 70, "1" * 69 + "2")]
)
def test_answers_that_are_not(left: str, right: str) -> None:
    assert not equal_answers(left, right)
    assert not equal_answers(right, left)


def test_the_reward_is_for_the_last_message_and_an_empty_reply_has_none() -> None:
    def item(content: str | None, role: str = "assistant") -> dict[str, object]:
        return {"messages": [{"role": "user", "content": "4?"}, {"role": role, "content": content}], "label": 4}

    assert [get_rule_based_math_reward(item(content)) for content in ("It is 4", "It is 5", "", None)] == [1, 0, 0, 0]
    with pytest.raises(ValueError, match="role 'user'"):
        get_rule_based_math_reward(item("4", role="user"))


def test_a_label_may_be_boxed_and_a_reply_may_be_long() -> None:
    assert math_reward(r"\boxed{7}", r"thus \boxed{7}") == 1
    assert math_reward("{" * 20_000 + r"\boxed{" * 2000, "7") == 0


LIBRARY = """
import time

def parse(text):
    return text.removeprefix("\\\\boxed{").removesuffix("}")

def verify(gold, answer):
    if answer == "hang":
        time.sleep(1000)
    if answer == "raise":
        raise ValueError(answer)
    return sorted(gold) == sorted(answer)
"""


def test_math_verify_is_asked_in_a_process_of_its_own_before_an_answer_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert math_reward("\\boxed{b+a}", "a+b") == 0
    (tmp_path / "math_verify.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    _math_verify.is_installed.cache_clear()
    try:
        assert [math_reward(f"\\boxed{{{answer}}}", "a+b") for answer in ("b+a", "raise", "c", "b+a")] == [1, 0, 0, 1]
        monkeypatch.setattr(_math_verify, "DEADLINE_SECONDS", 0.5)
        assert math_reward("\\boxed{hang}", "a+b") == 0
        monkeypatch.setattr(_math_verify, "DEADLINE_SECONDS", 30.0)
        assert math_reward("\\boxed{b+a}", "a+b") == 1
    finally:
        _math_verify.is_installed.cache_clear()
        _math_verify.end_helper()
