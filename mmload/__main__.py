"""The program: ``python -m mmload``, and what the ``mmload`` command calls."""

from mmload.cli import terminal


def main() -> None:
    """Run the command line and exit; even what it imports comes after Ctrl-C is taken care of."""
    terminal.replace_closed_outputs()
    terminal.exit_on_interrupt()
    terminal.doing("starting")
    try:
        from mmload.cli.app import main as run

        run()
    finally:
        terminal.shown()
        terminal.ignore_interrupts()


if __name__ == "__main__":
    main()
