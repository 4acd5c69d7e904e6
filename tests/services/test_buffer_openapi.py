"""The OpenAPI document is what the service does: schemathesis makes requests from it, and finds no surprise."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from tests.services.buffers import Process, rollout
from tests.services.sabotage import SURPRISED, running

from penstock.buffer.routes import OPERATIONS, api_document
from penstock.wire import encode_json, join_items

schema = schemathesis.openapi.from_dict(api_document())
CHECKS = (schemathesis.checks.not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
EXAMPLES = int(os.environ.get("PENSTOCK_SCHEMA_EXAMPLES", "4"))
"""Requests for each route and mode; more look longer."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "buffer-openapi.json"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("buffer"))
    assert running.post("/v1/runs/run", b'{"laws": {}, "initial_digest": "00"}')[0] == 200
    yield running
    running.kill()


def try_out(operation: Any, mode: GenerationMode, process: Process) -> None:
    """Requests as the document has them, or otherwise. Raises if an answer is an error of ours, or one that is not described."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None)
    def is_described(case: schemathesis.Case) -> None:
        if "run" in (case.path_parameters or {}) and operation.path != "/v1/runs/{run}":
            # One that is there, so that more is looked at than its name.
            case.path_parameters["run"] = "run"
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_seconds"), (int, float)):
            case.body["wait_seconds"] = min(case.body["wait_seconds"], 0)
        case.validate_response(case.call(base_url=process.url, timeout=10), checks=CHECKS)

    is_described()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as described", "otherwise"])
@pytest.mark.parametrize("operation", [found.ok() for found in schema.get_all_operations()], ids=lambda operation: operation.label)
def test_no_request_gets_an_answer_that_is_not_described(operation: Any, mode: GenerationMode, process: Process) -> None:
    if mode is GenerationMode.POSITIVE or operation.body or operation.path_parameters or operation.query:
        try_out(operation, mode, process)  # otherwise nothing about it can be wrong


def test_a_buffer_that_is_surprised_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, monkeypatch, SURPRISED) as surprised, pytest.raises(FailureGroup, match="Server error"):
        try_out(schema["/buffer/peek"]["GET"], GenerationMode.NEGATIVE, surprised)


def test_after_all_that_a_good_write_goes_through_and_everything_adds_up(process: Process) -> None:
    wanted = {"groups": [{"id": "good/0/0", "environment": "env", "problem_id": "p", "size": 2}]}
    assert process.post("/v1/runs/good", b'{"laws": {}, "initial_digest": "00"}')[0] == 200
    assert process.post("/v1/runs/good/groups", json.dumps(wanted).encode())[0] == 200
    body = join_items([encode_json(rollout("good/0/0", member, run="good")) for member in range(2)], "json")
    assert process.post("/v1/runs/good/rollouts", body)[0] == 200
    for run in process.get("/v1/runs")["runs"]:
        assert process.get(f"/v1/runs/{run}/ledger")["imbalance"] == 0


def test_the_document_is_served_and_every_route_has_its_words(process: Process) -> None:
    served = process.get("/openapi.json")
    assert served == json.loads(json.dumps(api_document()))
    described = [(path, method) for path, methods in served["paths"].items() for method in methods]
    assert {path for path, _ in described} >= {operation.path.replace(":path}", "}").replace(":int}", "}") for operation in OPERATIONS}
    assert ("/buffer/write", "post") in described
    for path, method in described:
        words = served["paths"][path][method]
        assert words["summary"].endswith(".")
        assert ("x-scope" in words) == (path != "/livez")


def test_the_document_in_docs_is_that_of_the_code() -> None:
    assert json.loads(DOCUMENT.read_text()) == json.loads(json.dumps(api_document())), "python -m penstock.buffer.routes > docs/buffer-openapi.json"
