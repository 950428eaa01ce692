#!/bin/bash
# A script of Prolog= in slurm.conf: keeps a job off a node whose GPUs are broken.
#
# Slurm drains a node whose prolog fails, whatever the code. --prolog exits with 1 for a bad node and with 0 for one that
# is good, undecided or could not be looked at. Keep PrologTimeout above --within.
set -u

# The file of scripts/pyz: nothing else is installed.
GPUCHECK=${GPUCHECK:-/opt/gpucheck/bin/gpucheck}

# A node without gpucheck, or with a mistake in this line (exit code 2), is no broken node.
[ -x "$GPUCHECK" ] || exit 0
"$GPUCHECK" fleet check --prolog --within 60s --quiet >/dev/null 2>&1
[ $? -ne 1 ]
