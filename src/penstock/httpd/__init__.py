"""What every server of penstock has in common: who may come in, how much they may bring, what an error looks like, how it starts and stops."""

from penstock.httpd.guard import Access, Guard, router
from penstock.httpd.replies import error_body, error_reply, msgpack_reply, reply
from penstock.httpd.serving import bind, serve_app

__all__ = ["Access", "Guard", "bind", "error_body", "error_reply", "msgpack_reply", "reply", "router", "serve_app"]
