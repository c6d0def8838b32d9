#!/bin/bash
# Builds one dataset with the tasks of a Slurm array, each a part of its shards. The last task to finish commits it.
#
#   sbatch --array=1-16 build_array.sh imagefolder /shared/photos /shared/photos-256 --size 256
#
# ROOT and OUT must have the same paths on every node. If tasks fail, submit the same again: finished shards are kept.
#SBATCH --job-name=mmload-build
#SBATCH --cpus-per-task=8
#SBATCH --requeue
set -euo pipefail

exec mmload build "$@" --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_MAX" --threads "${SLURM_CPUS_PER_TASK:-1}"
