"""What a page shows of the checks that were recorded. A card is for people and may contain anything."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from mmload.errors import counted
from mmload.inspection.page_tables import columns, shown

_MOST = 200  # lines of a check


def checks(facts: Mapping[str, Any]) -> str:
    """What verify, parity and bench found, as far as it was recorded."""
    parts = []
    for name, result in facts["checks"].items():
        found = _FOUND[name](result) if isinstance(result, dict) else ""
        date = f" of {escape(shown(result.get('date'))[:10])}" if isinstance(result, dict) else ""
        missing = f"<p class=quiet>Not recorded: <code>mmload {name} --record</code> does.</p>"
        parts.append(f"<h3>{name.capitalize()}{date}</h3>{found or missing}")
    return "".join(parts)


def _verify(result: Mapping[str, Any]) -> str:
    faults = result.get("faults")
    if type(faults) is not int:
        return ""
    compared = ", and equals its source" if result.get("compared") else ""
    return f"<p>{counted(faults, 'fault') if faults else f'The dataset is whole{compared}'}.</p>"


def _parity(result: Mapping[str, Any]) -> str:
    verdicts = _objects(result.get("verdicts"))
    if not verdicts:
        return ""
    states = [one.get("state") for one in verdicts]
    failed, judged = states.count("fail"), states.count("fail") + states.count("pass")
    lead = f"{failed:,} of {counted(judged, 'check')} fail." if failed else f"{counted(judged, 'check')}, none fails."
    rows = [[one.get(key, "") for key in ("part", "name", "state", "text")] for one in verdicts]
    return f"<p>{lead}</p>{columns(('part', 'check', 'result', 'measured'), rows)}"


def _bench(result: Mapping[str, Any]) -> str:
    rows = []
    for one in _objects(result.get("results")):
        rate, share = one.get("images_per_second"), one.get("of_ceiling")
        known = f"{rate:,.0f}" if isinstance(rate, int | float) else one.get("failure") or "not measured"
        part = f"{share:.0%}" if isinstance(share, int | float) else ""
        rows.append([one.get("name", ""), known, part, one.get("ceiling", ""), one.get("differs", "")])
    verdict = result.get("verdict")
    lead = f"<p>{escape(shown(verdict))}</p>" if verdict else ""
    heads = ("loader", "images/s", "of its ceiling", "ceiling", "differs")
    return lead + (columns(heads, rows) if rows else "")


_FOUND = {"verify": _verify, "parity": _parity, "bench": _bench}


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)][:_MOST] if isinstance(value, list) else []
