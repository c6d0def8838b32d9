"""Pictures inside of HTML, as data addresses: no other file is needed."""

from __future__ import annotations

import base64
import io
from html import escape

from PIL import Image


def figure(image: Image.Image, description: str, *, jpeg: bool = False) -> str:
    """An ``img`` element with the picture in it.

    Args:
        image: the picture.
        description: of it, for readers who do not see it.
        jpeg: smaller and not exact, for pages with many photographs; else PNG.
    """
    file = io.BytesIO()
    if jpeg:
        image.save(file, "JPEG", quality=82)
    else:
        image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    kind = "jpeg" if jpeg else "png"
    size = f'width="{image.width}" height="{image.height}"'
    return f'<img {size} alt="{escape(description, quote=True)}" src="data:image/{kind};base64,{data}">'
