#!/usr/bin/env bash
# Runs a command beside a process on each core that only computes, as on a machine that somebody
# else uses too: scripts/busy.sh make test. Those processes have a session of their own, as
# somebody else's have: what has a session with the tests competes with them, thread for thread,
# and the kernel may leave the containers nothing for seconds.
set -euo pipefail
setsid bash -c 'for core in $(seq 0 $(($(nproc) - 1))); do
  taskset -c "$core" timeout --foreground 3600 sh -c "while :; do :; done" &
done; wait' &
busy=$!
trap 'kill -- "-$busy"' EXIT
"$@"
