"""The extension (csrc/device.cpp, csrc/group.cpp): its functions take and give plain values."""

from typing import Any

def __getattr__(name: str) -> Any: ...
