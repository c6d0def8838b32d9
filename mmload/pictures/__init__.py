"""Draws rows as pictures: pixels of any number of channels, boxes and masks in class colors, contact sheets."""
