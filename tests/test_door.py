"""The public names as a user has them: ``import mmload``, then each name, twice, and called."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from pathlib import Path

from documents import PAGES, ROOT

import mmload

IMPORTS = """
import sys
import mmload, mmload.loader.loader, mmload.store.dataset, mmload.augment
print(*sorted({'PIL', 'typer', 'torchvision', 'ray', 'xml.etree', 'mmload.builder.pipeline'} & set(sys.modules)))

import pathlib, torchvision.transforms.v2, mmload.sources.decode
theirs = set(sys.modules)
mmload.sources.make_source('imagefolder', pathlib.Path('.'), mmload.sources.decode.Decoder(), {})
new = set(sys.modules) - theirs
print('mmload.sources.imagefolder' in new,
    *{'pandas', 'pyexpat', 'defusedxml', 'csv', 'pickletools', 'torchvision.datasets'} & new)

print(mmload.augment.RandomCrop.__name__, mmload.sources.register.__name__, mmload.loader.Loader is mmload.Loader,
    mmload.parity.__name__, hasattr(mmload, 'nothing'))

names = [(name, getattr(mmload, name), getattr(mmload, name)) for name in dir(mmload) if name != '__version__']
print(*[name for name, first, second in names if first is not second or not callable(first)])
"""


def test_what_an_interpreter_that_has_imported_nothing_imports() -> None:
    """In one, as each takes seconds, and in this order, as nothing is imported twice."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=300)
    training, imagefolder, modules, names = done.stdout.splitlines()
    assert training == "", "a training script needs neither Pillow nor a command line"
    assert imagefolder == "True", "an ImageFolder needs neither pandas nor XML nor torchvision.datasets"
    assert modules == "RandomCrop register True mmload.parity False", "what documents name is there after import mmload"
    assert names == "", "public names are the same at their second use, and are called"


def test_no_module_has_a_public_names_name() -> None:
    """Importing a submodule sets it as an attribute of its package, over whatever a lazy name gave before."""
    package = Path(mmload.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not modules & set(dir(mmload))


PATHS = """
import sys
from functools import reduce
import mmload

for path in sys.argv[1:]:
    try:
        reduce(getattr, path.split('.')[1:], mmload)
    except AttributeError as error:
        print(path, error)
    except ModuleNotFoundError as error:
        assert not error.name.startswith('mmload'), path  # of an extra that is not installed
"""


def test_door_every_path_in_documents_is_there_after_import_mmload() -> None:
    texts = [page.read_text(encoding="utf-8") for page in (*PAGES, ROOT / "CHANGELOG.md")]
    paths = {path for text in texts for path in re.findall(r"\bmmload(?:\.[A-Za-z_]\w*)+", text)}
    assert len(paths) > 20
    done = subprocess.run([sys.executable, "-c", PATHS, *sorted(paths)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_door_star_import_replaces_no_builtin() -> None:
    space: dict[str, object] = {}
    exec("from mmload import *", space)
    assert space.keys() >= {"build", "Loader"}
    assert not space.keys() - {"__builtins__"} & set(dir(builtins))
