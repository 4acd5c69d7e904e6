"""The columns of an archive file. The names are a contract; `docs/archive.md` is made from this."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

SCHEMA = 1
"""Number of the form described here, in the file's metadata as `penstock.schema`."""


class Column(NamedTuple):
    """One column, its Arrow type in words, and what it holds."""

    name: str
    type: str
    meaning: str


_TABLE = """
    run               string             Name of the run.
    uid               string             Of the rollout; unique in the run.
    group             string             Group that it belongs to.
    member            int32              Slot in the group, from 0.
    retry             int32              Which try at the slot, from 0.
    environment       string             Environment of the group.
    problem           string             Problem that the group was opened for.
    purpose           string             train, eval or probe.
    status            string             ok, truncated, infra_error or env_error. Only the first two can be trained on.
    failure           string             What went wrong, for the other two.
    counted           bool               Whether it filled its slot: a try that failed, or was too late, did not.
    stale             bool               Came too late for max_lag.
    reward            float64            Linearised total; null if the status is not usable.
    rewards           list<reward>       Named parts of the reward.
    tokens            int32              Tokens of the kept paths, each segment once.
    sampled_tokens    int32              Those that the trained policy sampled.
    prefix_tokens     int32              Tokens before the first sampled one.
    versions          list<int64>        Distinct versions that sampled them, ascending.
    version_tokens    list<int32>        How many tokens each of those versions sampled.
    stored_at         time               When it was accepted.
    group_size        int32              Slots of the group.
    group_seed        int64              Seed that the seeds of the tries are derived from.
    group_state       string             spent or dropped; ready for evaluation groups.
    group_reason      string             Why the group was dropped.
    group_digest      string             Content digest that plans name; empty if it was never ready.
    group_tokens      int32              Tokens of the group after prefix sharing.
    updates           list<int64>        Updates that trained on the group.
    lease             string             Lease or compatible read that an outside consumer had it under.
    opened_at         time               When the group was opened.
    completed_at      time               When its last slot was settled.
    ready_at          time               When it could be cut.
    bound_at          time               When it was cut or leased.
    ended_at          time               When it was spent or dropped.
    messages          list<message>      The conversation as text, kept branches only.
    ids               list<int32>        Token ids of all segments, one after another.
    logprobs          list<float32>      One for each of `ids`; null where the token was not sampled.
    token_versions    list<int64>        One for each of `ids`: version that sampled the token; null where it was not sampled.
    segments          list<segment>      How `ids` is cut into the tree of segments.
    metadata          string             Metadata of the rollout, as JSON.
    annotations       list<annotation>   What was found out about the rollout afterwards, with its bytes.
    content_type      string             json or msgpack: the form of `body`.
    digest            string             xxh3-128 in hex of `body`.
    body              binary             The rollout as it was accepted, byte for byte. All other columns follow from it and from the ledger.
"""

_STRUCTS: dict[str, tuple[tuple[str, str], ...]] = {
    "reward": (("name", "string"), ("value", "float64")),
    "message": (("role", "string"), ("content", "string")),
    "segment": (("parent", "int32"), ("length", "int32"), ("source", "string"), ("abandoned", "string")),
    "annotation": (
        ("name", "string"),
        ("step", "int32"),
        ("failed", "string"),
        ("uid", "string"),
        ("content_type", "string"),
        ("digest", "string"),
        ("stored_at", "time"),
        ("body", "binary"),
    ),
}

COLUMNS: tuple[Column, ...] = tuple(Column(*line.split(maxsplit=2)) for line in _TABLE.strip().splitlines())


@cache
def arrow_schema() -> Any:
    """The columns for pyarrow."""
    import pyarrow as arrow

    plain = {
        "string": arrow.string(),
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "float32": arrow.float32(),
        "float64": arrow.float64(),
        "bool": arrow.bool_(),
        "binary": arrow.binary(),
        "time": arrow.timestamp("us", tz="UTC"),
    }

    def of(name: str) -> Any:
        if name.startswith("list<"):
            return arrow.list_(of(name[5:-1]))
        if name in _STRUCTS:
            return arrow.struct([arrow.field(field, of(kind)) for field, kind in _STRUCTS[name]])
        return plain[name]

    return arrow.schema([arrow.field(column.name, of(column.type)) for column in COLUMNS], metadata={"penstock.schema": str(SCHEMA)})


def columns_table() -> str:
    """The columns as Markdown, for `docs/archive.md`."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    lines += [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in COLUMNS]
    lines += ["", "`time` is a timestamp in microseconds, UTC. The structs:", ""]
    lines += [f"- `{name}`: " + ", ".join(f"`{field}` {kind}" for field, kind in fields) for name, fields in _STRUCTS.items()]
    return "\n".join(lines) + "\n"
