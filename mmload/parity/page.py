"""Writes a report as one self-contained HTML page: the verdicts, and the worst rows with their difference.

All names are escaped, and images are embedded as PNGs. It reads no file.
"""

from __future__ import annotations

import base64
import io
from html import escape

import PIL.Image
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from mmload.parity.verdict import Report, Verdict, WorstRow

_WIDTH = 256  # lower bound on the width of a picture on the page, so that tiny images are visible
# Contrast with the page, light / dark (WCAG), all at least 4.5: text 15.9 / 13.1, green 7.2 / 8.7, red on its row
# 6.4 / 6.6, quiet 5.7 / 7.9.
_STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --line: #ddd; --good: #27632a; --bad: #b00020;
--bad-row: #fdecea; --quiet: #666 }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; --page: #15181c; --line: #3a3f45; --good: #7cc681;
--bad: #ff8a80; --bad-row: #3a1f22; --quiet: #a8adb3 } }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--text);
background: var(--page); overflow-wrap: anywhere }
h1, h2 { line-height: 1.25 } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td:first-child, td:nth-child(2), th { white-space: nowrap } td:first-child { padding-left: .4rem }
.pass td:first-child { color: var(--good) } .fail { background: var(--bad-row) }
.fail td:first-child, .fail b { color: var(--bad); font-weight: bold } .note { color: var(--quiet) }
figure { margin: 1.5rem 0 } figcaption { margin-bottom: .4rem } .three { display: flex; gap: 1rem }
.three div { text-align: center; min-width: 0 } img { image-rendering: pixelated; display: block; max-width: 100%;
height: auto; box-sizing: border-box; border: 1px solid var(--line); margin-bottom: .2rem }
@media (max-width: 40rem) { tr.pass, tr.fail, tr.note { display: block; border-bottom: 1px solid var(--line);
padding: .3rem .4rem } .pass td, .fail td, .note td { display: inline; border: 0; padding: 0 .4rem 0 0 }
.pass td:last-child, .fail td:last-child, .note td:last-child { display: block } .three { gap: .5rem } }
"""


def page(report: Report) -> str:
    """The report as HTML."""
    state = "everything holds" if report.passed else f"{len(report.failures)} of {len(report.verdicts)} lines fail"
    body = report.as_json()
    about = {**body["settings"], "date": body["date"], **body["versions"]}
    facts = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in about.items())
    rows = "".join(map(_row, report.verdicts))
    figures = "".join(map(_figure, report.worst)) or "<p>No row has pixels to compare.</p>"
    equal = report.worst and not any(row.greatest for row in report.worst)
    heading = "Some rows, all equal to their reference" if equal else "The rows that differ most"
    title = f"Parity of {escape(str(report.settings['dataset']))}: {state}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style>"
        f"</head><body><h1>{title}</h1><table>{rows}</table><h2>{heading}</h2>{figures}"
        f"<h2>About</h2><table>{facts}</table></body></html>\n"
    )


def amplified(stored: Tensor, reference: Tensor) -> tuple[Tensor, int]:
    """The difference of two images [C, H, W] around gray, scaled so that its largest value is visible.

    Returns:
        uint8 [C, H, W], 128 where they are equal; and the scale factor.
    """
    apart = stored.to(torch.int32) - reference.to(torch.int32)
    factor = max(1, 127 // max(int(apart.abs().max()), 1))
    return (128 + apart * factor).clamp(0, 255).to(torch.uint8), factor


def _row(verdict: Verdict) -> str:
    looks = f"<br><b>{escape(verdict.diagnosis)}</b>" if verdict.diagnosis else ""
    cells = "".join(f"<td>{escape(text)}</td>" for text in (verdict.state, verdict.part, verdict.name))
    return f'<tr class="{verdict.state}">{cells}<td>{escape(verdict.text)}{looks}</td></tr>'


def _figure(row: WorstRow) -> str:
    difference, factor = amplified(row.stored, row.reference)
    pictures = (
        (row.stored, "stored"),
        (row.reference, "reference"),
        (difference, f"difference x {factor}, around gray" if row.greatest else "no difference"),
    )
    shown = "".join(f"<div>{_picture(pixels)}{escape(name)}</div>" for pixels, name in pictures)
    apart = "equal to the reference"
    if row.greatest:
        apart = f"at most {row.greatest} levels, mean {row.mean:.3f}, PSNR {row.psnr:.1f} dB"
    looks = f", looks like {row.diagnosis}" if row.diagnosis else ""
    caption = f"{row.split} row {row.row}: {row.file} ({row.kind}); {apart}{looks}"
    return f'<figure><figcaption>{escape(caption)}</figcaption><div class="three">{shown}</div></figure>'


def _picture(pixels: Tensor) -> str:
    """An image as an ``img`` element with an embedded PNG; only the first channel unless there are 1 or 3."""
    image: PIL.Image.Image = F.to_pil_image(pixels if len(pixels) in (1, 3) else pixels[:1])
    file = io.BytesIO()
    image.save(file, format="PNG")
    width = image.width * max(1, -(-_WIDTH // image.width))
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img width="{width}" alt="" src="data:image/png;base64,{data}">'
