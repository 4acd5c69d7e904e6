"""The OpenAPI document is what the service does: schemathesis makes requests from it, and finds no surprise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from tests.services.buffers import Process, rollout

from penstock.buffer.routes import OPERATIONS, api_document
from penstock.wire import encode_json, join_items

schema = schemathesis.openapi.from_dict(api_document())
DOCUMENT = Path(__file__).parents[2] / "docs" / "buffer-openapi.json"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    running = Process(tmp_path_factory.mktemp("buffer"))
    assert running.post("/v1/runs/run", b'{"laws": {}, "initial_digest": "00"}')[0] == 200
    yield running
    running.kill()


@schema.parametrize()
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck), database=None)
def test_no_request_that_can_be_made_gets_an_answer_that_is_not_described(case: schemathesis.Case, process: Process) -> None:
    if "run" in (case.path_parameters or {}) and case.operation.path != "/v1/runs/{run}":
        # One that is there, so that more is looked at than its name.
        case.path_parameters["run"] = "run"
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_seconds"), (int, float)):
        case.body["wait_seconds"] = min(case.body["wait_seconds"], 0)
    answer = case.call(base_url=process.url, timeout=10)
    case.validate_response(
        answer, checks=(schemathesis.checks.not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
    )


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
    assert len(described) == len(OPERATIONS)
    for path, method in described:
        words = served["paths"][path][method]
        assert words["summary"].endswith(".")
        assert ("x-scope" in words) == (path != "/livez")


def test_the_document_in_docs_is_that_of_the_code() -> None:
    assert json.loads(DOCUMENT.read_text()) == json.loads(json.dumps(api_document())), "python -m penstock.buffer.routes > docs/buffer-openapi.json"
