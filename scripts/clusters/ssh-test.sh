#!/usr/bin/env bash
# Trials through ssh for real: an sshd of its own on two loopback addresses with a key made for the occasion, a search whose
# workers are started through it, a connection that is cut in the middle of a trial, and a study that is complete in the end.
# Keys, configuration and known hosts lie in one temporary folder; nothing of the user's is touched.
#
#   scripts/clusters/ssh-test.sh [BINARY]        # installs Debian's openssh-server and openssh-client where they are missing
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
binary=$(readlink -f "${1:-$root/target/debug/peft-tune}")
assets=$root/search_spaces/quickstart
if ! [ -x /usr/sbin/sshd ] || ! command -v ssh > /dev/null; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends openssh-server openssh-client
fi
work=$(mktemp -d)
search=
cleanup() {
  [ $? = 0 ] || tail -n 40 "$work/search.log" "$work/sshd.log" 2> /dev/null || true
  [ -z "$search" ] || kill -KILL "$search" 2> /dev/null || true
  [ ! -s "$work/sshd.pid" ] || kill "$(cat "$work/sshd.pid")" 2> /dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

port=${PORT:-$((20000 + $$ % 20000))}
ssh-keygen -q -t ed25519 -N '' -f "$work/host"
ssh-keygen -q -t ed25519 -N '' -f "$work/user"
cp "$work/user.pub" "$work/authorized"
cat > "$work/sshd_config" <<CONFIG
Port $port
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
HostKey $work/host
PidFile $work/sshd.pid
AuthorizedKeysFile $work/authorized
PasswordAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
CONFIG
# sshd wants this folder where it runs as root.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
/usr/sbin/sshd -f "$work/sshd_config" -E "$work/sshd.log"
for _ in $(seq 100); do [ -s "$work/sshd.pid" ] && break; sleep 0.1; done

trials=6
cat > "$work/space.yaml" <<SPACE
study: ssh
model: $assets/base
data: {train: $assets/train.jsonl, held_out: $assets/held_out.jsonl, max_rows: 128}
objectives: [throughput, loss]
space: {rank: [1, 2, 4, 8, 12, 16], sequence_length: 64, micro_batch: 2, precision: fp32}
trial: {profile_steps: 3, profile_warmup: 1, training_steps: ${STEPS:-400}, evaluation: {rows: 8}}
sampler: grid
confirm: none
budget: {trials: $trials}
launcher:
  ssh:
    hosts: [$(id -un)@127.0.0.1, $(id -un)@127.0.0.2]
    program: $binary
    env: {PEFT_TUNE_CACHE: $work/there}
    arguments: [-p, $port, -i, $work/user, -F, none, -o, IdentitiesOnly=yes, -o, StrictHostKeyChecking=accept-new,
                -o, UserKnownHostsFile=$work/known]
SPACE
query() { "$binary" query "$1" --db "$work/results.db" --format csv | tail -n +2; }
workers() { pgrep -f "^$binary worker " || true; }

"$binary" search "$work/space.yaml" --db "$work/results.db" --threads 1 > "$work/search.log" 2>&1 &
search=$!
# A trial is done, and another trains.
for _ in $(seq 1200); do
  under_way=$(query "select count(*) from trial where state = 'running' and phase = 'train'
                     and exists (select 1 from trial where state = 'complete')" 2> /dev/null || true)
  [ "${under_way:-0}" = 0 ] || break
  kill -0 "$search" 2> /dev/null || exit 1
  sleep 0.3
done
query "select number, state, phase from trial order by number"
connection=$(pgrep -P "$(cat "$work/sshd.pid")" | head -n 1)
echo "sshd serves $(pgrep -P "$(cat "$work/sshd.pid")" | wc -l) connections; this one is cut now: $(tr '\0' ' ' < "/proc/${connection:?none}/cmdline")"
kill -KILL "$connection"
if ! wait "$search"; then
  echo "the search did not end well" >&2
  exit 1
fi
search=
query "select trial, attempt, phase, message from trial_lost_attempt" | tee "$work/lost.csv"
query "select number, state, reason, detail from trial order by number"
complete=$(query "select count(*) from trial where state = 'complete'")
[ "$complete" = $trials ] || { echo "trials are missing" >&2; exit 1; }
[ -s "$work/lost.csv" ] || { echo "no attempt was lost: the connection was not in use" >&2; exit 1; }
for _ in $(seq 100); do [ -z "$(workers)" ] && break; sleep 0.1; done
[ -z "$(workers)" ] || { echo "workers outlived the search: $(workers)" >&2; exit 1; }
echo "the study is complete: $complete trials went through ssh, and one of two connections was cut on the way"
