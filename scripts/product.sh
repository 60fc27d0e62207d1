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
  echo "$ helm upgrade --install awaken charts/awaken-operator --namespace awaken-system --create-namespace" \
    "--set image.repository=${image%:*},image.tag=${image##*:}" "$@"
  helm upgrade --install awaken charts/awaken-operator --namespace awaken-system --create-namespace \
    --set "image.repository=${image%:*},image.tag=${image##*:}" --wait --timeout 2m "$@" >/dev/null
  kubectl -n awaken-system get deployments
}

# install_for_tests IMAGE: with /v1/mcp, in the namespaces of the end-to-end tests that its values name.
install_for_tests() {
  local namespace
  for namespace in $(grep -o 'e2e-mcp-[a-z]*' tests/e2e/values.yaml | sort -u); do
    kubectl create namespace "$namespace" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  done
  install_chart "$1" --values tests/e2e/values.yaml
}

# install_fleet IMAGE: the same release with two gateways, its journal in a Postgres of the tests' own.
install_fleet() {
  images/build postgres | xargs tests/cluster/cluster import
  kubectl create namespace awaken-system --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  kubectl -n awaken-system apply -f tests/fleet/postgres.yaml >/dev/null
  kubectl -n awaken-system rollout status deployment/awaken-postgres --timeout 60s
  install_chart "$1" --values tests/fleet/values.yaml
}
