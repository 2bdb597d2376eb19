#!/usr/bin/env bash
# cmake/make_documents.sh FOLDER SECTIONS VERSION HELP2MAN PROGRAM...: writes into FOLDER/share the man pages of each
# program and of its commands, from what --help prints, with the sections in SECTIONS/PROGRAM.h2m; and its
# completions for bash and zsh. HELP2MAN empty: no man pages.
set -euo pipefail
folder=$1 sections=$2 version=$3 help2man=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

# What a person has set must not change what is written.
for variable in $(compgen -e KVRUN_); do unset "$variable"; done
export COLUMNS=100 NO_COLOR=1 LC_ALL=C.UTF-8

die() {
  echo "make_documents.sh: $*" >&2
  exit 1
}

# The help without its last parts, as help2man reads it: options in groups are its section OPTIONS. Examples are taken
# out (examples_of), and so is what stands behind them, which SECTIONS has in more words.
options_of() {
  awk '/^Examples:$/ { exit }
       /^[A-Z].*:$/ && !/^Commands:$/ && !/^Options:$/ && !is_in_options { print "Options:\n"; is_in_options = 1 }
       /^Options:$/ { is_in_options = 1 }
       /^Every option is also an environment variable/ { exit }
       { print }' "$1"
}

# The paragraphs behind the examples, as an end of OPTIONS: but for those that SECTIONS has in more words.
notes_of() {
  awk '/^Examples:$/ { is_behind = 1 }
       !is_behind || /^ / || /^Examples:$/ { next }
       !NF { is_left_out = 0; is_new = 1; next }
       /^Every option is also an environment variable/ || /^Exit codes:/ { is_left_out = 1 }
       is_left_out { next }
       !is_begun { print "[>OPTIONS]"; is_begun = 1 }
       is_new { print ".PP"; is_new = 0 }
       { gsub(/-/, "\\-"); print }' "$1"
}

# The help's examples, as a man page has them: what it does, and the command below it.
examples_of() {
  awk 'function roff(text) { gsub(/\\/, "\\e", text); gsub(/-/, "\\-", text); return text }
       /^Examples:$/ { is_in_examples = 1; print "[EXAMPLES]"; next }
       !is_in_examples { next }
       !NF { exit }
       /^  [^ ]/ { finish(); command = substr($0, 3); what = ""; next }
       { sub(/^ +/, ""); what = what (what == "" ? "" : " ") $0 }
       END { finish() }
       function finish() {
         if (command == "") return
         print ".PP\n" toupper(substr(what, 1, 1)) roff(substr(what, 2)) ":\n.PP\n.nf\n.RS\n" roff(command) "\n.RE\n.fi"
       }' "$1"
}

# man_page PAGE HELP SEE_ALSO SECTIONS: HELP is a file with what --help printed, whose first paragraph says what PAGE is.
man_page() {
  local page=$1 help=$2 see_also=$3 included=$4 what
  what=$(awk '!NF { exit } { printf "%s%s", separator, $0; separator = " " }' "$help")
  what=${what#"$page "}
  what=${what%.}
  options_of "$help" >"$work/options"
  { cat "$included" && echo && examples_of "$help" && notes_of "$help" && printf '\n[SEE ALSO]\n%s\n' "$see_also"; } >"$work/include"
  # It reads the text through `cat`, and starts no program of kvrun's.
  "$help2man" --no-info --name="${what,}" --version-string="$page (kvrun) $version" --include="$work/include" \
    --help-option="$work/options" --output="$work/page" cat || die "help2man failed for $page"
  gzip -9n <"$work/page" >"$folder/share/man/man1/$page.1.gz"
}

man_pages() {
  local program=$1 name=$2 command commands see_also=""
  "$program" --help >"$work/help" || die "$name --help failed"
  mapfile -t commands < <(sed -n '/^Commands:$/,/^$/s/^  \([a-z][a-z-]*\)\( .*\)\?$/\1/p' "$work/help")
  [[ ${#commands[@]} -gt 1 ]] || die "$name --help names no commands"
  for command in "${commands[@]}"; do
    "$program" "$command" --help all >"$work/help-command" || die "$name $command --help failed"
    man_page "$name-$command" "$work/help-command" ".BR $name (1)" "$sections/$name-command.h2m"
    see_also+=".BR $name-$command (1),"$'\n'
  done
  man_page "$name" "$work/help" "$see_also.BR $(other_of "$name") (1)" "$sections/$name.h2m"
}

other_of() { if [[ $1 == kvrun ]]; then echo kvadapt; else echo kvrun; fi; }

rm -rf -- "$folder"
mkdir -p "$folder/share/man/man1" "$folder/share/bash-completion/completions" "$folder/share/zsh/site-functions"
for program in "$@"; do
  name=${program##*/}
  [[ -z $help2man ]] || man_pages "$program" "$name"
  "$program" completion bash >"$folder/share/bash-completion/completions/$name" || die "$name completion bash failed"
  "$program" completion zsh >"$folder/share/zsh/site-functions/_$name" || die "$name completion zsh failed"
done
