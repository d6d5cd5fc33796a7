
_torchyard_keep() {
    eval "_torchyard_state=\${${1}+set}"
    if [ -n "${_torchyard_state}" ]; then
        if command printenv "${1}" >/dev/null; then _torchyard_state=e; else _torchyard_state=s; fi
        eval "export TORCHYARD_WAS_${1}=\"\${_torchyard_state}\${${1}}\""
    fi
    export TORCHYARD_NAMES="${TORCHYARD_NAMES-}${1}:"
    unset _torchyard_state
}

_torchyard_set() {
    _torchyard_keep "${1}"
    eval "export ${1}=\"\${2}\""
}

_torchyard_prepend() {
    _torchyard_keep "${1}"
    eval "export TORCHYARD_PUT_${1}=\"\${2}\""
    eval "export ${1}=\"\${2}\${${1}:+:\${${1}}}\""
}

_torchyard_restore() {
    eval "_torchyard_now=\${${1}-}"
    eval "_torchyard_was=\${TORCHYARD_WAS_${1}-}"
    eval "_torchyard_put=\${TORCHYARD_PUT_${1}-}"
    _torchyard_state=${_torchyard_was%"${_torchyard_was#?}"}
    _torchyard_was=${_torchyard_was#?}
    if [ -n "${_torchyard_put}" ] &&
        [ "${_torchyard_now}" != "${_torchyard_put}${_torchyard_was:+:${_torchyard_was}}" ]; then
        # The list was changed since: remove only the folders of the build.
        _torchyard_now=:${_torchyard_now}:
        case ${_torchyard_now} in
            *:"${_torchyard_put}":*)
                _torchyard_now=${_torchyard_now%%:"${_torchyard_put}":*}:${_torchyard_now#*:"${_torchyard_put}":}
                ;;
        esac
        _torchyard_now=${_torchyard_now#:}
        _torchyard_was=${_torchyard_now%:}
        if [ -n "${_torchyard_was}" ]; then _torchyard_state=${_torchyard_state:-e}; fi
    fi
    unset "${1}" "TORCHYARD_WAS_${1}" "TORCHYARD_PUT_${1}"
    case ${_torchyard_state} in
        e) eval "export ${1}=\"\${_torchyard_was}\"" ;;
        s) eval "${1}=\${_torchyard_was}" ;;
    esac
    unset _torchyard_now _torchyard_was _torchyard_put _torchyard_state
}

torchyard_deactivate() {
    _torchyard_rest=${TORCHYARD_NAMES-}
    while [ -n "${_torchyard_rest}" ]; do
        _torchyard_restore "${_torchyard_rest%%:*}"
        _torchyard_rest=${_torchyard_rest#*:}
    done
    unset _torchyard_rest TORCHYARD_NAMES TORCHYARD_ACTIVE
    hash -r 2>/dev/null || :
}
