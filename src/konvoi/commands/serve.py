"""konvoi serve: models behind a REST service and a page, for a browser on this machine or, with a token, elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typer

from konvoi.bundle.format import is_bundle, open_bundle
from konvoi.bundle.interfaces import Classifier, Translator
from konvoi.errors import UserError
from konvoi.serve.app import create_app
from konvoi.serve.security import MIN_TOKEN_CHARACTERS
from konvoi.serve.server import Server, is_loopback, listen

TOKEN_VARIABLE = "KONVOI_TOKEN"
MAKE_TOKEN = "make one: openssl rand -hex 32 > token; then --token-file token"


@dataclass
class Models:
    translators: list[Translator] = field(default_factory=list)
    classifiers: list[Classifier] = field(default_factory=list)

    def close(self) -> None:
        for translator in self.translators:
            translator.close()
        for classifier in self.classifiers:
            classifier.close()


def serve(
    paths: list[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    token: str | None = None,
    variant: str | None = None,
    checkpoint: str = "best",
) -> None:
    """Until Ctrl-C or SIGTERM; what was accepted before is still answered."""
    secret = _token(token, token_file)
    if secret is None and not is_loopback(host):
        raise UserError(f"{host} can be reached from other machines: that needs a token", hint=MAKE_TOKEN)
    with listen(host, port) as listener, _opened(paths, variant, checkpoint) as models:
        # As somebody may write it after http://, or as the system resolved it.
        names = {_shown(host).lower(), _shown(listener.getsockname()[0])}
        app = create_app(models.translators, models.classifiers, token=secret, names=names)
        # Whoever reads the address may use it at once.
        listener.listen()
        typer.echo(f"http://{_shown(host)}:{listener.getsockname()[1]}/  (Ctrl-C ends it)")
        Server(app).run([listener])


def _token(token: str | None, file: Path | None) -> str | None:
    """From the file, the environment, or the command, which every user of this machine can see."""
    known = os.environ.get(TOKEN_VARIABLE)
    if token is not None and token != known:
        typer.echo(f"warning: other users can see --token; use --token-file or {TOKEN_VARIABLE}", err=True)
    secret = _read(file) if file else known if token is None else token
    # Line ends stay in many a secret's file or variable; a header could not carry them.
    secret = secret.strip() if secret is not None else None
    if secret is not None and not re.fullmatch(rf"[!-~]{{{MIN_TOKEN_CHARACTERS},}}", secret):
        problem = f"the token must have at least {MIN_TOKEN_CHARACTERS} characters, all of them ASCII, without blanks"
        raise UserError(problem, hint=MAKE_TOKEN)
    return secret


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}", hint=MAKE_TOKEN) from None


@contextmanager
def _opened(paths: list[Path], variant: str | None, checkpoint: str) -> Iterator[Models]:
    models = Models()
    try:
        for path in paths:
            _open_bundle(path, variant, models) if is_bundle(path) else _open_run(path, checkpoint, models)
        yield models
    finally:
        models.close()


def _open_bundle(path: Path, variant: str | None, models: Models) -> None:
    bundle = open_bundle(path)
    if bundle.description.task == "translation":
        from konvoi.bundle.translator import open_translator

        models.translators.append(open_translator(bundle, variant))
    else:
        from konvoi.bundle.classifier import open_classifier

        models.classifiers.append(open_classifier(bundle, variant))


def _open_run(path: Path, checkpoint: str, models: Models) -> None:
    """By PyTorch, which a bundle does without."""
    from konvoi.export.run_classifier import open_run_classifier
    from konvoi.export.run_translator import open_run_translator
    from konvoi.run_directory import RunDirectory

    if RunDirectory.open(path).recipe().name_of("task") == "translation":
        models.translators.append(open_run_translator(path, checkpoint))
    else:
        models.classifiers.append(open_run_classifier(path, checkpoint))


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
