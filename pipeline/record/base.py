"""What all papers have in common: closed, immutable, checked; and the types of their fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1


class Paper(BaseModel):
    """Closed, immutable and strict: a field that no schema knows is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


ShortText = Annotated[str, Field(max_length=4_000)]
Name = Annotated[str, Field(max_length=200)]
RunName = Annotated[str, Field(max_length=1_000)]
"""A run id: a model id has at most 193 characters, each of its four versions at most 200."""
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Up to thirty years: more is no time that anybody measured."""
Bytes = Annotated[int, Field(ge=0)]
