#!/usr/bin/env bash
# A Slurm cluster of several nodes on this machine, for tests: one munged, one slurmctld, and a slurmd for each node. It keeps
# everything in one folder and touches no configuration of the system.
#
#   scripts/clusters/slurm-cluster.sh start DIR [NODES]   # starts it (as root); then: export SLURM_CONF=DIR/slurm.conf
#   scripts/clusters/slurm-cluster.sh kill DIR NODE       # ends a node as a power cut would: its slurmd and all that it runs
#   scripts/clusters/slurm-cluster.sh stop DIR            # ends everything
#
# Needs Debian's slurm-wlm and munge: apt-get install --no-install-recommends slurm-wlm munge
set -eu

usage() { sed -n '5,9s/^# *//p' "$0" >&2; exit 2; }

# The process in a pid file, where it still runs.
running() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

# Ends the processes in pid files with a signal.
end() {
  local signal=$1 file; shift
  for file in "$@"; do
    if running "$file"; then kill "-$signal" "$(cat "$file")" || true; fi
  done
}

# A process and all below it, the lowest first.
tree() {
  local child
  for child in $(pgrep -P "$1" || true); do tree "$child"; done
  echo "$1"
}

configure() {
  local dir=$1 nodes=$2 host cores
  host=$(hostname -s)
  cores=$(nproc)
  cat > "$dir/slurm.conf" <<CONF
ClusterName=peft-tune
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${SLURM_TEST_PORT:-17000}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CryptoType=crypto/munge
StateSaveLocation=$dir/state
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmdLogFile=$dir/slurmd-%n.log
SlurmdSpoolDir=$dir/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=3
InactiveLimit=0
MailProg=/bin/true
NodeName=node[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((${SLURM_TEST_PORT:-17000} + 1))-$((${SLURM_TEST_PORT:-17000} + nodes))] CPUs=$cores RealMemory=1024 State=UNKNOWN
PartitionName=test Nodes=node[1-$nodes] Default=YES MaxTime=INFINITE State=UP
CONF
}

start() {
  local dir=$1 nodes=$2 node
  mkdir -p "$dir"/munge "$dir"/state
  chmod 755 "$dir" "$dir/munge"
  for node in $(seq "$nodes"); do mkdir -p "$dir/spool-node$node"; done
  head -c 1024 /dev/urandom > "$dir/munge.key"
  chmod 600 "$dir/munge.key"
  munged --key-file="$dir/munge.key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" --num-threads=2 --force 2>/dev/null
  configure "$dir" "$nodes"
  export SLURM_CONF="$dir/slurm.conf"
  slurmctld
  for node in $(seq "$nodes"); do slurmd -N "node$node"; done
  # Nodes report within seconds.
  for _ in $(seq 120); do
    [ "$(sinfo -h -N -o %t 2>/dev/null | grep -c '^idle$')" = "$nodes" ] && return 0
    sleep 0.5
  done
  echo "the nodes did not come up; see $dir/*.log" >&2
  sinfo >&2 || true
  return 1
}

# The slurmstepd processes of a node are no children of its slurmd, but bear its name.
kill_node() {
  local dir=$1 node=$2 step
  end KILL "$dir/slurmd-$node.pid"
  for step in $(pgrep -f "^slurmstepd: \[" || true) ; do
    if tr '\0' '\n' < "/proc/$step/environ" 2>/dev/null | grep -q "^SLURM_CONF=$dir/slurm.conf$" \
        && ls -l "/proc/$step/fd" 2>/dev/null | grep -q "slurmd-$node.log\|spool-$node"; then
      kill -KILL $(tree "$step") 2>/dev/null || true
    fi
  done
}

[ $# -ge 2 ] || usage
dir=$(mkdir -p "$2" && cd "$2" && pwd)
case $1 in
  start) start "$dir" "${3:-2}" ;;
  kill) [ $# = 3 ] || usage; kill_node "$dir" "$3" ;;
  stop)
    for pid in "$dir"/slurmd-*.pid; do kill_node "$dir" "$(basename "$pid" .pid | sed 's/^slurmd-//')"; done
    end TERM "$dir/slurmctld.pid"
    sleep 1
    end KILL "$dir/slurmctld.pid"
    end TERM "$dir/munge/pid"
    ;;
  *) usage ;;
esac
