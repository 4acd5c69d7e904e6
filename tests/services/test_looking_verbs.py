"""`penstock ledger`, `where` and `export`, on a directory and on a URL: both tell the same."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest
from tests.services.buffers import Process, group, rollout

from penstock.buffer.client import BufferClient
from penstock.buffer.findings import Finding
from penstock.cli import main
from penstock.errors import UnknownError
from penstock.types import Laws


def penstock(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a verb."""
    out, error = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), out.buffer.getvalue().decode(), error.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("runs") / "small" / "buffer"
    directory.mkdir(parents=True)
    (directory.parent / "run.lock").touch()
    running = Process(directory)

    async def fill() -> None:
        async with BufferClient(running.url, "small") as client:
            await client.open_run(Laws(), "0" * 32)
            await client.open_groups([group(0), group(1)])
            await client.write([rollout("s/0/0", member, run="small", reward=member) for member in range(2)])
            await client.write([rollout("s/0/1", 0, run="small")])

    asyncio.run(fill())
    yield running
    running.kill()


@pytest.fixture(params=["run directory", "buffer directory", "url"])
def place(request: pytest.FixtureRequest, process: Process) -> str:
    return {"run directory": str(process.directory.parent), "buffer directory": str(process.directory), "url": process.url}[request.param]


def test_ledger_is_a_table_that_adds_up(place: str) -> None:
    code, out, _ = penstock("ledger", place)
    rows = [line.split() for line in out.splitlines()]
    assert code == 0
    assert rows[0] == ["run", "small"]
    assert ["env", "train", "groups", "open", "1"] in rows
    assert ["env", "train", "groups", "ready", "1"] in rows
    assert ["env", "train", "groups", "=", "opened", "2"] in rows
    assert ["env", "train", "members", "pending", "1"] in rows
    assert ["env", "train", "members", "=", "issued", "4"] in rows
    assert rows[-1][:2] == ["imbalance", "0:"]


def test_ledger_speaks_json(place: str) -> None:
    (found,) = json.loads(penstock("ledger", place, "--json")[1])
    assert (found["run"], found["imbalance"], found["balances"][0]["groups"]) == ("small", 0, {"open": 1, "ready": 1})


def test_where_finds_a_group_a_member_and_a_rollout(process: Process) -> None:
    runs = str(process.directory.parent.parent)
    for options in (["--run", "small"], [], ["--url", process.url], ["--url", process.url, "--run", "small"]):
        code, out, error = penstock("where", "s/0/0", *options, "--dir", runs)
        assert code == 0, error
        assert out.startswith("group s/0/0 of run small\n  group s/0/0 is ready: 2 of 2 members accepted")
        assert "stored as s/0/0:1:0, ok, reward 1, 2 sampled tokens of version 0" in out
    assert "member s/0/0#1 of run small" in penstock("where", "s/0/0#1", "--dir", runs)[1]
    assert json.loads(penstock("where", "s/0/1:0:0", "--json", "--dir", runs)[1])[0]["kind"] == "rollout"


def test_where_says_in_one_line_that_there_is_nothing(process: Process, tmp_path: Path) -> None:
    for options in (["--dir", str(process.directory.parent.parent)], ["--url", process.url]):
        code, out, error = penstock("where", "nobody", *options)
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert "no group, member or rollout 'nobody'" in error
    code, _, error = penstock("where", "nobody", "--dir", str(tmp_path))
    assert (code, "--url" in error) == (2, True)


def test_export_writes_lines_or_parquet(place: str, tmp_path: Path) -> None:
    code, out, error = penstock("export", place, "--out", str(tmp_path / "all.jsonl"))
    assert (code, out.split()[0]) == (0, "3"), error
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["uid"] for row in rows] == ["s/0/0:0:0", "s/0/0:1:0", "s/0/1:0:0"]
    assert penstock("export", place, "--out", str(tmp_path / "some.parquet"), "--state", "ready", "--where", "reward>=0.5")[0] == 0
    table = pandas.read_parquet(tmp_path / "some.parquet")
    assert list(table["uid"]) == ["s/0/0:1:0"]
    assert json.loads(table["rollout"][0])["trace"]["segments"][1]["ids"] == [4, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "some.parquet"]
    assert len(penstock("export", place, "--out", "-", "--environment", "env")[1].splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--out", "x.csv"), 2, "must end in .jsonl or .parquet"),
        (("--out", "none/x.jsonl"), 2, "not a directory"),
        (("--out", "x.jsonl", "--state", "lost"), 1, "'lost' is none of"),
        (("--out", "x.jsonl", "--run", "other"), 1, "no run other"),
    ],
)
def test_an_export_that_cannot_be_made_leaves_no_file(place: str, words: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        found, _, error = penstock("export", place, *words)
    assert (found, message in error, error.count("\n")) == (code, True, 1), error
    assert list(tmp_path.iterdir()) == []


def test_nothing_at_a_place_is_told_in_one_line(tmp_path: Path) -> None:
    code, _, error = penstock("ledger", str(tmp_path))
    assert (code, error.count("\n")) == (2, 1)


def test_where_says_what_to_ask_for_whichever_run_knows_it(process: Process) -> None:
    # Last in this file: from here on the buffer has several runs.
    async def fill() -> None:
        async with BufferClient(process.url, "other") as client:
            await client.open_run(Laws(), "0" * 32)

    asyncio.run(fill())
    item = {"uid": "ü 1", "instance_id": "weiß", "messages": [], "reward": 1}
    assert process.post("/buffer/write", json.dumps(item).encode())[0] == 200
    told = {
        "weiß": "one for each pass: ask for wei%C3%9F/0",
        "s/0/0#7": "group s/0/0 has 2 members, counted from 0",
        "nobody": "no run has a group, member or rollout 'nobody'; looked in default, other, small",
    }
    for asked, words in told.items():
        for options in (["--dir", str(process.directory.parent.parent)], ["--url", process.url]):
            code, _, error = penstock("where", asked, *options)
            assert (code, words in error, error.count("\n")) == (1, True, 1), error
            assert "; run" not in error, "a run that knows nothing of the kind is not quoted"
    assert "stored as %C3%BC%201, ok" in penstock("where", "ü 1", "--url", process.url)[1]


def test_a_run_whose_own_record_is_damaged_is_told_by_the_buffer_that_serves_it(tmp_path: Path) -> None:
    async def filled(url: str) -> None:
        for run in ("sound", "torn"):
            async with BufferClient(url, run) as client:
                await client.open_run(Laws(), "0" * 32)

    async def verified(url: str, run: str) -> tuple[Finding, ...]:
        async with BufferClient(url, run) as client:
            return await client.verify()

    process = Process(tmp_path)
    try:
        asyncio.run(filled(process.url))
        process.kill()
        with contextlib.closing(sqlite3.connect(tmp_path / "store.sqlite")) as store, store:
            store.execute("UPDATE facts SET body = zeroblob(3) WHERE kind = 'run' AND run = 'torn'")
        process.start()
        (torn,) = asyncio.run(verified(process.url, "torn"))
        assert (torn.promise, torn.checked, "fails its checksum" in torn.broken[0]) == ("D3", "a run that cannot be opened", True)
        assert not any("torn" in sentence for finding in asyncio.run(verified(process.url, "sound")) for sentence in finding.broken)
        with pytest.raises(UnknownError, match="no run another"):
            asyncio.run(verified(process.url, "another"))
    finally:
        process.kill()


def test_verify_says_in_one_line_that_a_store_is_empty(tmp_path: Path) -> None:
    (tmp_path / "store.sqlite").touch()
    code, out, error = penstock("verify", str(tmp_path))
    assert (code, out, error.count("\n"), "store.sqlite is empty: nothing was ever stored in it" in error) == (1, "", 1, True)


def test_a_buffer_of_its_own_that_holds_nothing_wants_a_token_or_is_not_there_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.lab.sources._PATIENCE_SECONDS", 0.1)
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    for name, words in (("tokens", "root\nproduce=writes\n"), ("wrong", "other\n"), ("writer", "produce=writes\n")):
        (tmp_path / name).write_text(words)
    for name in ("buffer", "nothing"):
        (tmp_path / name).mkdir()
    process = Process(tmp_path / "buffer", "--token-file", str(tmp_path / "tokens"))
    url, root = process.url, ("--token-file", "tokens")
    told: dict[tuple[str, ...], tuple[int, str]] = {
        ("buffer",): (0, "nothing was stored in it yet"),
        ("nothing",): (2, "nothing is neither the directory of a run nor that of a buffer"),
        ("nobody",): (2, "there is no run 'nobody' in runs/, and no directory of that name"),
        ("localhost:8889",): (2, "a URL begins with http://, as http://localhost:8889"),
        ("http://localhost:88890",): (2, "is not the URL of a buffer"),
        ("http://localhost:1",): (1, "the buffer at http://localhost:1 did not take GET /v1/runs within 0.1 s (nobody answers there)"),
        (url, *root): (0, "nothing was stored in it yet"),
        (url,): (1, "wants a token; it is taken from --token-file, or else from PENSTOCK_TOKEN"),
        (url, "--token-file", "wrong"): (1, "does not know the token that it was sent"),
        (url, "--token-file", "writer"): (1, "the token does not have the scope view"),
        (url, "--token-file", "none"): (2, "the token file none cannot be read"),
        (f"{url}/v1", *root): (1, f"{url}/v1 is not the URL of a buffer: no path '/v1/v1/runs'"),
    }
    try:
        for (place, *options), (expected, sentence) in told.items():
            for verb in ("ledger", "verify", "where"):
                words = ["x", "--url" if "http" in place else "--run", place] if verb == "where" else [place]
                code, out, error = penstock(verb, *words, *options)
                assert code == (1 if verb == "where" and expected == 0 else expected), (verb, place, error)
                assert ("nothing was stored here yet" if verb == "where" and expected == 0 else sentence) in out + error, (verb, place, error)
                assert (out + error).count("\n") == 1
        process.kill()
        for verb in ("ledger", "verify"):
            assert penstock(verb, "buffer")[:2] == (0, "the buffer has no run: nothing was stored in it yet\n")
    finally:
        process.kill()
