# Sourced by the scripts beside it: finds a Python and makes the environment in .venv.

find_python() { # prints a Python of 3.11 or newer, or says what is missing
    local candidate seen=""
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        seen="$seen $candidate ($("$candidate" --version 2>&1))"
    done
    echo "error: Python 3.11 or newer is needed; found:${seen:- none}. Install it, or name it: PYTHON=/path/to/python3" >&2
    return 2
}

make_environment() { # $1: what pip installs ("." or ".[test]"); nothing to do, and no network, the second time
    local wanted=".venv/installed-${1//[^a-z]/}" python facts
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python) || return
        echo "Making an environment in .venv with $("$python" --version) ..." >&2
        # Some distributions leave out ensurepip; the pip that is there can then install from outside.
        "$python" -m venv .venv >/dev/null 2>&1 || "$python" -m venv --clear --without-pip .venv || return
    fi
    facts="$(.venv/bin/python --version) $(cksum <pyproject.toml)"
    if [ "$(cat "$wanted" 2>/dev/null)" = "$facts" ]; then return; fi
    echo "Installing hisparse-sim and what it needs ..." >&2
    if .venv/bin/python -m pip --version >/dev/null 2>&1; then
        .venv/bin/python -m pip install -qq --disable-pip-version-check --editable "$1" || return
    else
        python=$(find_python) || return
        "$python" -m pip --python .venv/bin/python install -qq --disable-pip-version-check --editable "$1" || {
            echo "error: no working pip; on Debian or Ubuntu: apt install python3-venv python3-pip" >&2
            return 2
        }
    fi
    # pip leaves an editable package uncompiled: its first start, and every one where Python may not write
    # bytecode (PYTHONDONTWRITEBYTECODE), would compile it.
    .venv/bin/python -m compileall -q hisparse_sim >/dev/null 2>&1 || true
    echo "$facts" >"$wanted"
}
