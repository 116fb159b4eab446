"""CARD.md: what a bundle is, for people; all of it from its description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from konvoi.bundle.format import Description, Variant

WORDS = {
    "bleu": "BLEU",
    "bleu_without_map": "BLEU without vocabulary map",
    "identical_percent": "same as trained, %",
    "accuracy_1": "Acc@1, %",
    "accuracy_5": "Acc@5, %",
}
ITEM = {"translation": "sentence", "classification": "picture"}


def card(description: Description, folder: str) -> str:
    """`folder` is the bundle's name, for the commands."""
    parts = (
        [f"# {description.name}", _what(description)],
        ["## Use", *_use(description, folder)],
        ["## How good, how fast", *_measured(description)],
        ["## Data", *_data(description.data)],
        ["## Limits", _limits(description)],
        ["## Recipe", f"```toml\n{description.recipe.strip()}\n```"],
    )
    return "\n\n".join(block for part in parts for block in part) + "\n"


def _what(description: Description) -> str:
    settings = description.settings
    if description.task == "translation":
        what = f"Translates from {settings['source']} to {settings['target']} (CTranslate2)."
    else:
        what = f"Tells {len(settings['classes']):,} classes of pictures apart (ONNX)."
    made = (
        f"Made by Konvoi {description.konvoi} on {description.made_at[:10]} from {' + '.join(settings['checkpoints'])}."
    )
    return f"{what} Needs no PyTorch; runs on x86-64 and arm64. {made}"


def _use(description: Description, folder: str) -> Iterator[str]:
    example = f'translate {folder} "..."' if description.task == "translation" else f"classify {folder} picture.jpg"
    lines = (f"pip install --no-deps -r {folder}/requirements.txt", f"konvoi {example}", f"konvoi serve {folder}")
    yield "```sh\n" + "\n".join(lines) + "\n```"


def _measured(description: Description) -> Iterator[str]:
    names = [name for name in WORDS if any(name in one.scores for one in description.variants.values())]
    item = ITEM[description.task]
    header = ("variant", "MB", *(WORDS[name] for name in names), f"ms for one {item}", f"{item}s/s")
    rows = [header, ("---", *["---:"] * (len(header) - 1))]
    rows += [_row(name, one, names) for name, one in description.variants.items()]
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows)
    yield f"{description.default} is used unless `--variant` names another. Measured on {description.measured_on}."
    if left_out := description.settings.get("left_out"):
        yield "Left out: " + "; ".join(f"{name} ({why})" for name, why in left_out.items()) + "."
    if scores := [f"{key} {value:.2f}" for key, value in description.scores.items() if isinstance(value, float)]:
        yield f"The trained model, by its run: {', '.join(scores)}."


def _row(name: str, variant: Variant, scores: list[str]) -> tuple[str, ...]:
    numbers = (f"{variant.scores[score]:.2f}" if score in variant.scores else "" for score in scores)
    milliseconds = "" if variant.seconds_per_item is None else f"{1000 * variant.seconds_per_item:.1f}"
    rate = "" if variant.items_per_second is None else f"{variant.items_per_second:,.0f}"
    return name, f"{variant.num_bytes / 1e6:.1f}", *numbers, milliseconds, rate


def _data(data: dict[str, Any]) -> Iterator[str]:
    sizes = data.get("pairs") or data.get("images") or {}
    amount = ", ".join(f"{count:,} {split}" for split, count in sizes.items())
    lines = {
        "Set": data.get("set"),
        "Pairs" if "pairs" in data else "Pictures": amount,
        "Licence": data.get("licence") or "not known: ask whoever made the data",
        "Citation": data.get("citation"),
    }
    yield "\n".join(f"- {name}: {value}" for name, value in lines.items() if value)


def _limits(description: Description) -> str:
    if description.task == "translation":
        return (
            "It knows what its data said, and the style it was said in; names, numbers and rare words may be wrong, and"
            " a fluent translation may still mean something else. Sentences of more than 512 pieces are split or cut."
            " Have a person check what matters."
        )
    return (
        "It always answers with one of its classes, whatever the picture shows; a probability is no measure of being"
        " right on pictures unlike those of its data. Have a person check what matters."
    )
