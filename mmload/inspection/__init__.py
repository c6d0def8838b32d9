"""Shows what is in a dataset: facts as data, rows as pictures.

facts -> the page of ``mmload info``. Nothing here builds, trains or prints.
"""
