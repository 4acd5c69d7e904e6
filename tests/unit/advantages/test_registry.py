from pathlib import Path

import numpy as np
import pytest

from penstock.advantages import ESTIMATORS, RowKind, copo, declaration, declared, declares, estimator, gigpo, grpo, rloo


def test_built_in_estimators_have_names() -> None:
    assert estimator("grpo") is grpo
    assert estimator("rloo") is rloo
    episodes = {"grpo", "dr_grpo", "rloo", "reinforce_pp", "remax", "opo", "maxrl", "slime_normalize"}
    assert set(ESTIMATORS) == episodes | {"gae", "gigpo", "rlvcr", "copo"}
    assert {name for name in ESTIMATORS if declared(name).row is RowKind.EPISODE} == episodes


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="estimator 'grop' is unknown, did you mean 'grpo'"):
        estimator("grop")
    with pytest.raises(ValueError, match="estimator is None; it must be a name"):
        estimator(None)  # type: ignore[arg-type]


def test_a_function_of_any_module_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_credit_by_path.py").write_text("def flat(rewards, group):\n    return rewards\n\nNOT_ONE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert estimator("my_credit_by_path:flat")([1.0], [0]) == [1.0]
    with pytest.raises(ValueError, match="has no 'falt', did you mean 'flat'"):
        estimator("my_credit_by_path:falt")
    with pytest.raises(ValueError, match="is 3, which cannot be called"):
        estimator("my_credit_by_path:NOT_ONE")


def test_a_module_that_breaks_when_it_is_imported_is_a_value_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_credit_broken.py").write_text("def f(:\n")
    info = tmp_path / "my_broken_credit-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-broken-credit\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[penstock.advantages]\nbroken = my_credit_broken:f\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"estimator 'my_credit_broken:f': cannot import 'my_credit_broken' \(SyntaxError"):
        estimator("my_credit_broken:f")
    with pytest.raises(ValueError, match=r"estimator 'broken': cannot load its entry point 'my_credit_broken:f' \(SyntaxError"):
        estimator("broken")


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


def test_a_declaration_says_what_an_estimator_needs() -> None:
    thinking = declared("rlvcr")
    assert thinking.row is RowKind.LEVEL
    assert thinking.columns == ("rewards", "group", "confidence", "cost", "thinking_group")
    assert thinking.optional_columns == ("trajectory", "base", "chosen", "level")
    assert thinking.options["cost_max"] == 250
    assert declared("gae").columns == ("step_rewards", "trajectory", "values")
    assert declared("reinforce_pp").options == {"baseline": "batch", "eps": 1e-6, "ddof": 1}
    assert [name for name in ESTIMATORS if declared(name).facts.trains_injected] == ["copo"]
    assert declared("maxrl").facts.least_reward == 0.0


def test_every_built_in_can_be_tried_with_its_defaults() -> None:
    for name in ESTIMATORS:
        declared(name).check_options({})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("grpo", {"nrom": "mean_norm"}, r"estimator 'grpo' has no option 'nrom' \(value 'mean_norm'\); did you mean 'norm'"),
        ("grpo", {"norm": "mean"}, "norm is 'mean', did you mean 'mean_norm'"),
        ("gigpo", {"gamma": 1.5}, "gamma is 1.5; it must lie in 0 to 1"),
        ("gigpo", {"gamma": "high"}, "gamma is 'high'; it must lie in 0 to 1"),
        ("gigpo", {"scores": 1.0}, "estimator 'gigpo' has no option 'scores'"),
        ("dr_grpo", {"eps": 1.0}, "It has: none"),
    ],
)
def test_options_are_tried_before_a_run_starts(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        declared(name).check_options(options)


def test_a_users_own_estimator_is_driven_by_the_names_of_its_parameters() -> None:
    @declares(trains_injected=True)
    def late(step_rewards, trajectory, *, scores=None, bonus=1.0):  # type: ignore[no-untyped-def]
        return np.asarray(scores) + bonus * np.asarray(step_rewards)

    found = declaration(late)
    assert (found.row, found.columns, found.optional_columns, found.options) == (RowKind.STEP, ("step_rewards", "trajectory"), ("scores",), {"bonus": 1.0})
    assert found.facts.trains_injected
    assert found.apply({"step_rewards": [0.0, 1.0], "trajectory": [0, 0], "scores": [1.0, 1.0], "anchor": [None, None]}, {"bonus": 2.0}).tolist() == [1.0, 3.0]
    with pytest.raises(ValueError, match="needs the column 'trajectory'"):
        found.apply({"step_rewards": [0.0]})


def test_a_column_by_keyword_without_a_default_is_needed() -> None:
    found = declaration(lambda rewards, group, *, trajectory, scores=None: np.asarray(rewards))
    assert (found.row, found.columns, found.by_keyword, found.optional_columns) == (
        RowKind.STEP,
        ("rewards", "group", "trajectory"),
        ("trajectory",),
        ("scores",),
    )
    found.check_options({})
    with pytest.raises(ValueError, match="needs the column 'trajectory'"):
        found.apply({"rewards": [1.0], "group": [0]})


def test_what_cannot_be_driven_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="needs 'reward', which is no column; did you mean 'rewards'"):
        declaration(lambda reward, group: reward)
    with pytest.raises(ValueError, match="name its columns and options instead"):
        declaration(lambda *columns: columns)
    with pytest.raises(ValueError, match="takes no column"):
        declaration(lambda: 0)
    with pytest.raises(ValueError, match=r"gave shape \(1,\) for 2 rows"):
        declaration(lambda rewards, group: [1.0]).check_options({})
    with pytest.raises(ValueError, match="gave inf for row 1"):
        declaration(lambda rewards, group: [1.0, np.inf]).check_options({})
    with pytest.raises(ValueError, match=r"gave \{'a': 1\}, which is no column of numbers"):
        declaration(lambda rewards, group: {"a": 1}).check_options({})


def test_what_is_no_column_is_named() -> None:
    with pytest.raises(ValueError, match="group is None; it must be a column with one entry per row"):
        grpo([1.0], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="anchor is None; it must be a column"):
        gigpo([1.0], [0], [0], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="thinking_group is 5; it must be a column"):
        copo([1.0], [0], [0.5], 5)  # type: ignore[arg-type]
