"""The only place that knows formats: strict JSON and msgpack, and every noun in both.

    noun --encode_json-->    {"schema": 1, "kind": "rollout", "value": {...}}   --decode_json-->    equal noun
    noun --encode_msgpack--> the same, arrays as binary                         --decode_msgpack--> equal noun

Servers, clients and stores call these; nothing else in penstock imports a codec. Any frozen dataclass of plain types and nouns can be sent:
requests and replies are declared beside the part that answers them.
"""

from penstock.wire._bare import ContentType, items_head, join_items, packed_item, read_body, split_items, write_body
from penstock.wire._canonical import canonical_json, checksum, digest
from penstock.wire._envelope import SCHEMA, check_noun, decode_json, decode_msgpack, encode_json, encode_msgpack, kind_of
from penstock.wire._rows import decode_row, encode_row
from penstock.wire._rules import check_id
from penstock.wire._strict import MAX_DEPTH, parse_json
from penstock.wire._views import view_rollouts

__all__ = [
    "MAX_DEPTH",
    "SCHEMA",
    "ContentType",
    "canonical_json",
    "check_id",
    "check_noun",
    "checksum",
    "decode_json",
    "decode_msgpack",
    "decode_row",
    "digest",
    "encode_json",
    "encode_msgpack",
    "encode_row",
    "items_head",
    "join_items",
    "kind_of",
    "packed_item",
    "parse_json",
    "read_body",
    "split_items",
    "view_rollouts",
    "write_body",
]
