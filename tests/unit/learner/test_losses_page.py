"""The page about losses names what there is, and only what there is."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.batching.filters import FILTERS
from penstock.learner.losses import LOSSES

ROOT = Path(__file__).parents[3]
# The two halves of the page may stand in one file with the estimators.
PAGE = "\n".join(path.read_text() for path in (ROOT / "docs" / "losses.md", ROOT / "docs" / "algorithms.md") if path.exists())


def test_every_loss_has_a_heading_with_formula_file_test_and_citation() -> None:
    for name in LOSSES:
        section = PAGE.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert f"src/penstock/learner/losses/{name}.py" in section, name
        assert "\n    " in section and "- Test: " in section and ("arxiv.org" in section or "doi.org" in section), name


def test_every_filter_has_a_row() -> None:
    assert all(f"| `{name}` |" in PAGE for name in FILTERS)


def test_files_that_it_names_exist() -> None:
    named = re.findall(r"`((?:src|tests)/[\w./]+)`", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
