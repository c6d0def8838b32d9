"""The signatures of compiled kernels that call each other by address."""

from __future__ import annotations

CROP = (
    "void(uint8[:, :, :, ::1], int64[::1], int64[::1], int64[::1], uint8[::1], uint8[::1], int64, "
    "float32[::1], float32[::1], int64[:, :, ::1], float32[:, ::1], float32[::1], boolean, {})"
)
"""Of a crop into an output of a type: see :func:`mmload.render.cpu_kernels.crop`."""

BYTES, FLOATS = "uint8[:, :, :, ::1]", "float32[:, :, :, ::1]"
"""The types of contiguous outputs."""

KINDS = tuple(
    f"{name}[{axes}, ::1]" for name in ("float32", "uint8", "int16", "uint16") for axes in (":, :", ":, :, :")
)
"""The types of outputs that crops write, channels_last among them."""

COPY_WINDOWS = f"void({BYTES}, int64[::1], int64[::1], int64[::1], {BYTES})"
"""See :func:`mmload.render.level_kernels.copy_windows`."""

_OPERATIONS = "int64[:, ::1], float32[:, :, ::1], int64[:, ::1], uint8[::1], float32[::1], uint32[::1]"

RUN = f"void({BYTES}, uint8[::1], {_OPERATIONS})"
"""See :func:`mmload.render.level_kernels.run`."""

RENDER_CHANGED = CROP.removesuffix(")") + f", {_OPERATIONS}, {BYTES}, int64, uintp[::1])"
"""See :func:`mmload.render.changed_crops.render_changed`; of an output of a type."""

_RESIZED = f"uint8[::1], {'int64[:, ::1], ' * 3}uint8[::1], int64, uint8[::1], int64, {BYTES}"

RESIZE = f"void({_RESIZED})"
"""See :func:`mmload.render.resized_windows.resize`."""

RENDER_RESIZED = RENDER_CHANGED.replace(f"void({BYTES}, int64[::1], ", f"void({_RESIZED}, ").replace(
    "uintp[::1])", "uintp[::1], uintp[::1])"
)
"""See :func:`mmload.render.resized_crops.render_resized`; of an output of a type."""
