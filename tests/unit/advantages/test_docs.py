"""docs/algorithms.md says of each estimator what the code says."""

import inspect
import re
from pathlib import Path

import pytest

from penstock import advantages
from penstock.advantages import ESTIMATORS, RowKind, declaration
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


@pytest.mark.parametrize("name", [*ESTIMATORS, "pass_at_k_rewards", "discounted_returns"])
def test_each_name_has_its_file_tests_and_citation(name: str) -> None:
    text, function = section(name), getattr(advantages, name)
    assert f"- File: `{Path(inspect.getfile(function)).relative_to(ROOT)}`" in text
    tests = re.findall(r"`(tests/[^`]+)`", text)
    assert tests
    assert all(re.search(rf"\b{name}\b", (ROOT / path).read_text()) for path in tests)
    cited = set(re.findall(r"arXiv:\d{4}\.\d{5}", function.__doc__))
    assert cited <= set(re.findall(r"arXiv:\d{4}\.\d{5}", text))
    assert cited or name in ("slime_normalize", "discounted_returns")
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
    assert found.row is RowKind.STEP
    found.check_options({"bonus": 0.25})
