r"""A rule for answers in mathematics: 1 if the reply's final answer equals the label, else 0.

The final answer is looked for behind the last `</think>`, if there is one, in this order: the last `\boxed{...}`, what stands behind the last `####`,
what follows the last "answer is" or "answer:" in its sentence (the first number there, if there is one), the last number.

Two answers are equal if they are the same text after LaTeX dressing, spaces, units of money and thousands separators are taken off, or the same number:
`1/2`, `0.5`, `\frac{1}{2}` and `50\%` are one. Lists and intervals are compared part by part. Where the package `math-verify` is installed it is asked, in
a process of its own, before an answer is called wrong.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from ._math_verify import verifies

_NUMBER = re.compile(r"-?(?:\d[\d,]*\.?\d*|\.\d+)(?:\s*/\s*\d+)?%?")
_STATED = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*(.+)", re.IGNORECASE)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_DRESSING = re.compile(r"\\(?:left|right|displaystyle|limits|,|;|:|!| )|\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_NAMED = re.compile(r"^[A-Za-z]\w{0,2}\s*=\s*(?=\S)")
_LONGEST_NUMBER = 64
"""Characters. More is compared as text: a number of a million digits is no answer, but would take long."""


def get_rule_based_math_reward(item: dict[str, Any]) -> int:
    """1 or 0 for the last message of `item`, an assistant's, against `item["label"]`."""
    last = item["messages"][-1]
    if last["role"] != "assistant":
        raise ValueError(f"the last message must be the assistant's, it is of role {last['role']!r}")
    return math_reward(last["content"] or "", str(item["label"]))


def math_reward(reply: str, label: str) -> int:
    r"""1 if the final answer of `reply` equals `label`, which may be boxed itself.

    >>> math_reward(r"<think>7?</think> It is \boxed{\frac{1}{2}}.", "0.5"), math_reward("So we get 12 apples and 7 pears.", "12")
    (1, 0)
    """
    answer, expected = final_answer(reply), last_boxed(label) or label
    if answer is None:
        return 0
    return int(equal_answers(answer, expected) or verifies(answer, expected))


def final_answer(reply: str) -> str | None:
    """What a reply gives as its answer; None if it gives none."""
    text = reply.rpartition("</think>")[2]
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    if "####" in text:
        return text.rpartition("####")[2].strip().split("\n")[0]
    stated = _STATED.findall(text)
    if stated:
        return _stated(re.split(r"\.\s|\.$", stated[-1])[0])
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


def _stated(words: str) -> str:
    """What is called the answer in plain words: a number alone, else the first one in them, else all of them."""
    numbers = _NUMBER.findall(words)
    return words.strip() if not numbers or _number(_bare(words)) is not None else numbers[0]


def last_boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, braces matched.

    >>> last_boxed(r"\boxed{1} or \boxed{\frac{1}{2}} or \boxed{3")
    '\\frac{1}{2}'
    """
    start = len(text)
    while (start := text.rfind(r"\boxed", 0, start)) >= 0:
        opening = text.find("{", start)
        depth = 0
        for place in range(opening, len(text)) if opening >= 0 else ():
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return text[opening + 1 : place].strip()
    return None


def equal_answers(left: str, right: str) -> bool:
    """Whether two answers are the same after what does not matter is taken off, or the same number."""
    left, right = _bare(left), _bare(right)
    if left == right:
        return bool(left)
    one, other = _number(left), _number(right)
    if one is not None and other is not None:
        return one == other
    parts, others = _parts(left), _parts(right)
    return len(parts) == len(others) > 1 and all(equal_answers(a, b) for a, b in zip(parts, others, strict=True))


def _bare(text: str) -> str:
    """An answer without its dressing."""
    text = text.strip().strip("$").strip()
    text = _DRESSING.sub(lambda match: match.group(1) or "", text)
    text = _FRACTION.sub(lambda match: f"({match.group(1) or match.group(2)})/({match.group(3) or match.group(4)})", text)
    text = (
        text.replace(r"\%", "%")
        .replace(r"\$", "")
        .replace("$", "")
        .replace(r"\cdot", "*")
        .replace(r"\times", "*")
        .replace("^{\\circ}", "")
        .replace("^\\circ", "")
    )
    text = re.sub(r"(?<=\d),(?=\d{3}(?:\D|$))", "", text)
    text = _NAMED.sub("", text.strip())
    return re.sub(r"\s+", "", text).rstrip(".").casefold()


def _number(bare: str) -> Fraction | None:
    """The number that a bare answer is; None if it is none."""
    if len(bare) > _LONGEST_NUMBER:
        return None
    percent, text = bare.endswith("%"), bare.removesuffix("%").replace("(", "").replace(")", "")
    over, _, under = text.partition("/")
    if not all(re.fullmatch(r"[-+]?(?:\d+\.?\d*|\.\d+)", part) for part in ([over, under] if "/" in text else [over])):
        return None
    divisor = Fraction(under) if "/" in text else Fraction(1)
    return None if divisor == 0 else Fraction(over) / divisor / (100 if percent else 1)


def _parts(bare: str) -> list[str]:
    """The parts of a list, a tuple or an interval, its brackets with the first and the last."""
    parts: list[str] = [""]
    depth = 0
    for sign in bare:
        depth += (sign in "{[(") - (sign in "}])")
        if sign == "," and depth <= (bare[:1] in ("(", "[", "{")):
            parts.append("")
        else:
            parts[-1] += sign
    if len(parts) > 1 and bare[:1] in ("(", "[", "{") and bare[-1:] in (")", "]", "}"):
        return [bare[0], parts[0][1:], *parts[1:-1], parts[-1][:-1], bare[-1]]
    return parts
