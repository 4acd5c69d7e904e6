import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.orchestrator.config import load_run
from penstock.orchestrator.plan import Ports, describe, eval_child, plan_run
from penstock.types import Version


async def owners(start: int) -> Sequence[str]:
    return ("--owner", f"life-{start}")


PORTS = Ports(buffer=15001, servers=(15002, 15003))


async def test_a_run_is_a_buffer_a_learner_servers_and_a_worker_for_each_replica(run_yaml: Path) -> None:
    config = load_run(run_yaml, ["envs.sort.replicas=2", "inference.servers=2", "envs.guess={kind: guess}"])
    plan = plan_run(config, config.run_dir, PORTS, owners)
    assert [server.name for server in plan.servers] == ["server-0", "server-1"]
    assert [worker.name for worker in plan.workers] == ["worker-sort-0", "worker-sort-1", "worker-guess-0"]
    assert plan.buffer.url == "http://127.0.0.1:15001"
    assert plan.buffer.program == (sys.executable, "-m", "penstock")
    words = list(await plan.workers[1].arguments(0))
    assert words[:2] == ["worker", str(config.run_dir.path)]
    assert words.count("--server") == 2


async def test_a_learner_is_told_who_it_is_and_has_a_spare_unless_told_otherwise(run_yaml: Path) -> None:
    config = load_run(run_yaml)
    learner = plan_run(config, config.run_dir, PORTS, owners).learner
    assert list(await learner.arguments(3))[-2:] == ["--owner", "life-3"]
    assert learner.ends
    assert learner.spare[0] == "spare"
    without = load_run(run_yaml, ["run.spare_learner=false"])
    assert plan_run(without, config.run_dir, PORTS, owners).learner.spare == ()


async def test_every_process_is_held_to_its_threads(run_yaml: Path) -> None:
    config = load_run(run_yaml, ["inference.threads=2"])
    plan = plan_run(config, config.run_dir, PORTS, owners)
    assert plan.servers[0].environment["OMP_NUM_THREADS"] == "2"
    assert plan.learner.environment["OMP_NUM_THREADS"] == plan.workers[0].environment["MKL_NUM_THREADS"] == "1"


async def test_an_evaluation_ends_and_names_its_result(run_yaml: Path) -> None:
    config = load_run(run_yaml)
    child = eval_child(config, config.run_dir, 20, Version(run="tiny", version=19, digest="ab"), PORTS.buffer_url)
    assert child.ends
    words = list(await child.arguments(0))
    assert words[words.index("--out") + 1] == str(config.run_dir.path / "evals" / "update_20.json")
    assert words[words.index("--version") + 1] == "19"
    assert words[words.index("--buffer") + 1] == PORTS.buffer_url


def test_the_plan_in_words_names_processes_budgets_and_credits(run_yaml: Path) -> None:
    text = describe(load_run(run_yaml, ["envs.sort.replicas=3", "freshness.max_lag=1", "freshness.tokens_per_update=500", "envs.sort.fraction=0.5"]))
    for words in ("3 worker(s) for sort", "2 groups an update", "groups of 4", "1000 tokens under way", "sort: 50%", "1 spare"):
        assert words in text


def test_the_plan_in_words_names_filters_and_what_the_policy_is_held_to(run_yaml: Path) -> None:
    words = ["algorithm.filters.zero_variance=", "algorithm.filters.over_long.max_tokens=9", "learner.reference=initial", "algorithm.loss.kl_coef=0.1"]
    text = describe(load_run(run_yaml, [*words, "algorithm.loss.entropy_coef=0.01"]))
    for expected in ("filters: zero_variance, over_long max_tokens=9", "KL (k3) to initial, coefficient 0.1", "entropy, coefficient 0.01"):
        assert expected in text
    assert "filters" not in describe(load_run(run_yaml))
