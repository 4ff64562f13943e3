"""Texts that people see, kept whole: a test fails when one of them changes.

TRN_QUALIFY_WRITE_GOLDEN=1 writes them anew; whoever does looks at them as their reader would.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    """Assert that `text` is what tests/golden/<name> holds."""
    path = FOLDER / name
    if os.environ.get("TRN_QUALIFY_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs"
