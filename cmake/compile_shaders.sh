#!/usr/bin/env bash
# compile_shaders.sh GLSLC SPIRV_OPT SOURCE LIST FOLDER [OPTION...]: compiles all variants of a shader, which LIST has as
# lines NAME MACRO=VALUE..., to FOLDER/NAME.spv. OPTIONs are spirv-opt's. One process compiles them all: a compiler's start
# takes twenty times as long as a shader.
set -euo pipefail
glslc=$1 spirv_opt=$2 source=$3 list=$4 folder=$5
shift 5
shaders=$(dirname -- "$source")
work=$(mktemp -d "$folder/compiling.XXXXXX")
trap 'rm -rf -- "$work"' EXIT

# A variant is the source with its macros below the line of #version.
names=()
while read -r name macros; do
  names+=("$name")
  awk -v macros="$macros" '
    { print }
    /^#version/ {
      n = split(macros, list, " ")
      for (i = 1; i <= n; ++i) { sub("=", " ", list[i]); print "#define " list[i] }
      print "#line " NR + 1
    }' "$source" >"$work/$name.comp"
done <"$list"

(cd "$work" && "$glslc" -c --target-env=vulkan1.1 -O0 -Werror -fshader-stage=compute -I "$shaders/include" -I "$shaders" \
  "${names[@]/%/.comp}") || { echo "these are variants of $source" >&2 && exit 1; }
for name in "${names[@]}"; do
  "$spirv_opt" --target-env=vulkan1.1 "$@" "$work/$name.comp.spv" -o "$folder/$name.spv"
done
