# Sourced by `cluster`. etcd and the API server alone, on free loopback ports: no root, no namespaces, no pods.
# For tests of schemas, admission and reconciliation. Any number of them run side by side.

api_runs() { [ -s "$state/pid" ] && [ -s "$kubeconfig" ] && api_pid_is_ours && admin get --raw /readyz >/dev/null 2>&1; }

# api_pid_is_ours: a number in a file may meanwhile be another process.
api_pid_is_ours() { tr '\0' '\n' 2>/dev/null <"/proc/$(cat "$state/pid")/cmdline" | grep -qxF "$state/node.env"; }

api_up() {
  [ "$(uname -s)" = Linux ] || die "the bundled API server runs on Linux only; set AWAKEN_TEST_KUBECONFIG to any cluster's instead"
  local program lock from try
  for program in openssl curl python3 setpriv; do
    command -v $program >/dev/null || die "missing: $program; scripts/install-deps installs it on Debian"
  done
  exec {lock}<"$state"
  flock $lock
  if api_runs; then
    say "an API server runs already: KUBECONFIG=$kubeconfig"
    return 0
  fi
  api_remove
  build_programs kubenode
  from=$(now_ms)
  mkdir -p "$state"/{log,bin}
  for program in etcd kube-apiserver kubectl; do
    ln -sf "$(program_folder kubenode)/kubenode" "$state/bin/$program"
  done
  make_pki "$state/pki" DNS:localhost,IP:127.0.0.1
  apiserver_flags "$state/pki"
  for try in 1 2 3; do
    api_start "$lock"
    # between choosing a port and using it, another program may take it
    if wait_for 120 "the API server" curl -sfk --max-time 2 "https://127.0.0.1:$api_port/readyz"; then
      write_kubeconfig "$kubeconfig" "https://127.0.0.1:$api_port" admin "$state/pki"
      say "API server up in $(since "$from"): KUBECONFIG=$kubeconfig"
      return 0
    fi
    say "try $try failed"
    api_end
  done
  exit 1
}

# api_start LOCK: on new ports.
api_start() {
  local etcd_port peer_port
  read -r etcd_port peer_port api_port < <(free_ports 3)
  : >"$state/ended"
  {
    declare -p shared_flags | sed 's/^declare -a //'
    declare -p state etcd_port peer_port api_port | sed 's/^declare -[-a-z]* //'
  } >"$state/node.env"
  (
    eval "exec $1<&-" # the lock is ours, not theirs
    setsid "$here/node/api" "$state/node.env" >"$state/log/api.log" 2>&1 </dev/null &
    echo $! >"$state/pid"
  )
}

free_ports() {
  python3 - "$1" <<'END'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in held:
    one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in held])
END
}

api_end() {
  local pid
  [ -s "$state/pid" ] || return 0
  pid=$(cat "$state/pid")
  if api_pid_is_ours; then
    kill -9 -- "-$pid" 2>/dev/null || true
    for _ in $(seq 100); do
      pgrep -g "$pid" >/dev/null || break
      sleep 0.05
    done
  fi
  rm -f "$state/pid"
}

api_remove() {
  api_end
  rm -rf "$state"/{etcd,pki,bin,kubeconfig,node.env,ended,audit.yaml,log}
}

api_down() {
  local lock
  exec {lock}<"$state"
  flock $lock
  api_remove
  rmdir "$state" 2>/dev/null || true
  say "API server down"
}
