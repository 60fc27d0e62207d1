# Sourced by `cluster`. The cgroup of a cluster's pods, in each hierarchy of the host (v1, hybrid or v2).

cgroup_parents() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts | sort -u; }

make_cgroups() {
  local parent file
  for parent in $(cgroup_parents); do
    [ ! -w "$parent/cgroup.subtree_control" ] || [ ! -s "$parent/cgroup.controllers" ] ||
      sed 's/\</+/g' "$parent/cgroup.controllers" >"$parent/cgroup.subtree_control" 2>/dev/null || true
    mkdir -p "$parent/$cgroup" 2>/dev/null || continue
    for file in cpuset.cpus cpuset.mems; do # v1: empty in a new group, and then no process may join
      [ ! -f "$parent/$file" ] || [ -f "$parent/cgroup.controllers" ] || cat "$parent/$file" >"$parent/$cgroup/$file"
    done
  done
}

# remove_cgroups: ends what still runs in them, then removes them.
remove_cgroups() {
  local parent pids
  for parent in $(cgroup_parents); do
    [ -d "$parent/$cgroup" ] || continue
    for _ in $(seq 50); do
      pids=$(find "$parent/$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u)
      [ -n "$pids" ] || break
      kill -9 $pids 2>/dev/null || true
      sleep 0.1
    done
    find "$parent/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}
