#!/bin/sh
# Installs what some tests need beyond Python packages, where that is possible: as root on Debian or Ubuntu.
# Elsewhere those tests are skipped with their reason (with CI=true a skip is a failure).
set -eu

missing=""
[ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
command -v ssh-keygen >/dev/null || missing="$missing openssh-client"
command -v ip >/dev/null || missing="$missing iproute2"
command -v rsync >/dev/null || missing="$missing rsync"
command -v fish >/dev/null || missing="$missing fish"
command -v tcsh >/dev/null || missing="$missing tcsh"
command -v bindfs >/dev/null || missing="$missing bindfs"
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
if ! command -v chromium >/dev/null && ! command -v google-chrome >/dev/null; then
    # Ubuntu has Chromium as a snap only; its runners of GitHub have google-chrome.
    if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then
        missing="$missing chromium fonts-dejavu-core"
    else
        echo "not installed: chromium or google-chrome; the tests that need one are skipped" >&2
    fi
fi

if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing$missing ..." >&2
        apt-get update -qq
        # shellcheck disable=SC2086 # a list of words on purpose
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    else
        echo "not installed (needs root on Debian):$missing; the tests that need them are skipped" >&2
    fi
fi
