#!/usr/bin/env bash
# Subjects of commits: `area: reason`, at most 72 characters, without a full stop.
#
#   scripts/checks/commits.sh REVISION      # those that are in HEAD and not in REVISION; merges are passed over
set -euo pipefail
wrong=0
while IFS= read -r subject; do
  why=
  [ ${#subject} -le 72 ] || why="${#subject} characters, at most 72"
  [[ $subject =~ ^[a-z][a-z0-9/_,\ -]*:\ [^\ ] ]] || why="not of the form \`area: reason\`"
  [[ $subject != *. ]] || why="ends in a full stop"
  [[ $subject != 'fixup! '* && $subject != 'squash! '* ]] || why="left to be squashed"
  [ -z "$why" ] || { echo "$subject: $why" && wrong=1; }
done < <(git log --no-merges --format=%s "$1..HEAD")
exit $wrong
