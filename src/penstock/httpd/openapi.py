"""An OpenAPI 3.1 document from a table of operations and the types that they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from penstock.httpd.operations import JSON, Body, Operation, Query
from penstock.wire import kind_of
from penstock.wire.refusals import ErrorReply

_PARAMETER = re.compile(r"{(\w+)(?::(\w+))?}")
_ALWAYS = (401, 403, 408, 431, 503)
"""Any request may be refused with these: by the door, the limits, or because the store is away."""
_REF = "#/components/schemas/{name}"


def openapi(operations: Sequence[Operation[Any]], *, title: str, version: str, text: str) -> dict[str, Any]:
    """The document. The same table gives the same document, key by key."""
    nouns = _nouns(operations)
    schemas, components = msgspec.json.schema_components([*nouns, ErrorReply], schema_hook=_schema_of_array, ref_template=_REF)
    by_noun = dict(zip([*map(repr, nouns), repr(ErrorReply)], schemas, strict=True))
    loose = {operation.body.noun.__name__ for operation in operations if operation.body is not None and operation.body.loose}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(_PARAMETER.sub(r"{\1}", operation.path), {})[operation.method.lower()] = _describe(operation, by_noun)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": text},
        "paths": paths,
        "components": {
            "schemas": {name: schema if name in loose else _closed(schema) for name, schema in sorted(components.items())},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"}},
            "responses": {_name(status): _refusal(status, by_noun[repr(ErrorReply)]) for status in sorted({*chain(*map(_statuses, operations))})},
        },
    }


def _nouns(operations: Sequence[Operation[Any]]) -> list[Any]:
    found: dict[str, Any] = {}
    for operation in operations:
        for noun in (operation.body and operation.body.noun, operation.answer.noun, operation.refusal):
            if noun is not None:
                found.setdefault(repr(noun), noun)
    return list(found.values())


def _describe(operation: Operation[Any], by_noun: dict[str, Any]) -> dict[str, Any]:
    parameters = [_path_parameter(*found) for found in _PARAMETER.findall(operation.path)] + [_query_parameter(query) for query in operation.query]
    described: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    if operation.text:
        described["description"] = operation.text
    if operation.needs is not None:
        described["security"] = [{"token": []}, {"password": []}, {}]
        described["x-scope"] = operation.needs.value
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": operation.body.required, **_content(operation.body, by_noun)}
    answer = {"description": operation.answer.text or "Done.", **_content(operation.answer, by_noun)}
    refused = {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in _statuses(operation)}
    if operation.refusal is not None:
        either = {"anyOf": [by_noun[repr(ErrorReply)], by_noun[repr(operation.refusal)]]}
        refused = {str(status): _refusal(status, either) for status in _statuses(operation)}
    described["responses"] = {"200": answer, **refused}
    return described


def _statuses(operation: Operation[Any]) -> list[int]:
    """What the operation may be refused with."""
    statuses = {*_ALWAYS, *operation.refuses} if operation.needs is not None else {403, 408, 431, 503}
    if _PARAMETER.search(operation.path):
        statuses |= {404, 422}
    if operation.query:
        statuses.add(422)
    if operation.method == "POST":
        statuses |= {400, 413, 415, 422, 429, 507}
    return sorted(statuses)


def _refusal(status: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.replace(" ", "")


def _content(body: Body, by_noun: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"content": {media: {"schema": _schema(body, by_noun) if media == JSON else {}} for media in body.media}}
    return described


def _schema(body: Body, by_noun: dict[str, Any]) -> dict[str, Any]:
    if body.noun is None:
        return {}
    schema = by_noun[repr(body.noun)]
    if body.enveloped:
        properties = {"schema": {"const": 1}, "kind": {"const": kind_of(body.noun)}, "value": schema}
        schema = {"type": "object", "properties": properties, "required": ["schema", "kind", "value"], "additionalProperties": False}
    return {"type": "array", "items": schema} if body.several else schema


def _path_parameter(name: str, kind: str) -> dict[str, Any]:
    # An id may have up to 256 characters; what is given here is what the router takes apart without doubt.
    schema = {"type": "integer", "minimum": 0} if kind == "int" else {"type": "string", "minLength": 1, "maxLength": 256}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameter(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": query.kind}
    if query.choices:
        schema["enum"] = list(query.choices)
    if query.several:
        schema = {"type": "array", "items": schema}
    return {"name": query.name, "in": "query", "required": query.required, "description": query.text, "schema": schema}


def _schema_of_array(kind: Any) -> dict[str, Any]:
    """Arrays stand as lists in JSON; those without a fixed type name it."""
    if "ndarray" in repr(kind) or kind is np.ndarray:
        return {"description": "Numbers: a list, or an object with `dtype`, `shape` and `data`."}
    # How msgspec is told that a type is not known; it says where it stands.
    raise NotImplementedError(f"{kind} has no schema")


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An object with properties has no others: unknown keys are refused."""
    return {**schema, "additionalProperties": False} if "properties" in schema else schema
