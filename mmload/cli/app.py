"""The ``mmload`` program: registers the commands, and makes every error one line and an exit code.

Each command has a file of its own in this room: it parses, makes one call, and shows the result. Nothing outside this
room prints or ends the program.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the output was closed, 143 terminated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import mmload
from mmload.cli.bench import bench
from mmload.cli.build import build, update
from mmload.cli.change import add_field, subset
from mmload.cli.copies import export, pull, push
from mmload.cli.info import doctor, info
from mmload.cli.parity import parity
from mmload.cli.terminal import interruptible, last_resort, show
from mmload.cli.verify import gc, verify
from mmload.cli.view import browse, preview, report
from mmload.errors import UsageError

HABITS = {
    # Commands.
    "ls": "mmload info DATASET",
    "list": "mmload info DATASET, or mmload build list ROOT OUT to build from a list of files",
    "show": "mmload info DATASET",
    "stats": "mmload info DATASET, or mmload report DATASET for a page",
    "log": "mmload info DATASET --versions",
    "versions": "mmload info DATASET --versions",
    "where": "mmload info DATASET --row N, or --file PATH",
    "view": "mmload browse DATASET, or mmload preview DATASET for a picture",
    "check": "mmload verify DATASET",
    "repair": "mmload verify DATASET --repair --source ROOT",
    "delete": "rm -r DATASET, as it is a folder; mmload gc DATASET frees the space of earlier versions",
    "rm": "rm -r DATASET, as it is a folder; mmload gc DATASET frees the space of earlier versions",
    "csv": "mmload build list ROOT OUT --set file=FILE.csv",
    "convert": "mmload build KIND ROOT OUT, or mmload export DATASET OUT for other programs",
    "create": "mmload build KIND ROOT OUT",
    "upload": "mmload push DATASET URL",
    "download": "mmload pull URL OUT",
    "benchmark": "mmload bench DATASET --source ROOT",
    "bench build": "mmload bench DATASET --source ROOT --build",
    "train": "mmload.Loader in your training script; mmload build shows the line when it is done",
    # Options.
    "--update": "mmload update OUT ROOT",
    "--append": "mmload update OUT ROOT --append",
    "--checksum": "mmload update OUT ROOT --checksum",
    "--dry-run": "mmload update OUT ROOT --dry-run",
    "--workers": "--threads N",
    "--num-workers": "--threads N",
    "--jobs": "--threads N",
    "--val-split": "--val-fraction SHARE, such as 0.1",
    "--force": "--overwrite",
    "--resize": "--size PIXELS",
    "--image-size": "--size PIXELS",
    "--recipe": "--augment NAME, or --steps NAME of mmload bench",
    "--format": "--to FORMAT",
    "--rows": "--row N, once for each row",
}
"""A command or an option that does not exist -> what to type in its place."""


class _Commands(TyperGroup):
    """Commands; other programs' names of them are answered with what to type."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that the words begin with; raises UsageError for a name of :data:`HABITS`."""
        for name in (" ".join(args[:2]), args[0]):
            if name in HABITS:
                raise UsageError(f"there is no command {name}; type: {HABITS[name]}")
        return super().resolve_command(ctx, args)


class _Command(TyperCommand):
    """Command whose help shows its options under the headings that they are declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, a section for each heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # to import rich takes as long as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Build an image dataset once into memory-mapped tensors; feed training from it at memory speed.",
)


_Misread: type[Exception] = typer.BadParameter.__mro__[1]
"""Exception that typer raises for invalid arguments: click's UsageError, which has no public name in typer."""


def main() -> None:
    """Runs the command line and exits; every error becomes one line unless ``--debug`` is given."""
    arguments = sys.argv[1:]
    words = [word for word in arguments if word != "--debug"]
    with last_resort("--debug" in arguments):
        try:
            code = app(args=words or ["--help"], standalone_mode=False)
        except _Misread as error:
            raise UsageError(_misread(error, words)) from error
        sys.exit(code or (0 if words else UsageError.exit_code))


def _misread(error: Any, words: list[str]) -> str:
    """Shortens typer's message to one line, and adds the invalid value, which typer leaves out, or what to type."""
    unknown = getattr(error, "option_name", None)
    if unknown in HABITS:
        return f"there is no option {unknown}; type: {HABITS[unknown]}"
    message = " ".join(error.format_message().split())
    for name in getattr(getattr(error, "param", None), "opts", ()):
        for word, after in zip(words, [*words[1:], ""], strict=True):
            option, joined, value = word.partition("=")
            if option == name and isinstance(error, typer.BadParameter):
                message = f"{name} is {value if joined else after!r}: {error.message.removeprefix('Value error, ')}"
    command = error.ctx.command_path if error.ctx is not None else "mmload"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; see {command} --help"


def _version(requested: bool) -> None:
    if requested:
        show(f"mmload {mmload.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


for command in (
    build,
    update,
    verify,
    info,
    preview,
    report,
    browse,
    subset,
    add_field,
    export,
    push,
    pull,
    parity,
    bench,
    gc,
    doctor,
):
    app.command(cls=_Command)(command)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Destination; must be new or an earlier demo.")] = Path("mmload-demo"),
) -> None:
    """Make a few hundred photographs, build, bench and train on them.

    No network is needed.
    """
    from mmload.cli.demo import run_demo

    with interruptible("run it again to start afresh"):
        run_demo(folder, lambda words: app(words, standalone_mode=False))
