"""The program: ``python -m mmload``, and what the ``mmload`` command calls."""

from mmload.cli import interrupt, status


def main() -> None:
    """Run the command line and exit; even what it imports comes after Ctrl-C is taken care of."""
    interrupt.exit_on_interrupt()
    status.doing("starting")
    try:
        from mmload.cli.app import main as run

        run()
    finally:
        status.shown()
        interrupt.ignore_interrupts()


if __name__ == "__main__":
    main()
