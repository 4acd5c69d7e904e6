"""Tokens and what they allow."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from penstock.errors import ConfigError
from penstock.httpd import Access, Guard, Scope, Token, read_tokens, router, scoped
from penstock.httpd.tokens import ALL_SCOPES, allowed, parse_token


async def echo(request: Request) -> Response:
    return Response(await request.body())


def client(*tokens: Token) -> TestClient:
    routes = [
        scoped("/livez", echo, None),
        scoped("/write", echo, Scope.PRODUCE, methods=["POST"]),
        scoped("/read", echo, Scope.CONSUME),
        Route("/forgotten", echo),
    ]
    return TestClient(Guard(router(routes), Access(tokens=tokens)), base_url="http://127.0.0.1:1")


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


def test_a_token_opens_what_its_scopes_name_and_nothing_else() -> None:
    door = client(Token(value="p", scopes=frozenset({Scope.PRODUCE})), Token(value="c", scopes=frozenset({Scope.CONSUME})))
    assert door.post("/write", headers=bearer("p")).status_code == 200
    assert door.get("/read", headers=bearer("c")).status_code == 200
    refused = door.get("/read", headers=bearer("p"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert "consume" in refused.json()["error"]["message"]
    assert door.post("/write", headers=bearer("c")).status_code == 403
    assert door.post("/write", headers=bearer("x")).status_code == 401
    assert door.post("/write").headers["WWW-Authenticate"] == "Bearer"
    assert door.get("/livez").status_code == 200


def test_a_route_that_names_no_scope_needs_admin() -> None:
    door = client(Token(value="p", scopes=ALL_SCOPES - {Scope.ADMIN}), Token(value="all"))
    assert door.get("/forgotten", headers=bearer("p")).status_code == 403
    assert door.get("/forgotten", headers=bearer("all")).status_code == 200


def test_without_tokens_on_loopback_everything_is_open() -> None:
    assert client().get("/forgotten").status_code == 200


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    refused = client().get("/write")
    assert (refused.status_code, refused.headers["Allow"], refused.json()["error"]["code"]) == (405, "POST", "method")


@pytest.mark.parametrize(
    ("word", "value", "scopes"),
    [
        ("s3cret", "s3cret", ALL_SCOPES),
        ("view=s3cret", "s3cret", {Scope.VIEW}),
        ("view,produce=a=b", "a=b", {Scope.VIEW, Scope.PRODUCE}),
        ("QUJD==", "QUJD==", ALL_SCOPES),
        ("abcd==", "abcd==", ALL_SCOPES),
    ],
)
def test_a_token_is_written_with_or_without_scopes(word: str, value: str, scopes: set[Scope]) -> None:
    assert parse_token(word, "here") == Token(value=value, scopes=frozenset(scopes))


def test_tokens_come_from_file_and_environment(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# of the trainers\nconsume,view=one\n\ntwo\n")
    tokens = read_tokens(path, {"PENSTOCK_TOKENS": "produce=three; four", "PENSTOCK_TOKEN": "five"})
    assert [token.value for token in tokens] == ["one", "two", "three", "four", "five"]
    assert tokens[0].scopes == {Scope.CONSUME, Scope.VIEW}
    assert allowed("Bearer five", tokens) == ALL_SCOPES
    assert allowed("Digest five", tokens) == frozenset()
    assert allowed("Bearer six", tokens) == allowed("", tokens) == frozenset()
    assert read_tokens(None, {}) == ()


@pytest.mark.parametrize(
    ("pair", "scopes"),
    [
        (b"anybody:fi:ve", ALL_SCOPES),
        (b"one:", {Scope.VIEW}),
        (b"one", {Scope.VIEW}),
        (b"one:fi:ve", ALL_SCOPES),
        (b"fi:ve", set()),
        (b"anybody:two", set()),
        (b":", set()),
        (b"\xff\xfe", set()),
    ],
)
def test_a_token_may_come_as_name_or_password_of_a_url(pair: bytes, scopes: set[Scope]) -> None:
    tokens = (Token(value="one", scopes=frozenset({Scope.VIEW})), Token(value="fi:ve"))
    assert allowed(f"Basic {b64encode(pair).decode()}", tokens) == scopes


def test_a_name_and_password_that_cannot_be_read_allow_nothing() -> None:
    tokens = (Token(value="one"),)
    for word in ("Token b25lOg==", "Basic", "Basic one", "Basic b25lOg", "Basic ?29uZTo=", "Basic \xe4", "Basic \u00ff=="):
        assert allowed(word, tokens) == frozenset()


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "names no token"), ("reed=x", "no scope 'reed'"), ("two words", "without spaces"), ("view=pass wörd", "without spaces")],
)
def test_a_token_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_tokens(path, {})


def test_a_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_tokens(tmp_path / "none", {})


def test_a_token_is_never_shown() -> None:
    assert "s3cret" not in repr(Access(token="s3cret", tokens=(Token(value="s3cret"),)))
