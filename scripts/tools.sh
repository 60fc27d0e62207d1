# Sourced. The user's cache folder and the pinned tools that are kept in it.
# Relies on cargo for a tool that is not there yet.

AWAKEN_CACHE=${AWAKEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/awaken-operator}
cargo_deny_version=0.20.2

# cargo_deny: prints the path of cargo-deny, building it once for each version.
cargo_deny() {
  local root=$AWAKEN_CACHE/tools/cargo-deny-$cargo_deny_version
  if [ ! -x "$root/bin/cargo-deny" ]; then
    echo "lint: building cargo-deny $cargo_deny_version, once, a few minutes" >&2
    cargo install --quiet --locked --root "$root" "cargo-deny@$cargo_deny_version" >&2
  fi
  echo "$root/bin/cargo-deny"
}
