#!/bin/bash
# A script of Epilog= in slurm.conf: drains a node whose GPUs a job has left broken, with the reason.
#
# Exit code 0 always: Slurm drains a node whose epilog fails with "Epilog error", which says less than this reason.
set -u

# The file of scripts/pyz: nothing else is installed.
GPUCHECK=${GPUCHECK:-/opt/gpucheck/bin/gpucheck}

[ -x "$GPUCHECK" ] || exit 0
said=$("$GPUCHECK" fleet check --prolog --within 60s --quiet 2>/dev/null)
if [ $? -eq 1 ]; then
    first=${said%%$'\n'*}
    scontrol update NodeName="${SLURMD_NODENAME:?}" State=DRAIN Reason="gpucheck: ${first:0:200}"
fi
exit 0
