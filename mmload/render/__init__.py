"""From a plan to pixels: compiled loops for uint8 images on a CPU, torch's operations for all others."""
