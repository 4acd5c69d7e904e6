import asyncio
from pathlib import Path

import pytest

from penstock.clock import SystemClock
from penstock.orchestrator.config import load_run
from penstock.orchestrator.evaluation import Evaluator
from penstock.orchestrator.plan import eval_result
from penstock.orchestrator.rundir import RunDir
from penstock.process.supervisor import supervise
from penstock.types import Version


def version(number: int) -> Version:
    return Version(run="tiny", version=number, digest=f"{number:032x}")


def weights(run_dir: RunDir, *numbers: int) -> None:
    """Only these are kept."""
    for path in run_dir.weights.iterdir():
        path.unlink()
    for number in numbers:
        (run_dir.weights / f"{number:032x}.safetensors").write_bytes(b"")


@pytest.fixture
def run_dir(run_yaml: Path) -> RunDir:
    run_dir = load_run(run_yaml).run_dir
    run_dir.make()
    return run_dir


def looks(run_yaml: Path, run_dir: RunDir, *seen: tuple[int, int]) -> set[str]:
    """Weights that are held for evaluation after looks at a run that has made so many updates and kept these weights only."""

    async def look() -> None:
        async with supervise(SystemClock()) as children:
            evaluator = Evaluator(load_run(run_yaml, ["eval.every_updates=10"]), run_dir, children, "http://127.0.0.1:9")
            for update, kept in seen:
                weights(run_dir, kept)
                evaluator.look(update, version(update))

    asyncio.run(look())
    return {str(int(path.stem, 16)) for path in run_dir.evals.glob("*.safetensors")}


def test_a_multiple_of_the_interval_that_was_passed_is_due_once(run_yaml: Path, run_dir: RunDir) -> None:
    assert looks(run_yaml, run_dir, (9, 9), (11, 11), (12, 12), (19, 19), (20, 20)) == {"11", "20"}


def test_weights_that_went_out_of_use_before_they_could_be_held_are_replaced_by_the_next(run_yaml: Path, run_dir: RunDir) -> None:
    assert looks(run_yaml, run_dir, (10, 11), (11, 12), (12, 12), (13, 13)) == {"12"}


def test_what_an_earlier_life_did_not_get_to_is_due_and_what_it_did_is_not(run_yaml: Path, run_dir: RunDir) -> None:
    eval_result(run_dir, 21).write_text("{}")
    assert looks(run_yaml, run_dir, (25, 25)) == set()
    assert looks(run_yaml, run_dir, (34, 34)) == {"34"}
