# shellcheck shell=bash
# Sourced after testing.sh: the Vulkan drivers that tests run on, each alone in its process.

drivers=()       # every driver at every subgroup width
base_drivers=()  # every driver once
declare -A icd_files=()

# Fills the three above; a driver that is not there is counted as skipped.
find_drivers() {
  local lavapipe swiftshader
  lavapipe=$(compgen -G '/usr/share/vulkan/icd.d/lvp_icd.*.json' | head -n 1 || true)
  if [[ -n $lavapipe ]]; then
    icd_files[lavapipe]=$lavapipe
    drivers+=(lavapipe-128 lavapipe-256 lavapipe-512)
    base_drivers+=(lavapipe-256)
  else
    skip_step lavapipe "mesa-vulkan-drivers brings no lavapipe here"
  fi
  if swiftshader=$("$KVRUN_ROOT/scripts/fetch-swiftshader"); then
    icd_files[swiftshader]=$swiftshader
    drivers+=(swiftshader)
    base_drivers+=(swiftshader)
  else
    skip_step swiftshader "the driver could not be fetched"
  fi
  if [[ ${#drivers[@]} -eq 0 ]]; then skip_step drivers "no Vulkan driver: no kernel is tested"; fi
}

# driver_environment NAME: VARIABLE=VALUE lines. Loaders before 1.3.234 know VK_ICD_FILENAMES only.
driver_environment() {
  local icd=${icd_files[${1%%-*}]}
  # These are drivers for the CPU, which are not chosen by themselves.
  printf '%s\n' "VK_DRIVER_FILES=$icd" "VK_ICD_FILENAMES=$icd" KVRUN_DEVICE=vulkan
  if [[ $1 == lavapipe-* ]]; then printf 'LP_NATIVE_VECTOR_WIDTH=%s\n' "${1#*-}"; fi
}
