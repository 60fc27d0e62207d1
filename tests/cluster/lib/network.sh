# Sourced by `cluster`. The network of a cluster: the namespace of its first process, and the one way into it.
# The namespace has no name on the host, so it goes with that process, and the link and its routes with it.
#
#   host  awkXXXXXXXX 10.199.N.1 ──── eth0 10.199.N.2  node ──── cni0 10.244.N.1 ──── pods 10.244.N.0/24
#
# The host has routes to the pods and to the Services (10.96.N.0/24) by the node. The node has no route out:
# what is not in the cluster is unreachable at once, and nothing leaves the machine.

# addresses N: sets the addresses of the cluster with that number.
addresses() {
  host_ip=10.199.$1.1 node_ip=10.199.$1.2 link_net=10.199.$1.0/30
  pod_net=10.244.$1.0/24 pod_gateway=10.244.$1.1 pod_first=10.244.$1.5
  service_net=10.96.$1.0/24 service_api=10.96.$1.1 service_dns=10.96.$1.10
}

# choose_addresses: the first number whose ranges this host does not know.
choose_addresses() {
  local number taken
  taken=$(ip -4 route show table all; ip -4 -o address)
  for number in $(seq 0 250); do
    addresses "$number"
    grep -qE "(10\.199|10\.244|10\.96)\.$number\." <<<"$taken" || return 0
  done
  die "no free addresses: 251 clusters run here?"
}

# join_network PID: links the host with the namespace of that process. Two clusters that start at once must not choose
# one number, so choosing and taking it is done under a lock of this host.
join_network() {
  local pid=$1 lock
  exec {lock}</run
  flock $lock
  choose_addresses
  ip link add "$link" type veth peer name eth0 netns "$pid"
  ip address add "$host_ip/30" dev "$link"
  ip link set "$link" up
  exec {lock}<&-

  inside() { nsenter --target "$pid" --net "$@"; }
  inside ip link set lo up
  inside ip address add "$node_ip/30" dev eth0
  inside ip link set eth0 up
  # kube-proxy rewrites the address of a Service only after the kernel has found a route for it
  inside ip route add "$service_net" dev eth0
  inside ip link add cni0 type bridge
  inside ip address add "$pod_gateway/24" dev cni0
  inside ip link set cni0 up
  inside sysctl -qw net.ipv4.ip_forward=1
  ip route add "$pod_net" via "$node_ip" dev "$link"
  ip route add "$service_net" via "$node_ip" dev "$link"
}

# remove_network: what the kernel has not removed yet.
remove_network() {
  ! ip link show "$link" >/dev/null 2>&1 || ip link delete "$link" 2>/dev/null || true
}
