# shellcheck shell=bash
# Sourced after common.sh: a clean Debian 12 to try things on, as a copy of what scripts/fetch-debian got. For root.

clean_root=""  # the copy, while there is one

# make_clean_debian: sets clean_root to a fresh copy, which goes when the script ends.
make_clean_debian() {
  local debian
  debian=$("$KVRUN_ROOT/scripts/fetch-debian")
  mkdir -p "$KVRUN_ROOT/build"
  clean_root=$(mktemp -d "$KVRUN_ROOT/build/clean-debian.XXXXXX")
  trap 'rm -rf -- "$clean_root"' EXIT
  cp -a --reflink=auto -- "$debian/." "$clean_root"
  chmod 755 "$clean_root"
  cp -L -- /etc/resolv.conf "$clean_root/etc/resolv.conf"
  # Packages are downloaded once.
  mkdir -p "$KVRUN_ROOT/.cache/debian-packages"
  cat >"$clean_root/etc/apt/apt.conf.d/91packages" <<'CONFIG'
Dir::Cache::archives "/packages";
Binary::apt::APT::Keep-Downloaded-Packages "true";
APT::Keep-Downloaded-Packages "true";
APT::Sandbox::User "root";
CONFIG
  mkdir "$clean_root/packages"
}

# in_clean_debian COMMAND...: as root of the copy, with its own mounts, which end with the command. The environment is
# of a login, with what leads to the network.
in_clean_debian() {
  local variable keep=()
  for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    [[ -z ${!variable:-} ]] || keep+=("$variable=${!variable}")
  done
  # shellcheck disable=SC2016
  unshare --mount --fork bash -c '
    root=$1 packages=$2
    shift 2
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount --bind "$packages" "$root/packages" &&
      exec chroot "$root" "$@"' in_clean_debian "$clean_root" "$KVRUN_ROOT/.cache/debian-packages" \
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb \
    DEBIAN_FRONTEND=noninteractive "${keep[@]}" "$@"
}
