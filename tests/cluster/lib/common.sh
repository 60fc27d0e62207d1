# Sourced by `cluster`. Names and paths of one cluster, messages, and waiting with a limit.
# Everything of a cluster is derived from its state folder, so that clusters of several clones never meet.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
project=$(cd "$here/../.." && pwd)
. "$project/scripts/tools.sh"

say() { printf 'cluster: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# name_cluster STATE: sets what a cluster is known by. `id` is in the name of all that lives outside STATE.
name_cluster() {
  mkdir -p "$1"
  state=$(cd "$1" && pwd -P)
  id=$(printf %s "$state" | sha256sum | cut -c1-8)
  link=awk$id
  cgroup=awaken-$id
  kubeconfig=$state/kubeconfig
}

now_ms() { date +%s%3N; }

# since FROM_MS: seconds with one digit.
since() {
  local ms=$(($(now_ms) - $1))
  printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
}

# wait_for LIMIT_S WHAT COMMAND...: polls until the command succeeds. Says what it waits for after 3 s and each 10 s;
# at the limit, or when a program of the cluster has ended, shows the programs' last words and fails.
wait_for() {
  local limit=$1 what=$2 from next
  from=$(now_ms) next=3000
  shift 2
  until "$@" >/dev/null 2>&1; do
    local ms=$(($(now_ms) - from))
    if [ $ms -gt $((limit * 1000)) ]; then
      say "gave up after $limit s waiting for $what"
      last_words
      return 1
    fi
    [ ! -s "$state/pid" ] || [ -d "/proc/$(cat "$state/pid")" ] || echo "its first process is gone" >>"$state/ended"
    if [ -s "$state/ended" ]; then
      say "waiting for $what in vain: $(tr '\n' ' ' <"$state/ended")"
      last_words
      return 1
    fi
    if [ $ms -gt $next ]; then
      say "waiting for $what, $((ms / 1000)) s"
      next=$((next + 10000))
    fi
    sleep 0.1
  done
}

last_words() {
  local log
  for log in "$state"/log/*.log; do
    [ -s "$log" ] || continue
    printf -- '--- %s\n' "${log#"$project"/}" >&2
    tail -n 4 "$log" | cut -c1-400 >&2
  done
}

# kubectl as the cluster's administrator, whatever the caller's environment says.
admin() { KUBECONFIG=$kubeconfig "$state/bin/kubectl" "$@"; }
