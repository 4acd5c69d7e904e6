"""What every server of penstock has in common: who may come in, how much they may bring, what an error looks like, how it starts and stops."""

from penstock.httpd.direct import DirectReply, DirectRequest, DirectRoute
from penstock.httpd.guard import Access, Guard
from penstock.httpd.limits import Limits
from penstock.httpd.replies import msgpack_reply, reply
from penstock.httpd.routing import ScopedRoute, check_scope, routed, router, scoped
from penstock.httpd.serving import bind, serve_app, server_config
from penstock.httpd.tokens import Scope, Token, read_tokens

__all__ = [
    "Access",
    "DirectReply",
    "DirectRequest",
    "DirectRoute",
    "Guard",
    "Limits",
    "Scope",
    "ScopedRoute",
    "Token",
    "bind",
    "check_scope",
    "msgpack_reply",
    "read_tokens",
    "reply",
    "routed",
    "router",
    "scoped",
    "serve_app",
    "server_config",
]
