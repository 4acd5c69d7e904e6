"""docs/algorithms.md says of each estimator what the code says."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from penstock import advantages
from penstock.advantages import ESTIMATORS, RowKind, declaration
from penstock.advantages.config import GigpoConfig, RlvcrConfig
from penstock.advantages.reference import formula, table

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "algorithms.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, f"docs/algorithms.md has no section {name}"
    return found[1]


def test_the_table_is_the_one_that_is_printed() -> None:
    assert table() in PAGE, "python -m penstock.advantages prints another table"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_each_estimator_shows_its_formula(name: str) -> None:
    assert formula(name) in section(name)


def functions() -> list[str]:
    """Whatever a user calls with data."""
    found = [name for name in advantages.__all__ if inspect.isfunction(getattr(advantages, name))]
    return [name for name in found if name not in ("declaration", "declared", "declares", "estimator")]


@pytest.mark.parametrize("name", functions())
def test_each_public_function_is_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE or f"### {name}\n" in PAGE


@pytest.mark.parametrize("config", [GigpoConfig, RlvcrConfig])
def test_each_setting_of_an_estimator_with_a_section_of_its_own_is_explained(config: type) -> None:
    name = config.__name__.removesuffix("Config").lower()
    text = section(name) + section("State hashing functions")
    assert [field.name for field in fields(config) if not re.search(rf"\b{field.name}\b", text)] == []


def test_the_example_of_two_statistics_is_what_gigpo_gives() -> None:
    rows = dict(re.findall(r"^\| `(trajectories|steps)` \| [^|]+ \| ([^|]+ \| [^|]+) \|$", section("gigpo"), re.MULTILINE))
    for stats_over, shown in rows.items():
        found = advantages.gigpo([1.0, 0.0, 0.0, 0.0, 0.0], [0, 1, 1, 1, 1], [0] * 5, [None] * 5, stats_over=stats_over).episode
        assert shown == f"{found[0]:+.1f} | {found[1]:+.1f}"
    assert len(rows) == 2


@pytest.mark.parametrize("name", [*ESTIMATORS, "pass_at_k_rewards", "discounted_returns", "system_apply_gigpo_to_batch_steps"])
def test_each_name_has_its_file_tests_and_citation(name: str) -> None:
    text, function = section(name), getattr(advantages, name)
    assert f"- File: `{Path(inspect.getfile(function)).relative_to(ROOT)}`" in text
    tests = re.findall(r"`(tests/[^`]+)`", text)
    assert tests
    assert all(re.search(rf"\b{name}\b", (ROOT / path).read_text()) for path in tests)
    cited = set(re.findall(r"arXiv:\d{4}\.\d{5}", function.__doc__))
    assert cited <= set(re.findall(r"arXiv:\d{4}\.\d{5}", text))
    assert cited or name in ("slime_normalize", "discounted_returns", "system_apply_gigpo_to_batch_steps")
    assert len(text.split("\n\n")) >= 3  # formula, when to use it, where it is


@pytest.mark.parametrize("name", [*ESTIMATORS, "pass_at_k_rewards", "discounted_returns"])
def test_each_docstring_has_an_example(name: str) -> None:
    assert ">>> " in getattr(advantages, name).__doc__


def test_the_example_of_an_estimator_of_your_own_can_be_driven() -> None:
    code = re.search(r"```python\n# my_credit.py\n(.*?)```", PAGE, re.DOTALL)
    assert code
    names: dict[str, object] = {}
    exec(code[1], names)
    found = declaration(names["late_bloomer"])  # type: ignore[arg-type]
    assert (found.row, found.columns) == (RowKind.STEP, ("step_rewards", "trajectory", "scores"))
    found.check_options({"bonus": 0.25})
