from __future__ import annotations

import socket

import pytest

from penstock.buffer.compat.generators.own_url import opened_url, own_url

EVERYWHERE, HERE = "0.0.0.0", "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("http://127.0.0.1:8889", HERE),
        ("http://localhost:8889", HERE),
        ("http://LOCALHOST:8889", HERE),
        ("http://127.0.0.1:8889", EVERYWHERE),
        ("http://127.0.0.7:8889", EVERYWHERE),
        ("http://0.0.0.0:8889", EVERYWHERE),
        (f"http://{socket.gethostname()}:8889", EVERYWHERE),
    ],
)
@pytest.mark.parametrize("path", ["", "/", "/buffer/write"])
def test_a_url_of_the_buffer_itself_becomes_its_address_with_the_token(given: str, host: str, path: str) -> None:
    assert opened_url(given + path, own_url(host, 8889), host, "a/b") == f"http://penstock:a%2Fb@127.0.0.1:8889{path}"


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("http://127.0.0.1:8890", HERE),
        ("http://127.0.0.1", HERE),
        ("http://127.0.0.7:8889", HERE),
        ("https://127.0.0.1:8889", HERE),
        ("http://me:mine@127.0.0.1:8889", HERE),
        ("http://127.0.0.1:99999", HERE),
        ("http://127.0.0.1@example.org:8889", HERE),
        ("http://localhost.example.org:8889", EVERYWHERE),
        ("http://192.0.2.7:8889", EVERYWHERE),
        ("http://[2001:db8::7]:8889", EVERYWHERE),
        ("http://localhost:8889", "192.0.2.7"),
    ],
)
def test_any_other_url_stays_as_it_is(given: str, host: str) -> None:
    assert opened_url(given, own_url(host, 8889), host, "t0ken") == given
