"""One check in a process of its own: `python -m pipeline.first_run.probe MODULE FUNCTION FOLDER`.

It leaves verdict.json in the folder. A process that ends without one is a result as well, which
the session tells by how it ended.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from pipeline.first_run.probing import Context, NotTried, WorkerFailed, tail
from pipeline.record import write_atomically

VERDICT = "verdict.json"


def main(module: str, function: str, folder: Path) -> None:
    try:
        probe = getattr(importlib.import_module(module), function)
        seen = probe(Context.load(folder))
        told = {"holds": seen.holds, "text": seen.text}
    except NotTried as why:
        told = {"holds": None, "text": str(why)}
    except WorkerFailed as failed:
        told = {"holds": False, "text": str(failed)}
    except Exception:
        # A fault of the probe says nothing of the device.
        told = {"holds": None, "text": f"the check itself failed:\n{tail(traceback.format_exc())}"}
    write_atomically(folder / VERDICT, json.dumps(told).encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
