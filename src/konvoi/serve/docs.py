"""The API's description as a page: FastAPI's own loads its scripts from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

Schema = dict[str, Any]
LIMITS = {
    "minimum": "at least {:,}",
    "maximum": "at most {:,}",
    "maxLength": "at most {:,} characters",
    "maxItems": "at most {:,}",
}


def page(description: Schema) -> str:
    """Of an OpenAPI description."""
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_type(name, schema) for name, schema in sorted(description["components"]["schemas"].items()))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(description["info"]["title"])}: the API</title>
<link rel="stylesheet" href="docs.css">
</head>
<body>
<main>
<h1>The API</h1>
<p><a href="./">The page</a> uses it; so can your programs. The same <a href="openapi.json">as OpenAPI</a>.</p>
{operations}
<h2>Types</h2>
{schemas}
</main>
</body>
</html>
"""


def _operation(method: str, path: str, operation: Schema) -> str:
    rows = [
        *(
            (f"?{one['name']}=", _words(one["schema"]), one.get("description", ""))
            for one in operation.get("parameters", ())
        ),
        *(
            ("body", f"{_words(one['schema'])} as {escape(kind)}", "")
            for kind, one in _contents(operation, "requestBody")
        ),
        *_answers(operation["responses"]),
    ]
    heading = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    return f"<section>{heading}<p>{escape(operation.get('description', ''))}</p>{_table(rows)}</section>\n"


def _contents(operation: Schema, key: str) -> Iterable[tuple[str, Schema]]:
    contents: dict[str, Schema] = operation.get(key, {}).get("content", {})
    return contents.items()


def _answers(responses: Schema) -> Iterator[tuple[str, str, str]]:
    for status, response in sorted(responses.items()):
        kinds = [_words(one["schema"]) for one in response.get("content", {}).values() if one.get("schema")]
        yield status, ", ".join(kinds), response["description"]


def _type(name: str, schema: Schema) -> str:
    required = schema.get("required", ())
    rows = [
        (key, _words(one) + ("" if key in required else "; may be left out"), one.get("description", ""))
        for key, one in schema.get("properties", {}).items()
    ]
    heading = f'<h3 id="{escape(name)}">{escape(name)}</h3>'
    return f"<section>{heading}<p>{escape(schema.get('description', ''))}</p>{_table(rows)}</section>\n"


def _words(schema: Schema) -> str:
    """As HTML: "list of Sentence; at most 1,000"."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        return f'<a href="#{name}">{name}</a>'
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        words = " or ".join(_words(one) for one in choices)
    elif schema.get("type") == "array":
        words = f"list of {_words(schema.get('items', {}))}"
    elif "const" in schema or "enum" in schema:
        words = " or ".join(f"&quot;{escape(str(one))}&quot;" for one in schema.get("enum") or [schema["const"]])
    else:
        words = escape(schema.get("format") or schema.get("type") or "anything")
    return "; ".join([words, *(text.format(schema[key]) for key, text in LIMITS.items() if key in schema)])


def _table(rows: list[tuple[str, str, str]]) -> str:
    """Types are HTML already."""
    cells = "".join(
        f'<tr><th scope="row"><code>{escape(name)}</code></th><td>{kind}</td><td>{escape(meaning)}</td></tr>'
        for name, kind, meaning in rows
    )
    return f"<table>{cells}</table>" if rows else ""
