"""Small builds: a folder of JPEGs and PNGs of many sizes, and the recipe that makes rows of 16 x 20 of it."""

from __future__ import annotations

import json
import zlib

import numpy as np
from PIL import Image

from mmload.builder.recipe import BuildRecipe
from mmload.store.manifest import sealed_text

EXACT = ({"step": "Resize", "size": [16, 20]},)


def make_pictures(root, classes=3, each=5):
    """An ImageFolder of ``classes`` classes with ``each`` noisy JPEGs and PNGs."""
    random = np.random.default_rng(0)
    for c in range(classes):
        folder = root / f"class{c}"
        folder.mkdir(parents=True)
        for i in range(each):
            height, width = random.integers(12, 40, 2)
            pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i}.{'png' if i % 2 else 'jpg'}")
    return root


def resealed(body):
    """Returns a changed manifest as text, with the checksum of its new content; if it can have none, as plain JSON."""
    try:
        return sealed_text(body).encode("utf-8", "backslashreplace").decode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return json.dumps(body)


def changed_manifest(dataset, change):
    """Changes the JSON of a dataset's manifest by a function, with the checksum of its new content."""
    body = json.loads((dataset / "dataset.json").read_text(encoding="utf-8"))
    change(body)
    (dataset / "dataset.json").write_text(resealed(body), encoding="utf-8")


def reseal_file(path, split, shard, name):
    """Gives a changed file of a shard the size and checksum that the manifest expects, as a faulty writer would."""
    body = json.loads((path / "dataset.json").read_text())
    content = (path / split / f"{shard:06d}" / f"{name}.memmap").read_bytes()
    files = body["splits"][split]["shards"][shard]["files"]
    files[name] = {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    (path / "dataset.json").write_text(resealed(body))


def recipe(root, out, **more):
    options = {"kind": "imagefolder", "transforms": EXACT, "shard_bytes": 4000, **more}
    return BuildRecipe(root=root, out=out, **options)
