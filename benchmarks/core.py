"""The core: recording, rendering, the cut, packing and the store.

python benchmarks/core.py [--json] [--quick]
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from _report import Result, against, arguments, bounded, median_cpu_seconds, report
from penstock import ledger as law
from penstock.batching import pack
from penstock.buffer.store.sqlite import SqliteStore
from penstock.chat import ChatTemplate, write_byte_tokenizer
from penstock.ledger import Ledger
from penstock.trace import Recorder, samples
from penstock.types import (
    CutRequest,
    GroupRecord,
    GroupState,
    Laws,
    Message,
    Payload,
    Plan,
    Purpose,
    Rollout,
    RunRecord,
    Sample,
    Source,
    TermRecord,
    Version,
    VersionRun,
)
from penstock.wire import digest, encode_msgpack

TURNS = 128
WORDS = ["the", "valve", "opens", "when", "pressure", "falls", "below", "a", "limit", "and", "water", "runs", "to", "turbine", "again"]


def text(rng: np.random.Generator, words: int) -> str:
    return " ".join(rng.choice(WORDS, words))


def record_turn(recorder: Recorder, rng: np.random.Generator, *, env_tokens: int, sampled_tokens: int, with_text: bool = False) -> None:
    """One exchange: a message of the environment, the template's tokens, a sampled reply."""
    recorder.open_message()
    recorder.append(rng.integers(0, 50_000, env_tokens - 5).astype(np.int32), Source.ENV)
    recorder.close_message(Message(role="user", content=text(rng, env_tokens) if with_text else ""))
    recorder.append(rng.integers(0, 50_000, 5).astype(np.int32), Source.TEMPLATE)
    recorder.open_message()
    recorder.append(
        rng.integers(0, 50_000, sampled_tokens).astype(np.int32),
        Source.SAMPLED,
        logprobs=-rng.random(sampled_tokens).astype(np.float32),
        versions=(VersionRun(policy="policy", version=7, count=sampled_tokens),),
    )
    recorder.close_message(Message(role="assistant", content=text(rng, sampled_tokens) if with_text else ""))


def last_against_first(name: str, costs: list[list[float]]) -> Result:
    """Cost of the last turns of a conversation beside that of the first: the history must not matter. Eight of each, medians over repeats."""
    first = statistics.median(statistics.fmean(row[:8]) for row in costs)
    last = statistics.median(statistics.fmean(row[-8:]) for row in costs)
    return against(name, last * 1e6, "us", peer="the first turns", peer_value=first * 1e6, goal=1 / 1.3)


def recording(repeats: int) -> Result:
    costs = []
    for seed in range(repeats):
        rng, recorder, row = np.random.default_rng(seed), Recorder(), []
        for _ in range(TURNS):
            start = time.thread_time()
            record_turn(recorder, rng, env_tokens=300, sampled_tokens=200)
            row.append(time.thread_time() - start)
        costs.append(row)
    return last_against_first("trace: turn 128 of a chat", costs[1:])


def rendering(repeats: int) -> Result:
    with tempfile.TemporaryDirectory() as directory:
        write_byte_tokenizer(Path(directory), template="chatml")
        template = ChatTemplate.load(Path(directory))
    costs = []
    for seed in range(repeats):
        rng, row = np.random.default_rng(seed), []
        opened = template.open([Message(role="user", content=text(rng, 60))])
        history = list(opened.ids)
        for _ in range(TURNS):
            message = Message(role="user", content=text(rng, 60))
            start = time.thread_time()
            delta = template.delta(template.end_id, [message])
            row.append(time.thread_time() - start)
            history.extend(delta.ids)
        costs.append(row)
    return last_against_first("chat: delta of turn 128", costs[1:])


def stored_size() -> Result:
    """64 turns of 500 tokens, 200 of each sampled, with their text, in the store's file."""
    rng, recorder = np.random.default_rng(0), Recorder()
    for _ in range(64):
        record_turn(recorder, rng, env_tokens=300, sampled_tokens=200, with_text=True)
    body = encode_msgpack(rollout(recorder, "r", "g/0/0", 0))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.sqlite"
        store = SqliteStore(path)
        store.submit([RunRecord(run="run", laws=Laws(), opened_at=0.0)]).result()
        store.close()
        empty = path.stat().st_size
        store = SqliteStore(path)
        for number in range(4):
            # One at a time, as rollouts of this size come.
            store.submit([Payload(run="run", uid=f"r{number}", content_type="msgpack", body=body, digest=digest(body))]).result()
        store.close()
        stored = (path.stat().st_size - empty) / 4
    return bounded("trace of 64 turns x 500 tokens in the store", stored / 1000, "kB", goal=200)


def rollout(recorder: Recorder, uid: str, group: str, member: int) -> Rollout:
    return Rollout(run="run", environment="env", problem_id="p", group_id=group, member=member, retry=0, rollout_uid=uid, trace=recorder.trace(), reward=1.0)


class Nothing:
    """A past in which nothing has ended."""

    def group(self, run: str, group_id: str) -> None: ...
    def rollout(self, run: str, uid: str) -> None: ...
    def plan(self, run: str, update: int) -> None: ...
    def annotations(self, run: str, group_id: str) -> tuple[()]:
        return ()


def cutting(repeats: int) -> Result:
    """100,000 ready groups of two environments; one cut of 256 of them."""
    ledger = Ledger(RunRecord(run="run", laws=Laws(max_lag=4), opened_at=0.0))
    ledger.apply(Version(run="run", version=version, digest=f"{version:032x}") for version in range(4))
    ledger.apply([TermRecord(run="run", term=1, owner="learner", expires_at=1e9, first_update=0)])
    rng = np.random.default_rng(0)
    for order in range(100_000):
        ledger.apply([_ready(order, int(rng.integers(0, 4)), int(rng.integers(200, 2000)))])
    request = CutRequest(budget_tokens=256 * 1100, fractions={"a": 0.5, "b": 0.5})

    def cut() -> None:
        assert isinstance(law.cut(ledger, Nothing(), 0, 1, request, 0.0).reply, Plan)

    return bounded("cut over 100,000 ready groups", median_cpu_seconds(cut, repeats) * 1e3, "ms", goal=50)


def _ready(order: int, version: int, tokens: int) -> GroupRecord:
    return GroupRecord(
        run="run",
        id=f"s/0/{order}",
        environment="ab"[order % 2],
        problem_id="p",
        purpose=Purpose.TRAIN,
        size=8,
        seed=0,
        state=GroupState.READY,
        order=order,
        credit=tokens,
        tokens=tokens,
        oldest_version=version,
        newest_version=version,
        usable=8,
        digest="d",
        ready_order=order,
    )


def packing(repeats: int) -> Iterator[Result]:
    """4,096 samples: on their own, and as 512 groups of 8 that share a prompt of 200 tokens."""
    for name, groups, prompt in (("4,096 samples", 4096, 20), ("4,096 samples in 512 groups with a shared prompt", 512, 200)):
        made = _samples(groups, 4096 // groups, prompt)
        yield bounded(f"packing of {name}", median_cpu_seconds(lambda made=made: pack(made, tokens_per_row=2048), repeats) * 1e3, "ms", goal=50)


def _samples(groups: int, members: int, prompt_tokens: int) -> list[Sample]:
    rng, made = np.random.default_rng(0), []
    for group in range(groups):
        prompt = rng.integers(0, 500, prompt_tokens).astype(np.int32)
        for member in range(members):
            recorder, length = Recorder(), int(np.clip(rng.lognormal(4.0, 0.8), 4, 600))
            recorder.append(prompt, Source.ENV)
            runs = (VersionRun(policy="policy", version=0, count=length),)
            logprobs = -rng.random(length).astype(np.float32)
            recorder.append(rng.integers(0, 500, length).astype(np.int32), Source.SAMPLED, logprobs=logprobs, versions=runs)
            made += samples(rollout(recorder, f"{group}:{member}", f"g/0/{group}", member), advantages=1.0)
    return made


def storing(repeats: int, batch: int) -> Result:
    """Durable appends of 8 kB payloads, beside a bare `executemany` of the same rows into the same kind of file, in turns."""
    rng = np.random.default_rng(0)
    bodies = [rng.bytes(8192) for _ in range(batch)]
    ours, bare = [], []
    with tempfile.TemporaryDirectory(dir=".") as directory:
        store, peer = SqliteStore(Path(directory) / "store.sqlite"), _bare_table(Path(directory) / "bare.sqlite")
        store.submit([RunRecord(run="run", laws=Laws(), opened_at=0.0)]).result()
        for turn in range(repeats):
            payloads = [Payload(run="run", uid=f"{turn}:{place}", content_type="msgpack", body=body, digest=digest(body)) for place, body in enumerate(bodies)]
            ours.append(_seconds(lambda payloads=payloads: [future.result() for future in [store.submit([payload]) for payload in payloads]]))
            rows = [("run", payload.uid, payload.content_type, payload.body, payload.digest) for payload in payloads]
            bare.append(_seconds(lambda rows=rows: _bare_append(peer, rows)))
        store.close()
        peer.close()
    return against(
        f"store: durable appends of 8 kB, {batch} at once",
        batch / statistics.median(ours),
        "records/s",
        peer="bare executemany",
        peer_value=batch / statistics.median(bare),
        goal=0.5,
        more_is_better=True,
    )


def _bare_table(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE payloads (run TEXT, uid TEXT, content_type TEXT, body BLOB, digest TEXT, PRIMARY KEY (run, uid))")
    return connection


def _bare_append(connection: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO payloads VALUES (?, ?, ?, ?, ?)", rows)
    connection.execute("COMMIT")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__)
    repeats = 10 if options.quick else 40
    report(recording(repeats), as_json=options.json)
    report(rendering(repeats), as_json=options.json)
    report(stored_size(), as_json=options.json)
    report(cutting(repeats), as_json=options.json)
    for result in packing(repeats):
        report(result, as_json=options.json)
    for batch in (64, 512):
        report(storing(repeats, batch), as_json=options.json)


if __name__ == "__main__":
    main()
