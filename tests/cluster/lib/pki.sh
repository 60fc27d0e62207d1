# Sourced by `cluster`. Keys, certificates and kubeconfigs of one cluster, made anew at each start.

# make_pki FOLDER NAMES: NAMES are what the API server is reached by, as subjectAltName wants them.
make_pki() {
  mkdir -p "$1"
  (
    cd "$1"
    new_key ca && openssl req -x509 -new -key ca.key -days 3650 -subj /CN=cluster-ca -out ca.crt
    new_key sa && openssl pkey -in sa.key -pubout -out sa.pub
    certificate apiserver /CN=kube-apiserver "$2"
    certificate apiserver-client /O=system:masters/CN=kube-apiserver-kubelet-client
    certificate front-proxy /CN=front-proxy
    certificate admin /O=system:masters/CN=admin
  )
}

# make_node_pki FOLDER NODE_IP: what a node has beyond that.
make_node_pki() {
  (
    cd "$1"
    certificate kubelet /O=system:nodes/CN=system:node:node "DNS:node,IP:$2,IP:127.0.0.1"
    certificate kube-proxy /CN=system:kube-proxy
    certificate kube-scheduler /CN=system:kube-scheduler
    certificate kube-controller-manager /CN=system:kube-controller-manager
  )
}

new_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2>/dev/null; }

# certificate NAME SUBJECT [NAMES]
certificate() {
  new_key "$1"
  openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -set_serial "0x$(openssl rand -hex 8)" -days 3650 -out "$1.crt" -extfile <(
    echo keyUsage=digitalSignature,keyEncipherment
    echo extendedKeyUsage=clientAuth,serverAuth
    [ -z "${3:-}" ] || echo "subjectAltName=$3"
  ) 2>/dev/null
  rm "$1.csr"
}

# write_kubeconfig FILE SERVER WHO PKI: one that needs no other file.
write_kubeconfig() {
  local file=$1 server=$2 who=$3 pki=$4
  (umask 077 && cat >"$file.part") <<END
apiVersion: v1
kind: Config
clusters:
- name: awaken
  cluster: {server: "$server", certificate-authority-data: $(base64 -w0 "$pki/ca.crt")}
users:
- name: $who
  user: {client-certificate-data: $(base64 -w0 "$pki/$who.crt"), client-key-data: $(base64 -w0 "$pki/$who.key")}
contexts:
- name: awaken
  context: {cluster: awaken, user: $who}
current-context: awaken
END
  mv "$file.part" "$file"
}

# apiserver_flags PKI: sets `shared_flags`, the API server's flags that both kinds of cluster have.
apiserver_flags() {
  local pki=$1
  shared_flags=(
    --client-ca-file "$pki/ca.crt" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key"
    --service-account-issuer https://kubernetes.default.svc
    --service-account-key-file "$pki/sa.pub" --service-account-signing-key-file "$pki/sa.key"
    --requestheader-client-ca-file "$pki/ca.crt" --requestheader-allowed-names front-proxy
    --proxy-client-cert-file "$pki/front-proxy.crt" --proxy-client-key-file "$pki/front-proxy.key"
    --authorization-mode Node,RBAC --allow-privileged
  )
  if [ -n "${CLUSTER_AUDIT:-}" ]; then
    local level=$CLUSTER_AUDIT
    [ "$level" != 1 ] || level=Metadata
    printf '{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: %s}]}\n' "$level" >"$state/audit.yaml"
    shared_flags+=(--audit-policy-file "$state/audit.yaml" --audit-log-path "$state/log/audit.jsonl")
  fi
}
