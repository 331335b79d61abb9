#!/usr/bin/env bash
# Slurm for real, on this machine: munge, slurmctld and two nodes; a search whose trials go through srun; a node that is lost in the
# middle of a trial; and a study that is complete in the end.
#
#   scripts/clusters/slurm-test.sh [BINARY]        # as root; installs Debian's slurm-wlm and munge where they are missing
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(readlink -f "${1:-$root/target/debug/peft-tune}")
assets=$root/search_spaces/quickstart
if ! command -v slurmctld > /dev/null || ! command -v munged > /dev/null; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends slurm-wlm munge
fi
work=$(mktemp -d)
cluster=$work/cluster
search=
cleanup() {
  [ $? = 0 ] || { cat "$work/search.log" "$cluster/slurmctld.log" 2> /dev/null | tail -n 60; } || true
  [ -z "$search" ] || kill -KILL "$search" 2> /dev/null || true
  "$root/scripts/clusters/slurm-cluster.sh" stop "$cluster" || true
  rm -rf "$work"
}
trap cleanup EXIT
"$root/scripts/clusters/slurm-cluster.sh" start "$cluster" 2
export SLURM_CONF=$cluster/slurm.conf
sinfo

trials=4
cat > "$work/space.yaml" <<SPACE
study: slurm
model: $assets/base
data: {train: $assets/train.jsonl, held_out: $assets/held_out.jsonl, max_rows: 128}
objectives: [throughput, loss]
space: {rank: [2, 4, 8, 16], sequence_length: 64, micro_batch: 2, precision: fp32}
trial: {profile_steps: 3, profile_warmup: 1, training_steps: ${STEPS:-600}, evaluation: {rows: 8}}
sampler: grid
confirm: none
budget: {trials: $trials}
launcher: {slurm: {partition: test, cpus: 1, memory: 200M}}
SPACE
query() { "$binary" query "$1" --db "$work/results.db" --format csv | tail -n +2; }

"$binary" search "$work/space.yaml" --db "$work/results.db" --threads 1 > "$work/search.log" 2>&1 &
search=$!
# In the middle of the second trial.
for _ in $(seq 1200); do
  done=$(query "select count(*) from trial where state = 'complete'" 2> /dev/null)
  [ "${done:-0}" = 0 ] || break
  kill -0 "$search" 2> /dev/null || { cat "$work/search.log"; exit 1; }
  sleep 0.5
done
sleep 0.5
query "select number, state, phase from trial order by number"
node=$(squeue -h -t R -o %N | head -n 1)
echo "the second trial runs on ${node:?no task is running}; this node is lost now"
squeue
"$root/scripts/clusters/slurm-cluster.sh" kill "$cluster" "$node"
if ! wait "$search"; then
  cat "$work/search.log"
  echo "the search did not end well" >&2
  exit 1
fi
search=
sinfo
query "select trial, attempt, phase, message from trial_lost_attempt" | tee "$work/lost.csv"
query "select number, state, reason, detail from trial order by number" | tee "$work/states.csv"
ended=$(query "select count(*) from trial where state in ('complete', 'failed', 'pruned')")
complete=$(query "select count(*) from trial where state = 'complete'")
[ "$ended" -ge "$trials" ] && [ "$complete" -ge $((trials - 1)) ] || { echo "trials are missing" >&2; exit 1; }
[ -s "$work/lost.csv" ] || { echo "no attempt was lost: the node was not in use" >&2; exit 1; }
echo "the study is complete: $complete trials went through Slurm, and one of its two nodes was lost on the way"
