"""Templates and style sheets of the pages, and the hashes by which a content security policy names them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tracekit.report import squeeze, words
from tracekit.report.palette import STATIC
from tracekit.runs import runs


def static(name: str) -> str:
    """Return a static file's text."""
    return (STATIC / name).read_text("utf-8")


def styles_of(*names: str) -> str:
    """Return static style sheets as one, squeezed."""
    return "".join(squeeze.style(static(name)) for name in names)


def environment() -> Environment:
    """Return the environment of the page's templates."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "clean": words.clean,
        "duration": words.duration,
        "size": words.size,
        "ratio": words.ratio,
        "runs": runs,
        "plural": words.plural,
    }
    return made


def content_hash(text: str) -> str:
    """Return the hash by which a content security policy names a style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
