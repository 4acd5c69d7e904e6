"""The URL under which a generator reaches its buffer. Where the buffer wants a token, the URL carries one.

A generator that sends items by itself knows nothing but that URL. `requests`, `aiohttp`, `httpx` and `curl` send what stands before the @ of a URL along
with every request, so it can write without a change. The token goes to nobody but this buffer: whatever name a client gave it, a generator gets the
address that the buffer itself listens on.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import quote, urlsplit

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def own_url(host: str, port: int) -> str:
    """How a process on this machine reaches a server that listens on `host`.

    >>> own_url("0.0.0.0", 8889), own_url("::1", 8889)
    ('http://127.0.0.1:8889', 'http://[::1]:8889')
    """
    near = _ANY_ADDRESS.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def opened_url(given: str, own: str, host: str, token: str) -> str:
    """`given`, with the token if it is a name of the server that listens on `host` and has the URL `own`; any other as it is.

    >>> opened_url("http://localhost:8889/", "http://127.0.0.1:8889", "127.0.0.1", "t0ken")
    'http://penstock:t0ken@127.0.0.1:8889/'
    >>> opened_url("http://elsewhere:8889/", "http://127.0.0.1:8889", "127.0.0.1", "t0ken")
    'http://elsewhere:8889/'
    """
    if not _is_own(given, own, host):
        return given
    return urlsplit(given)._replace(netloc=f"penstock:{quote(token, safe='')}@{urlsplit(own).netloc}").geturl()


def _is_own(given: str, own: str, host: str) -> bool:
    there, here = urlsplit(given), urlsplit(own)
    try:
        port = there.port or 80
    except ValueError:
        return False
    if there.scheme != "http" or there.username is not None or port != here.port:
        return False
    name = there.hostname or ""
    if name in (host, here.hostname):
        return True
    if host in _ANY_ADDRESS:
        return name == "localhost" or _is_here(name)
    return name == "localhost" and _is_loopback(host)


def _is_here(name: str) -> bool:
    """Whether this machine is meant. Names are not looked up: whoever answers for them decides where they lead."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(name).version == 6 else socket.AF_INET
    except ValueError:
        return name == socket.gethostname().lower()
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((name, 0))
        except OSError:
            return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
