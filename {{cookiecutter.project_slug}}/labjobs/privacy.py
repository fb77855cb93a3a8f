"""Secrets: what must not be printed, logged, sent to the tracking store or copied.

They are passwords and tokens in the store's address, the values of environment variables such as
WANDB_API_KEY, and files such as `.env` and `id_rsa`.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import translate
from pathlib import Path
from urllib.parse import quote, unquote, unquote_plus

HIDDEN = "***"

HARMLESS = (
    *("application_name", "charset", "client_encoding", "connect_timeout", "database", "dbname"),
    *("driver", "encrypt", "host", "options", "port", "sslcert", "sslkey", "sslmode"),
    *("sslrootcert", "target_session_attrs", "timeout", "trustservercertificate", "user"),
)
"""Parameters of an address whose values are no secrets. Any other parameter may be a password,
since drivers use many names."""

SECRET_FILES = (
    *(".env*", "*.env", "*netrc*", ".pypirc", ".npmrc", ".pgpass", ".my.cnf", ".htpasswd", ".boto"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.ppk", "*.kdbx", "*.keystore", "kubeconfig"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*credentials*", "*.secret", "*.secrets"),
    *("secret", "secrets", "secret.*", "secrets.*", ".secret*", "client_secret*", "password"),
    *("password.*", "passwords.*", "*token", "*token.txt", "*token.json", "*api_key*", "*apikey*"),
    *("kaggle.json", "service_account*.json", ".databrickscfg", ".s3cfg", "rclone.conf"),
)
"""Names of files that hold passwords or keys."""

SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", "secrets", ".secrets")

PUBLIC_FILES = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")
"""Similar names of files that are meant to be shared."""

_SECRET_FILE = re.compile("|".join(map(translate, SECRET_FILES)))
_PUBLIC_FILE = re.compile("|".join(map(translate, PUBLIC_FILES)))
_ADDRESS = re.compile(
    r"(?P<scheme>[\w+.-]+://)?(?:(?P<user>[^/].*)@)?(?P<host>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)",
    re.DOTALL,
)
_NO_PORT = re.compile(r":(?!\d*$)([^\]]*)$")
_PARAMETER = re.compile(r"[?&;#](?P<key>[^=&;#]*)=?(?P<value>[^&;#]*)")
_WRITTEN_OUT = re.compile(r"""(://[^\s/:@"'<>]*:)(?![{$<])[^\s/@"'<>]+@""")
_SECRET_VARIABLE = re.compile(r"(PASSWORD|PASSWD|TOKEN|SECRET|API_?KEY|ACCESS_KEY)$")


def printable(address: str) -> str:
    """Return an address without its user, its password and its parameters. If it is not clear which
    `@` ends the password, more is hidden rather than less."""
    parts = _parts(address)
    user = f"{HIDDEN}@" if parts["user"] else ""
    host = _NO_PORT.sub(f":{HIDDEN}", parts["host"])
    rest = f"?{HIDDEN}" if parts["rest"] else ""
    return f"{parts['scheme']}{user}{host}{parts['path']}{rest}"


def scrub(text: str, *, code: bool = False) -> str:
    """Return a text without the secrets of the store's address and of the environment.

    In code (or a diff) a secret that is an ordinary word stays, since code is full of such words.
    """
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if address:
        text = text.replace(address, printable(address))
    text = _WRITTEN_OUT.sub(rf"\g<1>{HIDDEN}@", text)
    secrets = {form for secret in _secrets(address or "") for form in _forms(secret)}
    if code:
        secrets = {s for s in secrets if len(s) >= 8 and not re.fullmatch("[A-Za-z_-]{,16}", s)}
    longest_first = sorted((s for s in secrets if len(s) >= 3), key=len, reverse=True)
    if not longest_first:
        return text
    return re.sub("|".join(map(re.escape, longest_first)), HIDDEN, text, flags=re.IGNORECASE)


def is_secret(path: Path) -> bool:
    """Return whether a file, by its path in the project, is likely to hold a password or a key."""
    *folders, name = [part.lower() for part in path.parts]
    if _PUBLIC_FILE.match(name):
        return False
    return bool(_SECRET_FILE.match(name)) or any(folder in SECRET_FOLDERS for folder in folders)


def is_private(path: Path) -> bool:
    """Return whether a file is closed to others who may read this user's new files and this one."""
    umask = os.umask(0o077)  # which can be read only by setting it
    os.umask(umask)
    with suppress(FileNotFoundError):
        usual = Path(__file__).stat().st_mode & ~umask
        return bool(usual & ~path.lstat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    return False


def _parts(address: str) -> dict[str, str]:
    found = _ADDRESS.fullmatch(address)
    assert found, "every text matches"
    return found.groupdict(default="")


def _secrets(address: str) -> Iterator[str]:
    """The secrets of an address, with the pieces that a reader might cut them into, and those of
    the environment."""
    parts = _parts(address)
    name, colon, password = parts["user"].partition(":")
    yield from (password, *re.split("[@:/?#]", password), *_NO_PORT.findall(parts["host"]))
    if not colon and len(name) >= 16:  # longer than a name: a token
        yield name
    for found in _PARAMETER.finditer(parts["rest"]):
        if found["key"].lower() not in HARMLESS:
            key, value = found["key"], found["value"]
            # A parameter without a value is a secret itself.
            yield from (f"{key}={value}", value or key, *re.split("[;&=]", unquote_plus(value)))
    for variable in list(os.environ):
        value = os.environ.get(variable, "")  # a thread of MLflow's may have removed it by now
        if _SECRET_VARIABLE.search(variable) and len(value) >= 8 and not value.startswith("/"):
            yield value


def _forms(secret: str) -> Iterator[str]:
    """A secret as it may be written in a message."""
    plain = unquote(secret)
    yield from (secret, plain, unquote_plus(secret), quote(plain, safe=""), repr(plain)[1:-1])
