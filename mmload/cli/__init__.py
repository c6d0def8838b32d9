"""The ``mmload`` command: the only room that prints, or ends the program."""
