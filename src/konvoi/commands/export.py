"""konvoi export: a run becomes a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from konvoi.bundle.format import Bundle
from konvoi.commands.output import aligned, megabytes, progress_display
from konvoi.export.make import make_bundle

SCORES = {"bleu": "BLEU", "accuracy_1": "Acc@1"}


def export(
    path: Path, to: Path, checkpoint: str, *, precisions: list[str], sentences: Path | None, force: bool
) -> None:
    with progress_display(in_lines=True) as report:
        bundle = make_bundle(
            path, to, checkpoint, precisions=precisions, sentences=sentences, force=force, report=report
        )
    typer.echo(aligned([*_rows(bundle)], numbers=True))
    for name, why in bundle.description.settings.get("left_out", {}).items():
        typer.echo(f"left out: {name}: {why}")
    typer.echo(f"measured on {bundle.description.measured_on}")
    use = f'translate {to} "..."' if bundle.description.task == "translation" else f"classify {to} IMAGE"
    typer.echo(f"\nuse it:  konvoi {use}\n         konvoi serve {to}")


def _rows(bundle: Bundle) -> Iterator[tuple[str, ...]]:
    description = bundle.description
    score = "bleu" if description.task == "translation" else "accuracy_1"
    yield "variant", "size", SCORES[score], "ms for one", "per second"
    for name, one in description.variants.items():
        scored = f"{one.scores[score]:.2f}" if score in one.scores else "-"
        label = f"{name} (default)" if name == description.default else name
        assert one.seconds_per_item is not None and one.items_per_second is not None
        speeds = f"{1000 * one.seconds_per_item:.1f}", f"{one.items_per_second:,.0f}"
        yield label, megabytes(one.num_bytes), scored, *speeds
