# shellcheck shell=bash
# Sourced by the scripts: where the checkout lies, and how they speak.

KVRUN_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export KVRUN_ROOT

say() { printf '==> %s\n' "$*" >&2; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# As root, as it is; else through sudo.
as_root() {
  if [[ $(id -u) -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "'$*' needs root: run this as root, or install sudo"
  fi
}

# sha256_is FILE HASH
sha256_is() { [[ $(sha256sum -- "$1" | cut -d' ' -f1) == "$2" ]]; }
