# Sourced by `cluster`. Writes the configuration of the node's programs below $state/etc.
# Paths like /var/lib/containerd are those that node/init mounts for this cluster alone.

write_config() {
  local etc=$state/etc
  mkdir -p "$etc/cni"
  cat >"$etc/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false # hosts with hybrid cgroups are served too
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [$service_dns]
clusterDomain: cluster.local
resolvConf: ""
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $state/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $state/pki/kubelet.crt
tlsPrivateKeyFile: $state/pki/kubelet.key
maxPods: 200
registryPullQPS: 0
eventRecordQPS: 0
serializeImagePulls: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100 # no image is ever collected: there is no registry to fetch it from again
imageMinimumGCAge: 8760h
END
  cat >"$etc/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: $pod_net
hostnameOverride: node
clientConnection: {kubeconfig: $state/etc/kube-proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0}
iptables: {minSyncPeriod: 100ms}
END
  cat >"$etc/containerd.toml" <<END
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "localhost/pause:cluster"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true # without CAP_SYS_RESOURCE no sandbox would start
netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "$(command -v runc)"
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
conf_dir = "$etc/cni"
END
  cat >"$etc/cni/10-bridge.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/var/lib/cni/networks", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "$pod_net", "rangeStart": "$pod_first"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
  apiserver_flags "$state/pki"
  {
    printf '# what node/init runs; one program a function\n'
    declare -p shared_flags | sed 's/^declare -a //'
    declare -p state node_ip service_net pod_net | sed 's/^declare -- //'
  } >"$etc/node.env.part"
  write_addons
  mv "$etc/node.env.part" "$etc/node.env" # the node starts when it is there
}

volumes=16

# write_addons: the objects that every cluster has.
write_addons() {
  local number
  {
    sed -e "s|@SERVICE_DNS@|$service_dns|g" "$here/addons.yaml"
    for number in $(seq $volumes); do
      mkdir -p "$state/disk/kubelet/volumes/$number"
      cat <<END
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: node-$number}
spec:
  storageClassName: node
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  local: {path: /var/lib/kubelet/volumes/$number}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node]}]}]}}
END
    done
  } >"$state/etc/addons.yaml"
}
