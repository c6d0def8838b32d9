"""``mmload browse``: a page on this machine alone, to look at rows one by one and mark what is wrong."""
