#!/usr/bin/env bash
# Runs a command beside a process on each core that only computes, as on a shared machine:
# scripts/busy.sh make test. Those processes have a session of their own, as another user's have.
# In the session of the tests they would compete with these, thread for thread, and the kernel might
# leave the containers nothing for seconds.
set -euo pipefail
setsid bash -c 'for core in $(seq 0 $(($(nproc) - 1))); do
  taskset -c "$core" timeout --foreground 3600 sh -c "while :; do :; done" &
done; wait' &
busy=$!
trap 'kill -- "-$busy"' EXIT
"$@"
