"""pyarrow without NumPy, for commands that must answer at once.

pyarrow needs no NumPy for what such a command reads, but imports it wherever it is installed, which
takes about half of the time that `import pyarrow` takes.
"""

from __future__ import annotations

import sys
from typing import Any


def load() -> None:
    """Import pyarrow, if nothing has yet, as on a machine without NumPy.

    For a process that does nothing else: its pyarrow converts nothing to NumPy or pandas any more.
    NumPy itself can be imported afterwards.
    """
    modules: dict[str, Any] = sys.modules
    if "pyarrow" in modules or "numpy" in modules:
        return
    modules["numpy"] = None  # the documented way to make an import fail
    try:
        import pyarrow  # noqa: F401 -- for those who import it next
    finally:
        del modules["numpy"]
