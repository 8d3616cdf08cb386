#!/bin/sh
# Makes the environment in $VENV with orch and everything that it, its payload and its tests need.
# Runs in well under a second when nothing changed. Needs Python >= 3.10; on Debian and Ubuntu as root it
# installs python3-venv by itself.
set -eu

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
NEEDS=remote_payload/requirements.txt
TESTED=remote_payload/constraints.txt
TORCH=${TORCH:-$(sed -n '/^torch==/p' "$TESTED")}
STAMP=$VENV/.orch-setup

want="$("$PYTHON" -c 'import sys; print(sys.version)') $TORCH ${TORCH_BACKEND:-} $(cat pyproject.toml "$NEEDS" "$TESTED" | cksum) $(cksum < scripts/setup.sh)"
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$want" ] && [ -x "$VENV/bin/orch" ]; then
    exit 0
fi

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "error: $PYTHON is older than Python 3.10; name another one: make PYTHON=python3.12 ..." >&2
    exit 1
}
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends python3-venv
    else
        echo "error: $PYTHON cannot make environments; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi

echo "setting up $VENV (once) ..." >&2
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
"$VENV/bin/python" -m pip install -qq --disable-pip-version-check uv || true
[ -x "$VENV/bin/uv" ] || { echo "error: pip could not install uv into $VENV (see above)" >&2; exit 1; }

uv_install() {
    "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" "$@"
}

# torch first and pinned: later requirements are then satisfied by it. A folder of wheels in PIP_FIND_LINKS
# wins; elsewhere uv picks the build (CPU or CUDA) that fits the machine.
if [ -n "${PIP_FIND_LINKS:-}" ]; then
    UV_FIND_LINKS="$PIP_FIND_LINKS"
    export UV_FIND_LINKS
    uv_install "$TORCH"
else
    uv_install --torch-backend="${TORCH_BACKEND:-auto}" "$TORCH"
fi
# A torch that was asked for by name stays; the other packages are those that the payload is tested with.
sed '/^torch==/d' "$TESTED" | uv_install --editable '.[sandbox,dev]' --requirement "$NEEDS" --constraint -
printf '%s' "$want" > "$STAMP"
