# SPDX-License-Identifier: BSD-3-Clause
# bash completion for vroom
_vroom() {
    local cur=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "list id perf emulate fio --help --version" -- "$cur")
    elif [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(vroom "${COMP_WORDS[1]}" --help 2> /dev/null |
            grep -oE -- '--[a-z-]+' | sort -u)" -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -f -W "emu-mem emu-null" -- "$cur")
    fi
}
complete -o filenames -F _vroom vroom
