"""The ``mmload`` command: parse, make one call, show the result.

Only here, in cli_bench.py, cli_parity.py, terminal.py and interrupt.py is anything shown, or the program ended.
Exit codes: 0 done, 1 it failed, 2 it was asked wrongly, 130 interrupted, 141 nobody reads what it shows, 143 ended.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import mmload
from mmload import cli_bench, cli_parity
from mmload import recipe as recipes
from mmload.errors import UsageError
from mmload.interrupt import fail, interruptible
from mmload.terminal import last_resort, progress_bar

if TYPE_CHECKING:
    from mmload.build import BuildReport
    from mmload.dataset import Dataset


class _WordPairs(TyperGroup):
    """Commands whose names may be of two words, as ``bench build`` beside ``bench``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the words begin with, the longer name first."""
        pair = " ".join(args[:2])
        return super().resolve_command(ctx, [pair, *args[2:]] if pair in self.commands else args)


app = typer.Typer(
    cls=_WordPairs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build an image dataset once into memory-mapped tensors; feed training from it at memory speed.",
)


_Misread: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises of words that it cannot make sense of: click's UsageError, which it keeps under no public name."""


def main() -> None:
    """Run the command line and exit; every error becomes one line unless ``--debug`` is given."""
    given = sys.argv[1:]
    words = [word for word in given if word != "--debug"]
    with last_resort("--debug" in given):
        try:
            code = app(args=words or ["--help"], standalone_mode=False)
        except _Misread as error:
            raise UsageError(_misread(error, words)) from error
        sys.exit(code or (0 if words else UsageError.exit_code))


def _misread(error: Any, words: list[str]) -> str:
    """A line of what typer tells in several, in a frame, with the value that it leaves out."""
    said = " ".join(error.format_message().split())
    for name in getattr(getattr(error, "param", None), "opts", ()):
        for word, after in zip(words, [*words[1:], ""], strict=True):
            option, joined, value = word.partition("=")
            if option == name and isinstance(error, typer.BadParameter):
                said = f"{name} is {value if joined else after!r}: {error.message}"
    command = error.ctx.command_path if error.ctx is not None else "mmload"
    return f"{said[:1].lower()}{said[1:].rstrip('.')}; see {command} --help"


def _version(asked: bool) -> None:
    if asked:
        print(f"mmload {mmload.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Shown by --help."""


@app.command()
def build(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KIND ROOT OUT", help="As in: imagefolder photos photos-256; [ROOT] [OUT] with --config."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A recipe, such as configs/imagefolder_256.toml.")] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Without --config: the short side is resized to this, then the middle square cut out (for detection: "
            "the whole image fitted into the square). 256 for imagefolder and voc, else rows stay as they are."
        ),
    ] = None,
    val_fraction: Annotated[float | None, typer.Option(help="Hold out this share of each class as split val.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which samples --val-fraction holds out.")] = None,
    allow_empty: Annotated[bool, typer.Option("--allow-empty", help="Class folders may be empty.")] = False,
    task: Annotated[
        str | None, typer.Option(help="voc: detection, classification, segmentation or single_label.")
    ] = None,
    labels: Annotated[str | None, typer.Option(help="cifar100: fine or coarse.")] = None,
    dataset: Annotated[str | None, typer.Option(help="python: package.module:callable.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="voc, cifar10, cifar100: fetch it to ROOT first.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any other key of a source in docs/recipes.md, as --set year=2007."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")] = None,
    processes: Annotated[
        int | None, typer.Option(help="Processes over shards; one for every 8 cores by default.")
    ] = None,
    shard_size: Annotated[str | None, typer.Option(help="Bytes of a shard at most; 1GiB by default.")] = None,
    shuffle_seed: Annotated[
        int | None, typer.Option(help="Shuffle samples over rows, for reading in block order later.")
    ] = None,
    exif_orient: Annotated[
        bool, typer.Option("--exif-orient", help="Turn images as their EXIF orientation says.")
    ] = False,
    decode: Annotated[
        str | None, typer.Option(help="Where JPEGs are decoded: cpu, or cuda, which gives slightly other pixels.")
    ] = None,
    on_error: Annotated[str, typer.Option(help="A sample that cannot be read: fail, or skip it.")] = "fail",
    max_errors: Annotated[
        str | None, typer.Option(help="With --on-error skip: the most to leave out, as 20 or 1%.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset at OUT.")] = False,
) -> None:
    """Build a dataset: decode and transform every image once, and store the rows."""
    given = words or []
    named = {
        "val_fraction": val_fraction,
        "seed": seed,
        "allow_empty": allow_empty or None,
        "task": task,
        "labels": labels,
        "dataset": dataset,
        "download": download or None,
    }
    options = {key: value for key, value in named.items() if value is not None} | _settings(setting or [])
    if config and size is not None:
        raise UsageError(f"--size and --config are both given; {config} says what happens to the images")
    recipe = _recipe_of_config(config, given) if config else _recipe_of_words(given, size, options)
    recipe = replace(recipe, options={**recipe.options, **options})
    recipe = _with_options(recipe, shard_size, shuffle_seed, exif_orient, decode)
    from mmload.build import build as run

    with interruptible("run the same command again to go on"), progress_bar("build", "img") as progress:
        report = run(
            recipe,
            overwrite=overwrite,
            on_error=on_error,
            max_errors=max_errors,
            threads=threads,
            processes=processes,
            progress=progress,
        )
    _show_build(report, recipe)


@app.command()
def verify(
    dataset: Annotated[Path, typer.Argument(help="A built dataset.")],
    source: Annotated[
        Path | None, typer.Option(help="Decode this, what it was built from, again and compare every pixel.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")] = None,
) -> None:
    """Check every file of a dataset against its checksum, and with --source every pixel against its image."""
    from mmload import verify as checks

    with interruptible("nothing was changed"), progress_bar("verify", "B") as progress:
        faults = checks.verify(dataset, progress=progress)
    if source is not None and not faults:
        with interruptible("nothing was changed"), progress_bar("compare", "img") as progress:
            faults = checks.compare(dataset, source, threads=threads, progress=progress)
    for fault in faults:
        print(f"bad: {fault}")
    if faults:
        again = "mend what can be mended" if source is None else "see which side changed, or mend"
        fail(f"{dataset}: {len(faults)} faults; to {again}: mmload repair {dataset} --source ROOT", 1)
    print(f"{dataset} is whole" + (f" and equals {source}" if source is not None else ""))


@app.command()
def repair(
    dataset: Annotated[Path, typer.Argument(help="A built dataset.")],
    source: Annotated[Path, typer.Option(help="What it was built from.")],
    threads: Annotated[int | None, typer.Option(help="Decoding threads; the cores available by default.")] = None,
) -> None:
    """Build exactly the bad shards of a dataset again, from its source."""
    from mmload import verify as checks

    with interruptible("run the same command again to go on"), progress_bar("repair", "img") as progress:
        mended = checks.repair(dataset, source, threads=threads, progress=progress)
    for fault in mended:
        print(f"mended: {fault}")
    print(f"{dataset} is whole" + ("" if mended else ", there was nothing to mend"))


@app.command()
def info(dataset: Annotated[Path, typer.Argument(help="A built dataset.")]) -> None:
    """Show what is in a dataset."""
    from mmload.dataset import open as open_dataset

    _show_dataset(open_dataset(dataset))


app.command()(cli_parity.parity)
app.command()(cli_bench.bench)
app.command("bench build")(cli_bench.bench_build)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where to make it; must be new or an earlier demo's.")] = Path(
        "mmload-demo"
    ),
) -> None:
    """Make a few hundred photographs, build them, read them, bench them, train on them. No network needed."""
    from mmload.demo import run

    with interruptible("run it again to start afresh"):
        run(folder, print)


def _settings(pairs: list[str]) -> dict[str, object]:
    """KEY=VALUE words; a value is TOML where it can be (2007, true, ["a", "b"]), else the text itself."""
    settings: dict[str, object] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not found or not key:
            raise UsageError(f"--set is {pair!r}; write KEY=VALUE, as in --set year=2007")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = text
    return settings


def _recipe_of_words(words: list[str], size: int | None, options: Mapping[str, object]) -> recipes.BuildRecipe:
    if len(words) != 3:
        raise UsageError(
            f"build got {len(words)} argument{'s' * (len(words) != 1)}, expected 3: KIND ROOT OUT, "
            "as in: mmload build imagefolder photos photos-256 --size 256"
        )
    kind, root, out = words
    if size is None and kind in ("imagefolder", "voc"):
        size = 256
    transforms: tuple[dict[str, object], ...] = ()
    if size is not None:
        boxed = options.get("task") == "detection"
        transforms = ({"step": "Letterbox", "size": size},) if boxed else recipes.square(size)
    return recipes.BuildRecipe(kind=kind, root=Path(root), out=Path(out), transforms=transforms)


def _recipe_of_config(config: Path, words: list[str]) -> recipes.BuildRecipe:
    recipe = recipes.load(config)
    if len(words) > 2:
        raise UsageError(f"build --config got {len(words)} arguments, expected at most 2: [ROOT] [OUT]")
    paths = dict(zip(("root", "out"), map(Path, words), strict=False))
    recipe = replace(recipe, **paths)  # type: ignore[arg-type]  # both fields are Path | None
    for name in ("root", "out"):
        if getattr(recipe, name) is None:
            raise UsageError(f"{config} names no {name}: add it after --config {config}, as in: ROOT OUT")
    return recipe


def _with_options(
    recipe: recipes.BuildRecipe,
    shard_size: str | None,
    shuffle_seed: int | None,
    exif_orient: bool,
    decode: str | None,
) -> recipes.BuildRecipe:
    """The recipe with what the command line says on top."""
    if shard_size is not None:
        recipe = replace(recipe, shard_bytes=recipes.parse_bytes(shard_size))
    if shuffle_seed is not None:
        recipe = replace(recipe, shuffle_seed=shuffle_seed)
    if exif_orient:
        recipe = replace(recipe, decode={**recipe.decode, "exif_orient": True})
    if decode is not None:
        recipe = replace(recipe, decode={**recipe.decode, "device": decode})
    return recipe


def _show_build(report: BuildReport, recipe: recipes.BuildRecipe) -> None:
    from mmload.dataset import open as open_dataset

    splits = report.manifest.splits
    rows = sum(split.rows for split in splits.values())
    if report.built:
        rate = f"{report.built:,} images in {report.seconds:.1f} s ({report.built / report.seconds:,.0f} images/s)"
        went_on = f", {rows - report.built:,} from an earlier run" if report.built < rows else ""
        print(f"built {report.out}: {rate}{went_on}")
    else:
        print(f"{report.out} is there already, of the same source and recipe: nothing to do")
    _show_dataset(open_dataset(report.out))
    for name, notes in report.manifest.card.get("notes", {}).items():
        for note in notes:
            print(f"  note on {name}: {note}")
    first = next(iter(splits))
    print("next:")
    if recipe.kind == "imagefolder":
        print(f"  mmload bench {report.out} --source {recipe.root}")
    print(f'  for batch in mmload.Loader("{report.out}", split="{first}", batch_size=64, shuffle=True): ...')


def _show_dataset(dataset: Dataset) -> None:
    for name, split in dataset.items():
        shards = len(split.record.shards)
        size = f"{split.record.bytes / 2**20:,.1f} MiB in {shards} shard{'s' * (shards != 1)}"
        print(f"  {name}: {len(split):,} rows, {len(split.classes)} classes, {size}")
        for field, spec in split.fields.items():
            print(f"    {field:<10} {spec.dtype} {list(spec.shape)}")
        if split.mean:
            print(f"    mean {_decimals(split.mean)}   std {_decimals(split.std)}")
        if split.classes:
            shown = ", ".join(split.classes[:6]) + (", ..." if len(split.classes) > 6 else "")
            print(f"    classes    {shown}")


def _decimals(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)
