#!/bin/bash
#SBATCH --job-name=gpucheck
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=15
# Checks every node of the job and drains those of bad.txt. Start it as a user who may drain nodes.
#
#   sbatch --nodes=64 nightly.sh            check and drain
#   DRAIN=no sbatch --nodes=64 nightly.sh   check alone
set -euo pipefail

# The file of scripts/pyz: nothing else is installed.
GPUCHECK=${GPUCHECK:-/opt/gpucheck/bin/gpucheck}
SHARED=${SHARED:-/shared/gpucheck}
run=$SHARED/$SLURM_JOB_ID

mkdir -p "$run/nodes"
# A bad node fails its task: the judge names it, and the others go on.
srun --kill-on-bad-exit=0 "$GPUCHECK" fleet check --gather "$run/nodes" --within 5m --quiet || true

code=0
"$GPUCHECK" fleet judge "$run/nodes" --run "$SLURM_JOB_ID" --expect "$SLURM_JOB_NODELIST" --into "$run/lists" \
    --output "$run/fleet.html" || code=$?

# 0: all good. 1: some are bad. 4: some are undecided; bad.txt has those that failed their own check. Else nothing was
# judged, and the list may be of an earlier run.
case $code in
    0 | 1 | 4) ;;
    *) exit "$code" ;;
esac
while read -r node; do
    echo "bad: $node (see $run/fleet.html)"
    if [ "${DRAIN:-yes}" = yes ]; then
        scontrol update NodeName="$node" State=DRAIN Reason="gpucheck job $SLURM_JOB_ID: see $run/fleet.html"
    fi
done < "$run/lists/bad.txt"
exit "$code"
