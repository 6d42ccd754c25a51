"""The last-known-good file: what a cache held, for a start without nodes.

    {"concord_cache": 1, "scope": …, "revision": …, "confirmed_at": …, "configs": […], …}
    sha256 of the line before

**Invariants:** the file is replaced as a whole or not at all; only its owner may read it; what is damaged, written by
somebody else or of another scope is not used, and not deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from typing import Any, Dict

from ._json import dumps, loads

FORMAT = 1
_BYTES_MAX = 1 << 30


class UnusableFile(Exception):
    """Why a file is not used."""


def save(path: str, content: Dict[str, Any]) -> None:
    """Replaces the file."""
    line = dumps({"concord_cache": FORMAT, **content})
    text = line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    folder = os.path.dirname(os.path.abspath(path))
    # `mkstemp` makes it for the owner alone.
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: str, scope: Any) -> Dict[str, Any] | None:
    """The content of a file, or None where there is no file. Raises `UnusableFile`."""
    try:
        with open(path, "rb") as file:
            _check_owner(os.fstat(file.fileno()))
            text = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnusableFile(str(error)) from error
    line, _, rest = text.partition(b"\n")
    if hashlib.sha256(line).hexdigest().encode() != rest.strip():
        raise UnusableFile("its checksum is wrong")
    try:
        content = loads(line)
    except ValueError as error:
        raise UnusableFile(f"it is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("concord_cache") != FORMAT:
        raise UnusableFile("it has another format")
    if content.get("scope") != scope:
        raise UnusableFile("it is of a cache of other definitions or filters, or of another environment")
    return content


def _check_owner(status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if not stat.S_ISREG(status.st_mode):
        raise UnusableFile("it is no regular file")
    if status.st_uid not in (os.geteuid(), 0):
        raise UnusableFile("it belongs to another user")
    if status.st_mode & 0o022:
        raise UnusableFile("others may write it")
