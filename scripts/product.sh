# Sourced. From this checkout to a running product in the cluster that KUBECONFIG names.

# build_images [IMAGE]...: the product, the real servers, and more images of images/.
build_images() {
  scripts/build-release
  case " $* " in *' stub '*) cargo build --locked --release --package awaken-stub --bin awaken-stub ;; esac
  images/build awaken mcp-servers "$@" >/dev/null
}

# load_images [IMAGE]...: into the bundled cluster CLUSTER; the images of build_images.
load_images() {
  images/build awaken mcp-servers "$@" | xargs tests/cluster/cluster import
}

# journal_volume: a place for the journal. The bundled cluster has no storage provisioner.
journal_volume() {
  case ${KUBECONFIG:-} in "$PWD"/.state/*) ;; *) return 0 ;; esac
  enter mkdir -p -m 0777 /var/lib/kubelet/awaken-journal
  kubectl apply -f - <<'END'
apiVersion: v1
kind: PersistentVolume
metadata: {name: awaken-journal}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: /var/lib/kubelet/awaken-journal}
  claimRef: {namespace: awaken-system, name: awaken-journal}
END
}

# install_chart IMAGE [HELM-FLAGS]...
install_chart() {
  local image=$1
  shift
  journal_volume
  echo "$ helm upgrade --install awaken charts/awaken-operator --namespace awaken-system --create-namespace"
  helm upgrade --install awaken charts/awaken-operator --namespace awaken-system --create-namespace \
    --set "image.repository=${image%:*},image.tag=${image##*:}" --wait --timeout 2m "$@" >/dev/null
  kubectl -n awaken-system get deployments
}
