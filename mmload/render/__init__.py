"""From a plan to pixels: compiled loops on a CPU, a Triton kernel or torch operations on a GPU."""
