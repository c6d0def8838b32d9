"""Shows what is in a dataset and what training sees of it, for the commands info, where, preview, report and browse.

Nothing here builds, trains or prints.
"""
