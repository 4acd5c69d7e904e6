from pathlib import Path

import pytest

from penstock.advantages import ESTIMATORS, estimator, grpo, rloo


def test_built_in_estimators_have_names() -> None:
    assert estimator("grpo") is grpo
    assert estimator("rloo") is rloo
    assert set(ESTIMATORS) == {"grpo", "rloo"}


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="estimator 'grop' is unknown, did you mean 'grpo'"):
        estimator("grop")


def test_a_function_of_any_module_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_credit_by_path.py").write_text("def flat(rewards, group):\n    return rewards\n\nNOT_ONE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert estimator("my_credit_by_path:flat")([1.0], [0]) == [1.0]
    with pytest.raises(ValueError, match="has no 'falt', did you mean 'flat'"):
        estimator("my_credit_by_path:falt")
    with pytest.raises(ValueError, match="is 3, which cannot be called"):
        estimator("my_credit_by_path:NOT_ONE")


@pytest.mark.parametrize("name", ["no_such_module:f", ":f", "..relative:f"])
def test_a_module_that_is_not_there_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="cannot import"):
        estimator(name)


def test_an_installed_package_can_offer_an_estimator_but_not_replace_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_credit_by_entry.py").write_text("def halves(rewards, group):\n    return [r / 2 for r in rewards]\n")
    info = tmp_path / "my_credit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-credit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock.advantages]\nhalves = my_credit_by_entry:halves\ngrpo = my_credit_by_entry:halves\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert estimator("halves")([4.0], [0]) == [2.0]
    assert estimator("grpo") is grpo
    with pytest.raises(ValueError, match="did you mean 'halves'"):
        estimator("halfs")
