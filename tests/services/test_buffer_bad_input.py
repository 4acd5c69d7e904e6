"""Bad input on the native routes, row by row: each is told what is wrong, nothing of it is kept, and the next good write goes through."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import msgspec
import pytest
from tests.services.buffers import Process, group, rollout
from tests.services.sabotage import SULKS_ON_NATIVE_ROUTES, running

from penstock.buffer.client import BufferClient, api
from penstock.types import CutRequest, Laws
from penstock.wire import encode_json, encode_msgpack, join_items

_names = count()


class Run:
    """A run of its own with an open group of two."""

    def __init__(self, process: Process, laws: str = "{}") -> None:
        self.process, self.name = process, f"run-{next(_names)}"
        self.path = f"/v1/runs/{self.name}"
        assert process.post(self.path, b'{"laws": %s, "initial_digest": "00"}' % laws.encode())[0] == 200
        self.open(0)

    def open(self, index: int) -> None:
        wanted = {"groups": [{"id": f"s/0/{index}", "environment": "env", "problem_id": "p", "size": 2, "first_estimate": 10}]}
        assert self.process.post(f"{self.path}/groups", json.dumps(wanted).encode())[0] == 200

    def write(self, *bodies: bytes) -> tuple[int, bytes]:
        return self.process.post(f"{self.path}/rollouts", join_items(bodies, "json"))

    def good(self, index: int = 0, member: int = 1) -> bytes:
        return encode_json(rollout(f"s/0/{index}", member, run=self.name, reward=0.125))

    def takes_a_good_write(self) -> None:
        """At once. Member 1 is free in every test: what was wrong was about member 0, or about something else."""
        started = time.monotonic()
        status, answer = self.write(self.good())
        assert time.monotonic() - started < 1, "a good write took more than a second"
        assert (status, json.loads(answer)["rollouts"][0]["code"]) == (200, None), answer
        assert self.process.get(f"{self.path}/ledger")["imbalance"] == 0


@pytest.fixture
def run(process: Process) -> Run:
    return Run(process)


def error_of(answer: bytes) -> dict[str, str]:
    found = json.loads(answer)["error"]
    assert set(found) == {"code", "message", "request_id"}
    return dict(found)


BAD_REWARDS = ["NaN", "Infinity", "1e999", '"nan"', '"1"', "true", "null", None]


@pytest.mark.parametrize("reward", BAD_REWARDS, ids=str)
def test_a_bad_reward_is_refused(run: Run, reward: str | None) -> None:
    good = run.good(member=0)
    bad = good.replace(b'"reward":0.125,', b"" if reward is None else b'"reward":%s,' % reward.encode())
    assert bad != good
    status, answer = run.write(bad)
    assert (status, error_of(answer)["code"]) == (422, "invalid"), answer
    assert "reward" in error_of(answer)["message"]
    assert run.process.get(f"{run.path}/groups/s/0/0")["rollouts"] == []
    run.takes_a_good_write()


def test_a_buffer_that_has_no_time_after_bad_input_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch, SULKS_ON_NATIVE_ROUTES) as process:
        run = Run(process)
        with pytest.raises(AssertionError, match="more than a second"):
            test_a_bad_reward_is_refused(run, "NaN")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[-0.5,-0.25]", b"[0.5,-0.25]"),
        (b"[-0.5,-0.25]", b"[NaN,-0.25]"),
        (b"[-0.5,-0.25]", b"[-1e999,-0.25]"),
        (b"[-0.5,-0.25]", b"[-0.5]"),
        (b'"count":2', b'"count":3'),
        (b'"ids":[4,5]', b'"ids":[4,-5]'),
        (b'"ids":[4,5]', b'"ids":[4,4294967296]'),
        (b'"version":0', b'"version":7'),
        (b'"rollout_uid":"s/0/0:0:0"', b'"rollout_uid":"a b"'),
        (b'"rollout_uid":"s/0/0:0:0"', b'"rollout_uid":"../x"'),
        (b'"rollout_uid":"s/0/0:0:0"', b'"rollout_uid":"annotation:1"'),
        (b'"rollout_uid":"s/0/0:0:0"', b'"rollout_uid":"%s"' % (b"x" * 257)),
        (b'"rollout_uid":"s/0/0:0:0"', b'"rollout_uid":"a\\u0000b"'),
        (b'"rollout_uid":"s/0/0:0:0",', b""),
        (b'"content":"13"', b'"content":"\\ud800"'),
    ],
    ids=lambda word: word.decode()[:40],
)
def test_a_bad_value_in_a_rollout_is_refused(run: Run, old: bytes, new: bytes) -> None:
    good = run.good(member=0)
    bad = good.replace(old, new)
    assert bad != good, good
    status, answer = run.write(bad)
    assert (status, error_of(answer)["code"]) == (422, "invalid"), answer
    assert run.process.get(f"{run.path}/groups/s/0/0")["rollouts"] == []
    run.takes_a_good_write()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"not json", 400),
        (b'{"laws": {}', 400),
        (b'{"laws": {}, "laws": {}, "initial_digest": "x"}', 400),
        (b"[" * 40 + b"]" * 40, 400),
        (b'{"laws": {}, "initial_digest": "\xff"}', 400),
        (b"", 400),
        (b'{"laws": {"max_lagg": 3}, "initial_digest": "x"}', 422),
        (b'{"laws": {"max_lag": "3"}, "initial_digest": "x"}', 422),
        (b'{"laws": {"max_lag": -5}, "initial_digest": "x"}', 422),
        (b'{"laws": {}, "initial_digest": "../../x"}', 422),
        (b'{"laws": {}, "initial_digest": "\\ud800"}', 422),
        (b"x" * (17 * 1024 * 1024), 413),
    ],
    ids=lambda word: str(word)[:40],
)
def test_a_body_that_cannot_be_read_is_refused(run: Run, body: bytes, expected: int) -> None:
    status, answer = run.process.post("/v1/runs/other", body)
    assert status == expected, answer
    assert error_of(answer)["message"]
    assert "other" not in run.process.get("/v1/runs")["runs"]
    run.takes_a_good_write()


@pytest.mark.parametrize("body", [b"[1, 2", b"\x93\x01", b"\xc1", b'{"a": 1}'], ids=repr)
@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_batch_that_is_no_array_of_items_is_refused_as_a_whole(run: Run, body: bytes, form: str) -> None:
    status, answer = run.process.post(f"{run.path}/rollouts", body, f"application/{form}")
    assert (status, error_of(answer)["code"]) == (400, "malformed"), answer
    run.takes_a_good_write()


def test_one_bad_rollout_in_a_batch_does_not_spoil_the_others(run: Run) -> None:
    bad = run.good(member=0).replace(b'"reward":0.125', b'"reward":"1"')
    status, answer = run.write(bad, run.good())
    assert status == 200
    assert [found["code"] for found in json.loads(answer)["rollouts"]] == ["invalid", None]


def test_a_version_that_is_too_old_is_stored_and_its_group_is_dropped_as_stale(process: Process) -> None:
    run = Run(process, '{"max_lag": 0}')
    run.open(1)
    assert run.write(run.good(0, 0), run.good(0, 1))[0] == 200
    term = json.loads(process.post(f"{run.path}/term", b'{"owner": "me", "checkpoint": 0}')[1])["term"]
    cut = {"term": term, "request": {"groups_per_update": 1}}
    assert json.loads(process.post(f"{run.path}/updates/0/cut", json.dumps(cut).encode())[1])["plan"] is not None
    assert process.post(f"{run.path}/updates/0/outcome", json.dumps({"term": term, "digest": "11"}).encode())[0] == 200
    status, answer = run.write(run.good(1, 0))
    assert (status, json.loads(answer)["rollouts"][0]["stale"]) == (200, True), answer
    assert process.get(f"{run.path}/ledger")["balances"][0]["groups"] == {"bound": 1, "dropped(stale)": 1}
    run.open(2)
    fresh = encode_json(rollout("s/0/2", 0, run=run.name, version=1))
    assert json.loads(run.write(fresh)[1])["rollouts"][0]["code"] is None


def test_a_member_that_is_taken_one_too_many_and_one_of_an_ended_group_are_refused(run: Run) -> None:
    assert run.write(run.good(0, 0), run.good(0, 1))[0] == 200
    again = json.loads(run.write(run.good(0, 0))[1])["rollouts"][0]
    assert (again["code"], again["duplicate"]) == (None, True)
    other = encode_json(rollout("s/0/0", 0, run=run.name, uid="other"))
    assert error_of(run.write(other)[1])["code"] == "conflict"
    assert run.write(other)[0] == 409
    assert run.write(encode_json(rollout("s/0/0", 2, run=run.name)))[0] == 409
    assert run.write(encode_json(rollout("s/0/0", 0, run=run.name, reward=0.5)))[0] == 409
    assert run.write(encode_json(rollout("s/0/9", 0, run=run.name)))[0] == 404
    run.open(3)
    assert run.write(encode_json(rollout("s/0/3", 0, run=run.name, retry=1)))[0] == 409
    assert run.write(run.good(3, 1))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream"])
def test_a_body_of_another_kind_is_refused(run: Run, kind: str) -> None:
    status, answer = run.process.post(f"{run.path}/rollouts", run.good(), kind)
    assert (status, error_of(answer)["code"]) == (415, "media_type")
    status, answer = run.process.post(f"{run.path}/sessions", b"{}", kind)
    assert status == 415
    run.takes_a_good_write()


def test_a_compressed_body_is_refused(run: Run) -> None:
    assert run.process.ask("POST", f"{run.path}/rollouts", b"x", {"Content-Encoding": "gzip"})[0] == 415
    run.takes_a_good_write()


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/groups", b'{"groups": [{"id": "s/0/5", "environment": "bad env", "problem_id": "p", "size": 2}]}', 422),
        ("/groups", b'{"groups": [{"id": "../x", "environment": "env", "problem_id": "p", "size": 2}]}', 422),
        ("/groups", b'{"groups": [{"id": "s/0/5", "environment": "env", "problem_id": "p", "size": 2, "seed": 18446744073709551615}]}', 422),
        ("/groups", b'{"groups": [{"id": "s/0/0", "environment": "env", "problem_id": "q", "size": 2}]}', 409),
        ("/groups", b'{"groups": [{"id": "s/0/5", "environment": "env", "problem_id": "p", "size": 1000000000}]}', 422),
        ("/groups", b'{"groups": [{"id": "s/0/5", "environment": "env", "problem_id": "p", "size": 0}]}', 422),
        ("/updates/99999999999999999999/cut", b'{"term": 1, "request": {"groups_per_update": 1}}', 422),
        ("/updates/0/cut", b'{"term": 7, "request": {"groups_per_update": 1}}', 409),
        ("/updates/0/cut", b'{"term": 1, "request": {"groups_per_update": 1}, "wait_seconds": -1}', 422),
        ("/updates/0/outcome", b'{"term": 7, "digest": "11"}', 409),
        ("/term/renew", b'{"term": 7}', 409),
        ("/journal/e?index=" + "9" * 5000, b"[]", 422),
        ("/journal/e?index=3", b"[]", 422),
        ("/sessions/nobody/beat", b"", 409),
        ("/sessions/nobody/claim", b'{"count": 1}', 409),
        ("/sessions/s/claim", b'{"count": 0}', 422),
        ("/sessions/s/claim", b'{"count": -1}', 422),
        ("/sessions/s/claim", b'{"count": 1000000000}', 422),
        ("/sessions/s/claim", b'{"count": "8"}', 422),
        ("/sessions/s/claim", b'{"count": 1, "wait_seconds": -1}', 422),
        ("/sessions/s/claim", b'{"count": 1, "wait_seconds": NaN}', 422),
        ("/sessions/s/claim", b'{"count": 1, "wait_seconds": 1e9}', 422),
        ("/leases", b'{"lease": "l", "consumer": "c", "request": {"groups": 0}}', 422),
        ("/leases", b'{"lease": "l", "consumer": "c", "request": {"items": -1}}', 422),
        ("/leases", b'{"lease": "l", "consumer": "c", "request": {"groups": "8"}}', 422),
        ("/leases", b'{"lease": "l", "consumer": "c", "request": {"groups": 1, "seconds": 1e9}}', 422),
        ("/leases", b'{"lease": "a/b", "consumer": "c"}', 422),
        ("/leases", b'{"lease": "l", "consumer": "c", "wait_seconds": 1e9}', 422),
        ("/leases/nothing/settle", b'{"consumer": "c"}', 404),
        ("/leases/nothing/renew", b'{"consumer": "c"}', 404),
        ("/enrichment", b'{"lease": "l", "consumer": "c", "count": 0}', 422),
        ("/enrichment", b'{"lease": "l", "consumer": "c", "seconds": 0}', 422),
        ("/enrichment/nothing/renew", b'{"consumer": "c"}', 404),
        ("/annotations", b'{"schema": 1, "kind": "annotation", "value": {"run": "%s", "rollout_uid": "nothing", "name": "judge"}}', 404),
    ],
    ids=lambda word: str(word)[:60],
)
def test_a_bad_request_is_refused_and_stops_nobody(run: Run, path: str, body: bytes, expected: int) -> None:
    body = body.replace(b"%s", run.name.encode())
    status, answer = run.process.post(run.path + path, body)
    assert status == expected, answer
    assert error_of(answer)["message"]
    run.takes_a_good_write()


@pytest.mark.parametrize(
    "path", ["/v1/runs/none", "/v1/runs/none/ledger", "/v1/runs/none/export", "/v1/runs/none/journal/e", "/nowhere", "/v1/runs/none/where/x"]
)
def test_what_is_not_there_is_404_in_the_shape_of_errors(run: Run, path: str) -> None:
    status, answer = run.process.ask("GET", path)
    assert (status, error_of(answer)["code"]) == (404, "unknown")


def test_a_method_that_a_path_does_not_take_is_405_with_those_that_it_does(run: Run) -> None:
    status, answer = run.process.ask("DELETE", run.path)
    assert (status, error_of(answer)["code"]) == (405, "method")
    assert "GET, HEAD, POST" in error_of(answer)["message"]


@pytest.mark.parametrize("query", ["state=lost", "where=reward", "where=colour>1", "where=reward>NaN", "enviroment=env", "status=fine"])
def test_an_export_of_what_means_nothing_is_refused(run: Run, query: str) -> None:
    status, answer = run.process.ask("GET", f"{run.path}/export?{query}")
    assert (status, error_of(answer)["code"]) == (422, "invalid")


def test_text_that_could_do_harm_elsewhere_is_stored_as_it_is_and_makes_one_log_line_at_most(run: Run) -> None:
    text = "<script>alert(1)</script> \x1b[31m {{ 7*7 }} \r\nGET /evil HTTP/1.1\r\n"
    body = run.good(member=0).replace(b'"content":"13"', b'"content":' + msgspec.json.encode(text))
    assert run.write(body)[0] == 200
    (stored,) = [json.loads(line) for line in run.process.ask("GET", f"{run.path}/export")[1].splitlines()]
    assert stored["rollout"]["trace"]["marks"][1]["message"]["content"] == text
    assert "evil" not in (run.process.directory / "log").read_text()
    run.takes_a_good_write()


async def test_a_journal_entry_with_other_content_is_refused_and_stops_nobody(run: Run) -> None:
    path = f"{run.path}/journal/episode?index=0"
    assert run.process.post(path, b'[{"a": 1}]')[0] == 200
    assert run.process.post(path, b'[{"a": 1}]')[0] == 200
    assert run.process.post(path, b'[{"a": 2}]')[0] == 409
    run.takes_a_good_write()


async def test_an_older_term_is_refused(run: Run) -> None:
    async with BufferClient(run.process.url, run.name) as client:
        first = await client.take_term(api.TakeTerm(owner="first", checkpoint=0))
        await client.take_term(api.TakeTerm(owner="second", checkpoint=0, replaces="first"))
        await client.open_run(Laws(), "00")
        await client.open_groups([group(7)])
    body = {"term": first.term, "request": msgspec.to_builtins(CutRequest(groups_per_update=1))}
    status, answer = run.process.post(f"{run.path}/updates/0/cut", json.dumps(body).encode())
    assert (status, error_of(answer)["code"]) == (409, "fenced")
    run.takes_a_good_write()


def test_msgpack_is_as_strict_as_json(run: Run) -> None:
    good = encode_msgpack(rollout("s/0/0", 0, run=run.name, reward=0.125))
    nan = good.replace(b"\xcb\x3f\xc0\x00\x00\x00\x00\x00\x00", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00")
    assert nan != good
    status, answer = run.process.post(f"{run.path}/rollouts", join_items([nan]), "application/msgpack")
    assert (status, error_of(answer)["code"]) == (422, "invalid"), answer
    assert run.process.post(f"{run.path}/rollouts", join_items([good]), "application/msgpack")[0] == 200


def test_a_full_or_foreign_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 200)
    refused = subprocess.run([sys.executable, "-m", "penstock", "buffer", "--dir", str(tmp_path), "--port", "0"], capture_output=True, text=True, timeout=30)
    assert (refused.returncode, len(refused.stderr.strip().splitlines())) == (1, 1), refused.stderr
