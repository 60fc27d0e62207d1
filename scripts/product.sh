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

# install_chart IMAGE [HELM-FLAGS]...
install_chart() {
  local image=$1
  shift
  echo "$ helm upgrade --install awaken charts/awaken-operator --namespace awaken-system --create-namespace"
  helm upgrade --install awaken charts/awaken-operator --namespace awaken-system --create-namespace \
    --set "image.repository=${image%:*},image.tag=${image##*:}" --wait --timeout 2m "$@" >/dev/null
  kubectl -n awaken-system get deployments
}
