# Sourced by the image scripts. What a root folder for a dynamically linked program needs.

# copy_program FILE ROOT PATH: the program and every library that ldd names, at the places where it looks for them.
copy_program() {
  local file=$1 root=$2 path=$3 library
  install -D -m 755 "$file" "$root$path"
  ldd "$file" | grep -oE '/[^ ]+' | sort -u | while read -r library; do
    install -D -m 755 "$library" "$root$library"
  done
}

# base_root ROOT: users, name lookup, certificates, /tmp.
base_root() {
  local root=$1
  mkdir -p "$root"/{etc/ssl/certs,tmp,home/awaken}
  chmod 1777 "$root/tmp"
  printf 'root:x:0:0:root:/root:/sbin/nologin\nawaken:x:65532:65532:awaken:/home/awaken:/sbin/nologin\n' >"$root/etc/passwd"
  printf 'root:x:0:\nawaken:x:65532:\n' >"$root/etc/group"
  printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
  cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}
