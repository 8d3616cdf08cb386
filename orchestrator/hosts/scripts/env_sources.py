"""Where the installers get packages from: the host's own sources, in the words of whichever installer is used.

What always holds: what is said for uv wins over what is said for pip; nothing is taken from the command line.
"""

import ast
import contextlib
import subprocess

# What pip calls something -> what uv calls it.
UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
    "no-index": ("UV_NO_INDEX",),
    "constraint": ("UV_CONSTRAINT",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "proxy": ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
}
UV_INDICES = (
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_NO_INDEX",
    "PIP_NO_INDEX",
)


NOT_FOR_INSTALLERS = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")


def for_installers(settings, uv):
    """The environment of the installers: the host's own, less what would lead them elsewhere."""
    found = {key: value for key, value in settings.items() if key not in NOT_FOR_INSTALLERS}
    found.update(PYTHONUTF8="1", PYTHONUNBUFFERED="1", NO_COLOR="1", UV_NO_PROGRESS="1")
    found.update(PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_PROGRESS_BAR="off")
    return for_uv(found) if uv else found


def for_uv(settings):
    """An environment in which uv uses the package sources that pip is told to use on this host."""
    found = dict(settings)
    pip = {
        **pip_configuration(),
        **{
            key[4:].lower().replace("_", "-"): value
            for key, value in settings.items()
            if key.startswith("PIP_") and value
        },
    }
    for name, theirs in UV_NAMES.items():
        if name in pip and not any(settings.get(key) for key in theirs):
            words = pip[name].split()
            found[theirs[0]] = ",".join(words) if name == "find-links" else " ".join(words)
    if "extra-index-url" in pip:  # pip takes the best version of all sources; uv by itself stops at the first
        found.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    return found


def pip_configuration():
    """What pip's own configuration files say on this host; nothing where there is no pip."""
    argv = [sys.executable, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        section, dot, rest = line.partition(".")
        key, equals, value = rest.partition("=")
        if dot and equals and section in ("global", "install"):
            with contextlib.suppress(ValueError, SyntaxError):
                found[key] = str(ast.literal_eval(value))
    return found
