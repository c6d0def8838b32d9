"""``python -m mmload`` is the ``mmload`` command."""

from mmload.cli import main

main()
