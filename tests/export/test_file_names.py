"""File names that every file system takes."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from mmload.export.new_folder import distinct_names, file_name

_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


def is_safe(name: str) -> bool:
    """By the rules of Windows, which are the strictest; and it is no hidden file and no option."""
    plain = name.isprintable() and not set(name) & set('<>:"/\\|?*') and name == unicodedata.normalize("NFC", name)
    edges = not name.startswith((".", "-", "~", " ")) and not name.endswith((".", " "))
    device = unicodedata.normalize("NFKC", name).casefold().partition(".")[0].strip() in _DEVICES
    return plain and edges and not device and 0 < len(name.encode("utf-8")) <= 90


@given(st.lists(st.text(st.characters(codec=None)), max_size=8))
@example(["..", ".", "", "a/../../b", "COM\u00b9.txt", "con ", "-rf", "NUL", "nul", "\u0130", "i\u0307", "ß", "ss"])
@example(["a", "A", "a_1", "A_1", "a"])
@example(["e\u0301" * 60, "\U0001f600" * 40, "x" * 79 + "  y", "con" + "\u200b"])
def test_names_are_safe_and_differ(texts: list[str]) -> None:
    names = distinct_names(texts)
    assert all(map(is_safe, names))
    assert len({unicodedata.normalize("NFKC", name).casefold() for name in names}) == len(texts)


def test_plain_names_stay() -> None:
    assert distinct_names(["ant", "bee 2", "tench, Tinca tinca", "蟻"]) == ("ant", "bee 2", "tench, Tinca tinca", "蟻")
    assert file_name("a/b") == "a_b"
