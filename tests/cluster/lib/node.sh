# Sourced by `cluster`. A whole node: its start, its end, and whether it runs.

node_runs() { [ -s "$kubeconfig" ] && [ ! -s "$state/ended" ] && [ -n "$(node_pids)" ] && admin get --raw /readyz >/dev/null 2>&1; }

# node_pids: the processes that carry a node, found by their argument, whatever became of the file with their number.
node_pids() {
  { grep -slzxF -- "$state/etc/node.env" /proc/[0-9]*/cmdline || true; } | cut -d/ -f3
}

# node_init: the first process of the node, as the host sees it.
node_init() { cut -d' ' -f1 "/proc/$1/task/$1/children" 2>/dev/null; }

# node_remains: whether anything of a node is there, running or not.
node_remains() {
  local parent
  [ -n "$(node_pids)" ] || ip link show "$link" >/dev/null 2>&1 || [ -d "$state/disk" ] && return 0
  for parent in $(cgroup_parents); do [ ! -d "$parent/$cgroup" ] || return 0; done
  return 1
}

node_needs() {
  local other="use another cluster instead: kind, k3d, minikube or any kubeconfig"
  [ "$(uname -s)" = Linux ] || die "the bundled cluster runs on Linux only; $other"
  [ "$(id -u)" = 0 ] || die "the bundled cluster needs root (namespaces, mounts, iptables); run as root, or $other"
  case $state/ in /run/* | /var/lib/* | /var/log/*) die "the state folder must not lie below /run, /var/lib or /var/log, which the node covers" ;; esac
  local program missing=()
  for program in ip iptables ipset conntrack runc nsenter unshare openssl curl python3; do
    command -v $program >/dev/null || missing+=("$program")
  done
  [ -e /usr/lib/cni/bridge ] || [ -e /opt/cni/bin/bridge ] || missing+=("the CNI plugins")
  [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]}; scripts/install-deps installs them on Debian"
  unshare --net --mount --pid --fork true 2>/dev/null || die "this host lets nobody make namespaces (a container without privileges?); $other"
}

node_up() {
  node_needs
  local lock from
  exec {lock}<"$state"
  flock -n $lock || { say "another command works on this cluster; waiting for it"; flock $lock; }
  if node_runs; then
    say "one runs already: KUBECONFIG=$kubeconfig"
    return 0
  fi
  if node_remains; then
    say "removing what is left of an earlier one$([ ! -s "$state/ended" ] || sed "s/^/, whose /" "$state/ended" | tr "\n" " ")"
    node_remove
  fi
  build_programs $all_programs
  from=$(now_ms)
  rm -rf "$state/log"
  mkdir -p "$state"/{log,etc,disk/containerd,disk/kubelet}
  link_programs "$state/bin"
  write_wrappers
  make_cgroups
  node_start
  make_pki "$state/pki" "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:$service_api,IP:$node_ip"
  make_node_pki "$state/pki" "$node_ip"
  local who
  for who in admin kubelet kube-proxy kube-scheduler kube-controller-manager; do
    write_kubeconfig "$state/etc/$who.kubeconfig" https://127.0.0.1:6443 $who "$state/pki"
  done
  write_config
  wait_for 60 "containerd" "$state/bin/ctr" version
  import_quietly "$(program_image pause)" "$(program_image coredns)" "$(program_image probe)"
  wait_for 120 "the API server" curl -sfk --max-time 2 "https://$node_ip:6443/readyz"
  say "API server ready after $(since "$from")"
  write_kubeconfig "$kubeconfig" "https://$node_ip:6443" admin "$state/pki"
  wait_for 60 "the default objects" admin apply -f "$state/etc/addons.yaml"
  wait_for 120 "the node to be Ready" admin wait --for=condition=Ready node/node --timeout=1s
  say "node ready after $(since "$from")"
  wait_for 120 "the cluster's DNS" admin -n kube-system wait --for=condition=Available deployment/coredns --timeout=1s
  wait_for 60 "the default service account" admin -n default get serviceaccount default
  say "up in $(since "$from"): KUBECONFIG=$kubeconfig"
}

# node_start: starts the first process, which waits for its configuration, and links it with the host.
node_start() {
  local carrier init
  carrier=$(
    exec {lock}<&- # held as long as this command works, not as long as the node runs
    setsid unshare --net --mount --pid --fork --kill-child --mount-proc \
      "$here/node/init" "$state/etc/node.env" >"$state/log/init.log" 2>&1 </dev/null &
    echo $!
  )
  for _ in $(seq 100); do
    init=$(node_init $carrier)
    [ -z "$init" ] || break
    sleep 0.05
  done
  [ -n "$init" ] || { last_words; die "the node's first process did not start"; }
  echo "$init" >"$state/pid"
  join_network "$init"
}

# write_wrappers: ctr as it is typed elsewhere, inside the node.
write_wrappers() {
  mv "$state/bin/ctr" "$state/bin/ctr.real"
  cat >"$state/bin/enter" <<END
#!/bin/sh
# Runs a command in the node's namespaces: the network, the mounts and the processes that its programs see.
exec nsenter --target "\$(cat "$state/pid")" --mount --net --pid -- "\$@"
END
  cat >"$state/bin/ctr" <<END
#!/bin/sh
exec "$state/bin/enter" "$state/bin/ctr.real" --namespace k8s.io "\$@"
END
  chmod +x "$state/bin/enter" "$state/bin/ctr"
}

import_quietly() {
  local archive said
  for archive in "$@"; do
    said=$("$state/bin/ctr" images import --local "$archive" 2>&1) || die "importing $archive failed: $said"
  done
}

# node_remove: ends and removes whatever is there of a node. Safe to call in any state and any number of times.
node_remove() {
  local pids
  for _ in $(seq 100); do
    pids=$(node_pids)
    [ -n "$pids" ] || break
    kill -9 $pids 2>/dev/null || true
    sleep 0.1
  done
  [ -z "$(node_pids)" ] || die "processes that do not end: $(node_pids)"
  remove_cgroups
  remove_network
  rm -rf "$state"/{disk,layers,etc,pki,bin,kubeconfig,pid,ended,audit.yaml}
}

node_down() {
  local lock from
  [ "$(id -u)" = 0 ] || die "taking the cluster down needs root"
  exec {lock}<"$state"
  flock $lock
  if ! node_remains; then
    say "none runs"
    return 0
  fi
  from=$(now_ms)
  node_remove
  say "down in $(since "$from"); its logs stay in $state/log"
}
