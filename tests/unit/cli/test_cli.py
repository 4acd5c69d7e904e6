"""The command line as a person meets it: one clear line, an exit code."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from penstock import __version__
from penstock.cli import main
from penstock.cli.looking import token_of
from penstock.errors import ConfigError
from penstock.orchestrator.rundir import RunDir

RUN = """
run: {name: tiny, updates: 3, dir: DIR/runs}
model: {path: DIR/model}
envs: {sort: {kind: sort}}
batch: {groups_per_update: 2}
"""


def penstock(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a verb. In this process: what takes long is the imports, and they are done once."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), out.getvalue(), error.getvalue()


@pytest.fixture
def run_yaml(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("DIR", str(tmp_path)))
    return path


def refused(*words: str) -> tuple[int, str]:
    """Exit code and the one line that a refusal consists of."""
    code, out, error = penstock(*words)
    assert out == ""
    assert error.startswith("penstock: ")
    assert error.count("\n") == 1
    return code, error


def test_help_names_the_verbs_and_needs_no_torch() -> None:
    program = "import sys, runpy; sys.argv = ['penstock', '--help']\ntry: runpy.run_module('penstock', run_name='__main__')\nexcept SystemExit: pass\n"
    program += "print('heavy:', sorted({'torch', 'transformers', 'numpy', 'aiohttp', 'starlette'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    verbs = ("demo", "train", "eval", "serve", "buffer", "worker", "gateway", "init", "status", "logs", "stop", "verify", "replay", "ledger", "where")
    for verb in (*verbs, "export", "check", "whatif"):
        assert f"\n  {verb} " in done.stdout
    assert "learner" not in done.stdout.split("Commands:")[1]
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_it_says_which_version_it_is() -> None:
    assert penstock("--version") == (0, f"penstock {__version__}\n", "")
    assert metadata.version("penstock") == __version__


def test_a_worker_loads_no_server_and_no_store() -> None:
    program = "import sys; import penstock.orchestrator.parts, penstock.rollout.worker\n"
    program += "print(sorted({'torch', 'transformers', 'starlette', 'uvicorn', 'sqlite3', 'penstock.httpd', 'penstock.buffer.core'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout == "[]\n"


def test_a_dry_run_prints_the_plan_and_makes_nothing(run_yaml: Path) -> None:
    code, out, _ = penstock("train", str(run_yaml), "envs.sort.replicas=2", "--dry-run")
    assert code == 0
    assert "2 worker(s) for sort" in out
    assert "credits" in out
    assert not (run_yaml.parent / "runs").exists()


def test_a_module_in_the_directory_that_one_works_in_can_be_named(run_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_yaml.parent / "own_credit_here.py").write_text("def mine(rewards, group):\n    return [0.0 for _ in rewards]\n")
    words = ("train", str(run_yaml), "--dry-run", "algorithm.adv_estimator=own_credit_here:mine")
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "cannot import 'own_credit_here'" in refused(*words)[1]
    monkeypatch.chdir(run_yaml.parent)
    assert penstock(*words)[0] == 0


def test_a_file_of_ones_own_takes_the_place_of_no_module_that_is_needed(tmp_path: Path) -> None:
    for name in ("inspect", "queue", "random", "typer"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    for words in (("penstock", "buffer", "--help"), ("penstock", "--version")):
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_config_is_one_line_and_exit_2(run_yaml: Path) -> None:
    for word, sentence in (
        ("learner.lrr=1", "did you mean learner.lr?"),
        ("run.updates=many", "run.updates: must be an integer"),
        ("model.path=missing", "is not a model directory"),
        ("nonsense", "an override must look like key.sub=value"),
    ):
        code, line = refused("train", str(run_yaml), word)
        assert code == 2
        assert sentence in line
    assert refused("train", str(run_yaml.parent / "absent.yaml"))[0] == 2
    assert not (run_yaml.parent / "runs").exists()


def test_a_run_directory_that_cannot_be_written_is_one_line(run_yaml: Path) -> None:
    (run_yaml.parent / "file").write_text("")
    code, line = refused("train", str(run_yaml), f"run.dir={run_yaml.parent / 'file'}")
    assert code == 2
    assert "cannot write to the run directory" in line


def test_a_second_run_of_the_same_name_is_refused_while_the_first_lives(run_yaml: Path) -> None:
    run_dir = RunDir(run_yaml.parent / "runs" / "tiny")
    run_dir.make()
    with run_dir.held():
        for words in ((), ("--fresh",)):
            code, line = refused("train", str(run_yaml), *words)
            assert code == 1
            assert "run tiny is running already" in line


def test_a_server_whose_port_is_taken_says_so_before_it_loads_anything(run_yaml: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words in (("buffer", "--dir", str(run_yaml.parent / "store")), ("serve", "--model", str(run_yaml.parent / "model"))):
            code, line = refused(*words, "--port", port)
            assert code == 1
            assert f"cannot listen on 127.0.0.1:{port}" in line and "choose another port" in line


def test_a_server_for_others_needs_a_token_and_every_one_a_model_it_knows(run_yaml: Path) -> None:
    code, line = refused("buffer", "--dir", str(run_yaml.parent / "store"), "--host", "0.0.0.0")
    assert code == 2
    assert "needs a token" in line
    code, line = refused("buffer", "--dir", str(run_yaml.parent / "store"), "--max-bytes", "-5")
    assert (code, "max_bytes must be 1048576 or more, got -5" in line) == (2, True)
    assert not (run_yaml.parent / "store").exists()
    code, line = refused("serve", "--model", str(run_yaml.parent / "absent"))
    assert code == 2
    assert "not a model directory" in line
    (run_yaml.parent / "other").mkdir()
    (run_yaml.parent / "other" / "config.json").write_text('{"model_type": "gpt2"}')
    code, line = refused("serve", "--model", str(run_yaml.parent / "other"), "--port", "0")
    assert code == 2
    assert "model_type 'gpt2' is not served" in line


def test_questions_about_a_run_that_is_not_there_are_one_line(tmp_path: Path) -> None:
    for verb in ("status", "logs", "stop", "verify", "replay"):
        code, line = refused(verb, "absent", "--dir", str(tmp_path))
        assert code == 2
        assert "no run 'absent'" in line


def test_a_finished_run_prints_its_summary_and_starts_nothing(run_yaml: Path) -> None:
    run_dir = RunDir(run_yaml.parent / "runs" / "tiny")
    run_dir.make()
    scores = {"greedy": 0.25, "sampled": 0.5}
    fields = {"eval_before": scores, "eval_after": scores, "updates": 3, "wall_seconds": 1, "cpu_seconds": 1, "tokens_sampled": 7, "tokens_trained": 5}
    agreement = {"p999": 0.0, "max": 0.0, "tokens": 5, "mixed_kv": 0}
    run_dir.summary.write_text(json.dumps({**fields, "mismatch": agreement, "ledger_imbalance": 0, "restarts": 0, "weights_digest": "ab"}))
    code, out, _ = penstock("train", str(run_yaml))
    assert code == 0
    assert "3 updates" in out
    assert "greedy 0.250" in out
    assert not run_dir.state.exists()


def test_logs_shows_the_end_of_one_log_or_of_all(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "tiny")
    run_dir.make()
    for part in ("learner", "buffer"):
        (run_dir.logs / f"{part}.log").write_text("".join(f"{part} {number}\n" for number in range(30)))
    assert penstock("logs", "tiny", "learner", "-n", "2", "--dir", str(tmp_path))[1] == "learner 28\nlearner 29\n"
    assert penstock("logs", "tiny", "-n", "1", "--dir", str(tmp_path))[1] == "==> buffer\nbuffer 29\n==> learner\nlearner 29\n"
    assert refused("logs", "tiny", "server-9", "--dir", str(tmp_path))[0] == 2
    assert penstock("logs", "tiny", "learner", "-n", "1", "--follow", "--dir", str(tmp_path))[1] == "learner 29\n"


def test_stopping_a_run_that_does_not_run_is_no_error(tmp_path: Path) -> None:
    RunDir(tmp_path / "tiny").make()
    done = subprocess.run([sys.executable, "-m", "penstock", "stop", "tiny", "--dir", str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run tiny is not running\n", "")


def test_a_child_whose_parent_is_gone_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-m", "penstock", "--help"], env={**os.environ, "PENSTOCK_PARENT": "1"}, capture_output=True)
    assert done.returncode == -9


def test_a_spare_runs_the_verb_that_it_is_told_and_ends_quietly_when_nobody_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(["status", "absent", "--dir", str(tmp_path)]) + "\n"))
    assert "no run 'absent'" in refused("spare", "json")[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert penstock("spare", "json") == (0, "", "")


def test_a_warm_up_that_there_is_not_is_refused(tmp_path: Path) -> None:
    code, line = refused("init", "model", str(tmp_path / "model"), "--warm-up", "chess")
    assert code == 2
    assert "'chess'" in line
    assert "textworld" in line


def test_a_token_file_of_a_client_may_be_the_servers_own(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("one-secret\n")
    assert token_of(file) == "one-secret"
    file.write_text("# who may what\nproduce=p-secret\nconsume,view=c-secret\nview=v-secret\n")
    assert token_of(file) == "c-secret"
    file.write_text("")
    with pytest.raises(ConfigError, match="names no token"):
        token_of(file)


def test_a_gateway_whose_token_file_names_no_token_is_not_open_to_all(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# none yet\n")
    words = ("--engine", "http://127.0.0.1:1", "--buffer", "http://127.0.0.1:2", "--model", str(tmp_path), "--token-file", str(tmp_path / "tokens"))
    code, line = refused("gateway", *words)
    assert (code, "names no token" in line) == (2, True)
