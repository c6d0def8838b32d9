"""The public names as a user has them: ``import mmload``, then each name, twice, and called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mmload


def in_fresh_python(code: str) -> str:
    """What ``code`` prints in an interpreter that has imported nothing yet."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()


def test_a_public_name_is_the_same_at_its_second_use() -> None:
    code = (
        "import mmload; print([name for name in mmload.__all__ if not callable(first := getattr(mmload, name)) "
        "or first is not getattr(mmload, name)])"
    )
    assert in_fresh_python(code) == "[]"


def test_no_module_has_a_public_names_name() -> None:
    """Importing a submodule sets it as an attribute of its package, over whatever a lazy name gave before."""
    package = Path(mmload.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert not modules & set(mmload.__all__)


def test_the_modules_of_the_documents_are_there_after_import_mmload() -> None:
    code = (
        "import mmload; print(mmload.augment.RandomCrop.__name__, mmload.sources.register.__name__, "
        "mmload.parity.__name__, mmload.loader.Loader is mmload.Loader, hasattr(mmload, 'nothing'))"
    )
    assert in_fresh_python(code) == "RandomCrop register mmload.parity True False"


def test_build_can_be_called_again_and_again(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "photos" / "a").mkdir(parents=True)
    Image.new("RGB", (16, 16), (10, 20, 30)).save(tmp_path / "photos" / "a" / "one.png")
    for number in range(2):
        recipe = mmload.BuildRecipe(kind="imagefolder", root=tmp_path / "photos", out=tmp_path / f"out{number}")
        assert mmload.build(recipe).built == 1
    assert mmload.open(tmp_path / "out1")["train"][0].images.shape == (3, 16, 16)
