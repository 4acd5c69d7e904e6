"""Who may come in, and with what."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from penstock.errors import ConfigError, ConflictError, LimitError
from penstock.httpd import Access, Guard, router


async def echo(request: Request) -> Response:
    return Response(await request.body())


async def refuse(request: Request) -> Response:
    raise ConflictError("slot 3 is taken")


async def busy(request: Request) -> Response:
    raise LimitError("full", retry_after_seconds=2.5)


async def crash(request: Request) -> Response:
    raise RuntimeError("secret path /home/somebody")


def client(access: Access) -> TestClient:
    routes = [
        Route(path, call, methods=["GET", "POST"])
        for path, call in (("/echo", echo), ("/livez", echo), ("/refuse", refuse), ("/busy", busy), ("/crash", crash))
    ]
    return TestClient(Guard(router(routes), access), base_url="http://127.0.0.1:1", raise_server_exceptions=False)


def test_a_server_that_others_can_reach_needs_a_token() -> None:
    with pytest.raises(ConfigError, match="needs a token"):
        Access(host="0.0.0.0")
    assert Access(host="0.0.0.0", token="t").token == "t"


def test_with_a_token_every_path_but_livez_needs_it() -> None:
    door = client(Access(token="right"))
    assert door.get("/echo").status_code == 401
    assert "a token is needed" in door.get("/echo").text
    wrong = door.get("/echo", headers={"Authorization": "Bearer wrong"})
    assert (wrong.status_code, "not known here" in wrong.text) == (401, True)
    assert door.get("/echo", headers={"Authorization": "Bearer right"}).status_code == 200
    assert door.get("/livez").status_code == 200


def test_foreign_hosts_and_origins_are_refused_on_loopback() -> None:
    door = client(Access())
    assert door.get("/echo", headers={"Host": "evil.example"}).status_code == 403
    assert door.get("/echo", headers={"Host": "localhost:99"}).status_code == 200
    assert door.get("/echo", headers={"Origin": "http://evil.example"}).status_code == 403
    assert door.get("/echo", headers={"Origin": "http://127.0.0.1:1"}).status_code == 200


def test_a_body_over_the_limit_is_refused_whether_its_length_was_told_or_not() -> None:
    door = client(Access(max_body_bytes=10))
    assert door.post("/echo", content=b"x" * 10).content == b"x" * 10
    assert door.post("/echo", content=b"x" * 11).status_code == 413
    assert door.post("/echo", content=iter([b"x" * 6, b"x" * 6])).status_code == 413


def test_a_compressed_body_is_refused() -> None:
    assert client(Access()).post("/echo", content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415


def test_errors_have_one_shape_and_tell_nothing_they_should_not() -> None:
    door = client(Access())
    refused = door.get("/refuse")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "conflict"
    assert refused.json()["error"]["message"] == "slot 3 is taken"
    assert len(refused.json()["error"]["request_id"]) == 16
    assert door.get("/busy").headers["Retry-After"] == "3"
    crashed = door.get("/crash")
    assert crashed.status_code == 500
    assert "secret" not in crashed.text
    assert door.get("/nowhere").json()["error"]["code"] == "unknown"
