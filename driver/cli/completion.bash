# SPDX-License-Identifier: BSD-3-Clause
# bash completion for vroom
_vroom() {
    local cur=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "list id bind unbind hugepages perf emulate fio --help --version" -- "$cur")
    elif [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(vroom "${COMP_WORDS[1]}" --help 2> /dev/null |
            grep -oE -- '--[a-z-]+' | sort -u)" -- "$cur")
    elif [[ ${COMP_WORDS[1]} == bind || ${COMP_WORDS[1]} == unbind ]]; then
        # readline splits words at colons; offer the form without them as well
        mapfile -t COMPREPLY < <(compgen -W "$(vroom list 2> /dev/null |
            awk 'NR > 1 { gsub(":", ".", $1); print $1 }') $(compgen -G '/dev/nvme*n*')" -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -f -W "emu-mem emu-null" -- "$cur")
    fi
}
complete -o filenames -F _vroom vroom
