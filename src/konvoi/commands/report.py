"""konvoi report: what a run was, as a page to read, to send, to print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import typer

from konvoi.analysis.record import RunRecord
from konvoi.commands.output import write_output
from konvoi.errors import UserError
from konvoi.report import as_json, html, markdown
from konvoi.report.blocks import Page
from konvoi.report.page import build
from konvoi.report.serve import server_of

Format = Literal["html", "markdown", "json"]
WRITERS: dict[str, Callable[[Page], str]] = {"html": html.write, "markdown": markdown.write, "json": as_json.write}
SUFFIXES: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json"}


def report(run: Path, output: Path | None, form: Format | None) -> None:
    """Without an output HTML goes to report.html, the others to standard output."""
    chosen = form or _format_of(output)
    text = WRITERS[chosen](build(RunRecord.read(run)))
    if output is None and chosen != "html":
        typer.echo(text, nl=False)
        return
    file = output or Path("report.html")
    write_output(file, text)
    typer.echo(f"wrote {file} ({len(text.encode()) / 1000:,.0f} kB)", err=True)


def serve(run: Path, port: int) -> None:
    """Until Ctrl-C; the run goes on."""
    with server_of(run, port) as server:
        typer.echo(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it, not the run)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo()


def _format_of(output: Path | None) -> Format:
    if output is None:
        return "html"
    if output.suffix.lower() not in SUFFIXES:
        raise UserError(f"{output}: cannot tell the format by its ending", hint="add --format html, markdown or json")
    return SUFFIXES[output.suffix.lower()]
