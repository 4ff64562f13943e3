"""What a script prints: echoed line by line, freed of secrets, kept within bounds, searched."""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from pipeline import diagnosis
from pipeline.lines import plain_line
from pipeline.record import Finding

Say = Callable[[str], None]

LOG_HEAD, LOG_TAIL = 256 * 1024, 768 * 1024
"""Bytes of a log that are kept, from its beginning and its end: with both, a log stays under the
size at which GitHub's viewer gives up (1 MiB), whatever a compiler prints."""

MAX_FINDINGS = 20
"""Kinds of findings that are kept: one is enough for the verdict, the rest is for people."""

_SHOWN = 4_096
"""Characters of a line that are said; the file has all of it."""

_LINE = 64 * 1024
_OVERLAP = 512
"""Bytes of a line above `_LINE` that are looked at again with what follows them."""

_SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)
_SECRET_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|AKIA[0-9A-Z]{16}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


class Log:
    """A run's log. `findings`: lines that speak against the run, the first of each kind.

    They are looked for in the stream, since the middle of a long log is not kept.
    """

    def __init__(self, path: Path, say: Say) -> None:
        self.path = path
        self.findings: tuple[Finding, ...] = ()
        self._say = say
        self._redact = redactor(os.environ)
        self._stream = path.open("wb")
        self._head = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0

    def follow(self, source: IO[bytes]) -> None:
        """Take everything that `source` gives, until it ends; what comes after `close` is dropped.

        The file keeps the text as it came; what is said of it is harmless to whoever shows it.
        """
        before = ""
        for raw in iter(lambda: source.readline(_LINE), b""):
            line = self._redact(raw.decode(errors="replace"))
            try:
                self._keep(line.encode())
            except OSError:
                pass  # a full disk must not end the search
            except ValueError:
                return  # closed: a process that left the script's group holds the other end
            self._search(before + line)
            before = "" if raw.endswith(b"\n") else line[-_OVERLAP:]
            self._say(plain_line(line[:_SHOWN]))

    def _search(self, line: str) -> None:
        if len(self.findings) >= MAX_FINDINGS:
            return
        found = diagnosis.findings(line)
        if found and all(found.signature != known.signature for known in self.findings):
            self.findings = (*self.findings, found)

    def _keep(self, data: bytes) -> None:
        if self._head + len(data) <= LOG_HEAD and not self._tail:
            self._head += len(data)
            self._stream.write(data)
            self._stream.flush()
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > LOG_TAIL:
            gone = len(self._tail.popleft())
            self._tail_bytes -= gone
            self._dropped += gone

    def close(self) -> None:
        """Write what was held back."""
        with contextlib.suppress(OSError):
            if self._dropped:
                self._stream.write(f"[... {self._dropped} bytes left out ...]\n".encode())
            self._stream.writelines(self._tail)
            self._stream.flush()
        with contextlib.suppress(OSError):
            self._stream.close()

    def text(self) -> str:
        """What was kept; after `close`."""
        try:
            return self.path.read_text(errors="replace")
        except OSError:
            return b"".join(self._tail).decode(errors="replace")


def redact(text: str, environment: Mapping[str, str]) -> str:
    """`text` without what looks like a token, and without the values of variables that hold one."""
    return redactor(environment)(text)


def redactor(environment: Mapping[str, str]) -> Callable[[str], str]:
    """`redact` for many texts and the variables as they are now."""
    secrets = sorted(
        (
            value
            for name, value in environment.items()
            if _SECRET_NAMES.search(name) and len(value) >= 8
        ),
        key=len,
        reverse=True,
    )

    def redacted(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "[redacted]")
        return _SECRET_SHAPES.sub("[redacted]", text)

    return redacted
