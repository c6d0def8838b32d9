"""Types of the options of sources, checked where a source is made; descriptions say what to use."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

_Text = Annotated[str, Meta(min_length=1)]

Fraction = Annotated[
    Annotated[float, Meta(gt=0, lt=1)] | None, Meta(description="a fraction between 0 and 1, for example 0.1")
]
Seed = Annotated[int, Meta(description="an integer")]
Text = Annotated[_Text | None, Meta(description="a text")]
FilePath = Annotated[_Text | None, Meta(description="a path")]
PathOrTable = Annotated[_Text | dict[str, _Text] | None, Meta(description="a path, or a table of paths by split")]
Names = Annotated[list[str] | None, Meta(description="a list of different names")]
Table = Annotated[dict[str, str] | None, Meta(description="a table of texts")]
Values = Annotated[dict[str, Any] | None, Meta(description="a table")]
