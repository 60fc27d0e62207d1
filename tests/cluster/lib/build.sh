# Sourced by `cluster`. Builds the programs of programs/ from Go modules, each once for each content:
# the key of a build is the hash of its folder, its flags and the Go version.

all_programs="kubenode containerd kube-router coredns helm pause probe"

# build_flags NAME: sets `flags` (of go build) and `targets` (what to build).
build_flags() {
  local symbols='-s -w' version
  flags=(-trimpath -buildvcs=false) targets=(.)
  case $1 in
    kubenode)
      # a release's programs are told their version by the linker; without it feature gates misbehave
      version=$(awk '$1 == "k8s.io/kubernetes" { print $2; exit }' "$here/programs/kubenode/go.mod")
      local package=k8s.io/component-base/version
      symbols+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version")"
      ;;
    containerd) flags+=(-tags "no_btrfs no_zfs no_aufs no_devmapper") targets=(tool) ;;
    kube-router | helm) targets=(tool) ;;
  esac
  flags+=(-ldflags "$symbols")
}

# program_folder NAME: where its build is kept.
program_folder() {
  local flags targets key
  build_flags "$1"
  key=$(cd "$here/programs/$1" && { cat -- * && printf '%s\n' "${flags[@]}" "$go_version"; } | sha256sum | cut -c1-16)
  echo "$AWAKEN_CACHE/programs/$1-$key"
}

# build_programs NAME...: builds those that are not there.
build_programs() {
  local name
  command -v go >/dev/null || die "go is missing; install Go 1.26 or newer (https://go.dev/dl)"
  go_version=$(cd "$here/programs/pause" && go version)
  mkdir -p "$AWAKEN_CACHE/programs"
  for name in "$@"; do
    local folder
    folder=$(program_folder "$name")
    [ -d "$folder" ] || build_program "$name" "$folder"
  done
}

build_program() {
  local name=$1 folder=$2 part=$2.part from lock
  exec {lock}>"$AWAKEN_CACHE/programs/$name.lock"
  flock -n $lock || { say "$name: another build of it runs; waiting for it"; flock $lock; }
  if [ ! -d "$folder" ]; then
    build_flags "$name"
    say "$name: building"
    from=$(now_ms)
    rm -rf "$part" && mkdir -p "$part"
    (cd "$here/programs/$name" && CGO_ENABLED=0 go build -v "${flags[@]}" -o "$part/" "${targets[@]}" 2>&1) | show_build "$name"
    mv -T "$part" "$folder"
    say "$name: built in $(since "$from")"
  fi
  exec {lock}>&-
}

# show_build NAME: turns the list of packages that go build -v prints into a line each 20 s, and keeps its errors.
show_build() {
  local name=$1 packages=0 from=$SECONDS next=20 line
  while IFS= read -r line; do
    case $line in
      'go: downloading'*) ;;
      *' '*) printf '%s\n' "$line" >&2 ;;
      *) packages=$((packages + 1)) ;;
    esac
    if [ $((SECONDS - from)) -ge $next ]; then
      say "$name: $packages packages compiled, $((SECONDS - from)) s"
      next=$((next + 20))
    fi
  done
}

# link_programs FOLDER: one folder with a link to each program, under the names that people type.
link_programs() {
  local bin=$1 name folder file
  rm -rf "$bin" && mkdir -p "$bin"
  for name in $all_programs; do
    folder=$(program_folder "$name")
    for file in "$folder"/*; do
      case $file in *.tar) ;; *) [ ! -f "$file" ] || ln -s "$file" "$bin/" ;; esac
    done
  done
  for name in etcd kubectl kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet; do
    ln -s "$(readlink "$bin/kubenode")" "$bin/$name"
  done
}

# program_image NAME: prints the path of an image archive that holds the program alone.
program_image() {
  local folder root
  folder=$(program_folder "$1")
  if [ ! -f "$folder/image.tar" ]; then
    root=$(mktemp -d)
    cp "$folder/$1" "$root/"
    "$project/images/pack" "$root" "$folder/image.tar" --name "localhost/$1:cluster" --entrypoint "/$1" --user 65532
    rm -rf "$root"
  fi
  echo "$folder/image.tar"
}
