"""The command neuronx-cc: `--version`, and `compile MODULE ... --output NEFF` (TRAINIUM.md 3.1).

The NCC codes, their words and exit 70 are those of TRAINIUM.md 6.2 and 8.2 and of the compiler's
public error-code pages; a fault may name another code in "code".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from trn_simulator import faults

from neuronxcc import __version__, neff

_FAILED = 70


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"NeuronX Compiler version {__version__}")
        return 0
    if not arguments or arguments[0] != "compile" or "--output" not in arguments:
        print("usage: neuronx-cc compile MODULE [options] --output NEFF", file=sys.stderr)
        return 2
    time.sleep(float(os.environ.get("TRN_SIMULATOR_COMPILE_SECONDS", 0)))
    if told := faults.told("unsupported_operator"):
        code = told.get("code", "NCC_EVRF001")
        print(f"[{code}] An unsupported operator was used.", file=sys.stderr)
        return _FAILED
    if told := faults.told("compiler_error"):
        code = told.get("code", "NCC_IBCG901")
        print(f"[INTERNAL_ERROR] [{code}] BIRCodeGenLoop assertion err", file=sys.stderr)
        return _FAILED
    if faults.told("compiler_exit_70"):
        return _FAILED
    if faults.told("compile_hang"):
        while True:
            time.sleep(3600)
    if faults.told("host_oom_kill", of="compiler"):
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does: no word from the process
    text = Path(arguments[1]).read_bytes()
    Path(arguments[arguments.index("--output") + 1]).write_bytes(neff.pack(text))
    return 0
