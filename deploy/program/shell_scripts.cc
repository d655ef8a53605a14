// SPDX-License-Identifier: Apache-2.0
// Scripts that pass the words to the program and its candidates to the shell. They do not need
// bash's completion package.

#include "deploy/program/hidden_command.h"

namespace weir {
namespace {

// bash ends words at '=' and ':' (COMP_WORDBREAKS), but addresses contain colons. So the line is
// split at blanks here, and the part that bash will not replace is removed from the candidates.
constexpr const char* kBash = R"sh(# bash completion for @PROGRAM@
_@FUNCTION@() {
  local line=${COMP_LINE:0:COMP_POINT} words=() current kept candidate
  read -ra words <<< "$line"
  case $line in *[[:blank:]]) words+=('') ;; esac
  current=${words[${#words[@]}-1]}
  kept=''
  case $current in *[=:]*) kept=${current%"${current##*[=:]}"} ;; esac
  COMPREPLY=()
  while IFS= read -r candidate; do
    case $candidate in
      :file) compopt -o default ;;
      :directory) compopt -o dirnames ;;
      :none) ;;
      *) candidate=${candidate%%$'\t'*}
         COMPREPLY+=("${candidate#"$kept"}") ;;
    esac
  done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
  case ${COMPREPLY[0]-} in *=) compopt -o nospace ;; esac
}
complete -F _@FUNCTION@ @PROGRAM@
)sh";

constexpr const char* kZsh = R"sh(#compdef @PROGRAM@
_@FUNCTION@() {
  local line candidate
  local -a candidates
  for line in "${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      :file) _files ;;
      :directory) _files -/ ;;
      :none|'') ;;
      *) candidate=${line%%$'\t'*}
         candidates+=("${candidate//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  _describe -t values '@PROGRAM@' candidates
}
if [ "$funcstack[1]" = _@PROGRAM@ ]; then
  _@FUNCTION@
else
  compdef _@FUNCTION@ @PROGRAM@
fi
)sh";

constexpr const char* kFish = R"sh(# fish completion for @PROGRAM@
function __@FUNCTION@_complete
  set -l words (commandline -opc) (commandline -ct)
  for line in ($words[1] __complete $words[2..-1] 2>/dev/null)
    switch $line
      case :file
        __fish_complete_path (commandline -ct)
      case :directory
        __fish_complete_directories (commandline -ct)
      case :none
      case '*'
        echo $line
    end
  end
end
complete -c @PROGRAM@ -f -a '(__@FUNCTION@_complete)'
)sh";

std::string Replaced(std::string text, const std::string& mark, const std::string& value) {
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size()) {
    text.replace(at, mark.size(), value);
  }
  return text;
}

}  // namespace

std::string CompletionScript(const std::string& program, const std::string& shell) {
  const char* const script = shell == "bash"   ? kBash
                             : shell == "zsh"  ? kZsh
                             : shell == "fish" ? kFish
                                               : "";
  return Replaced(Replaced(script, "@PROGRAM@", program), "@FUNCTION@",
                  Replaced(program, "-", "_"));
}

}  // namespace weir
