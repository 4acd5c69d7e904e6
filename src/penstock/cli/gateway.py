"""The verb `gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.cli.looking import token_of
from penstock.cli.speaking import speak


def gateway(
    engine: Annotated[list[str], typer.Option("--engine", help="URL of an inference server; may be repeated.")],
    buffer: Annotated[str, typer.Option("--buffer", help="URL of the buffer.")],
    model: Annotated[Path, typer.Option("--model", "--tokenizer", help="Directory with tokenizer and chat template of the model that is served.")],
    run: Annotated[str, typer.Option(help="Run that sessions belong to; the only one of the buffer if it is left out.")] = "",
    open_run: Annotated[bool, typer.Option("--open-run", help="Open the run if the buffer does not have it.")] = False,
    name: Annotated[str, typer.Option(help="Names this gateway: under the same name it goes on with its sessions after a restart.")] = "gateway",
    template: Annotated[str | None, typer.Option(help="A built-in chat template in place of the model's own.")] = None,
    policy: Annotated[str, typer.Option(help="Name of the model, for engines that do not say.")] = "policy",
    temperature: Annotated[float | None, typer.Option(help="Used in place of what agents ask for.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Of a reply, where the agent names no limit.")] = 1024,
    allow_filters: Annotated[bool, typer.Option("--allow-filters", help="Take top_p and the like in training, and do not train on such replies.")] = False,
    repeats: Annotated[Literal["retry", "sample"], typer.Option(help="What the same request again means.")] = "retry",
    max_sessions: Annotated[int | None, typer.Option(help="Open sessions.")] = None,
    session_seconds: Annotated[float | None, typer.Option(help="A session that is open for longer has failed.")] = None,
    idle_seconds: Annotated[float | None, typer.Option(help="A session that nobody asks anything for so long has failed.")] = None,
    reply_seconds: Annotated[float | None, typer.Option(help="How long a reply may take.")] = None,
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8100,
    host: Annotated[str, typer.Option(help="Address to listen on; anything but loopback needs a token.")] = "127.0.0.1",
    public_url: Annotated[str, typer.Option(help="How agents reach this gateway, if not under the name by which sessions are opened.")] = "",
    token_file: Annotated[Path | None, typer.Option(help="File with the token that clients must send, and that engine and buffer are sent.")] = None,
    port_file: Annotated[Path | None, typer.Option(help="File that gets the port once connections are taken.")] = None,
) -> None:
    """Put any agent that speaks OpenAI's API in front of an engine, and record what it does."""
    from penstock.config import server_root
    from penstock.gateway.config import GatewayConfig, Limits
    from penstock.gateway.events import Manner
    from penstock.gateway.serving import serve_gateway
    from penstock.httpd import Access

    speak()
    given = {"max_sessions": max_sessions, "session_seconds": session_seconds, "idle_seconds": idle_seconds, "reply_seconds": reply_seconds}
    token = token_of(token_file)
    config = GatewayConfig(
        engines=tuple(server_root("--engine", url) for url in engine),
        model=model,
        buffer_url=buffer,
        run=run,
        open_run=open_run,
        name=name,
        template=template,
        policy=policy,
        max_tokens=max_tokens,
        manner=Manner(temperature=temperature, allow_filters=allow_filters, repeats=repeats),
        limits=Limits(**{key: value for key, value in given.items() if value is not None}),  # type: ignore[arg-type]
        access=Access(host=host, token=token),
        port=port,
        port_file=port_file,
        public_url=public_url,
        token=token,
    )
    serve_gateway(config)
