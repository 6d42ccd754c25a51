"""Who reads: the name and the labels that a client sends of itself, by which a rollout chooses who sees its candidates.

They are sent with what follows configs: get, read_many, watch and poll. Nothing else is as a reader sees it, and a node
refuses a filtered watch of a reader, so that is sent without them and has what is proven. `clients/cases.json` has the
requests, for all clients.

**Invariant:** what is sent fits a header and the limits of a node. What does not is refused when the client is made,
and never left out later.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import socket
from typing import Dict, Mapping, Optional, Tuple, Union

from ._flow import Request

_NAME_MAX, _LABELS_MAX, _LABELS_TEXT_MAX, _LABEL_MAX = 255, 16, 1024, 255
_SENT_AS_IS = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Visible ASCII, blanks only inside."""
_CONFIG = re.compile(r"/api/v1/config_definition/[^/]+/config/[^/]+")
_UNFILTERED = frozenset(
    ("definition", "config_key", "from", "initial", "prev", "wait", "consistency", "max_staleness_ms", "min_revision")
)
"""The parameters of a watch or a poll that are no filters. With any other one it has no reader."""


class Host(enum.Enum):
    """Stands for the name of this machine."""

    NAME = "the host name"


ReaderName = Union[str, None, Host]
Labels = Mapping[str, str]


class Reader:
    """A reader, as it says of itself."""

    def __init__(self, name: str, labels: Labels) -> None:
        if not _is_sent_as_is(name, _NAME_MAX):
            raise ValueError(
                f"{name!r} is not the name of a reader: expected 1 to {_NAME_MAX} visible ASCII characters"
            )
        self.name, self.labels = name, dict(labels)
        text = _text_of(self.labels)
        self._headers: Tuple[Tuple[str, bytes], ...] = (("x-concord-reader", name.encode()),)
        if text:
            self._headers += (("x-concord-labels", text.encode()),)

    @classmethod
    def of(cls, name: ReaderName, labels: Optional[Labels]) -> Optional[Reader]:
        """None for no reader, and where the host name can't be sent."""
        if name is Host.NAME:
            name = _host_name()
        if name is None or isinstance(name, Host):
            if labels:
                raise ValueError("labels are those of a reader: give its name too, as `reader`")
            return None
        return cls(name, labels or {})

    def on(self, request: Request) -> Request:
        """The request with the headers, if it is answered as a reader sees it."""
        if request.is_proven or not is_read_as_reader(request.method, request.target):
            return request
        return dataclasses.replace(request, headers=(*request.headers, *self._headers))


def _is_sent_as_is(text: object, most: int) -> bool:
    return isinstance(text, str) and len(text) <= most and _SENT_AS_IS.fullmatch(text) is not None


def _text_of(labels: Labels) -> str:
    for name, value in labels.items():
        is_label = all(_is_sent_as_is(part, _LABEL_MAX) and "," not in part for part in (name, value))
        if not is_label or "=" in name:
            expected = f"1 to {_LABEL_MAX} visible ASCII characters on each side, without a comma, and no = in the name"
            raise ValueError(f"{f'{name}={value}'!r} is not a label: expected {expected}")
    text = ",".join(sorted(f"{name}={value}" for name, value in labels.items()))
    if len(labels) > _LABELS_MAX or len(text) > _LABELS_TEXT_MAX:
        raise ValueError(f"a reader has at most {_LABELS_MAX} labels, of {_LABELS_TEXT_MAX} bytes in all")
    return text


def labels_of(text: str) -> Dict[str, str]:
    """The labels of a variable: `ring=canary,region=eu`."""
    labels: Dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, mark, value = part.partition("=")
        if not mark or name.strip() in labels:
            raise ValueError(f"{part!r} is not a label, or is one twice: expected NAME=VALUE, each name once")
        labels[name.strip()] = value.strip()
    return labels


def _host_name() -> Optional[str]:
    try:
        name = socket.gethostname()
    except (OSError, UnicodeError):
        return None
    return name if _is_sent_as_is(name, _NAME_MAX) else None


def is_read_as_reader(method: str, target: str) -> bool:
    """Whether a request is answered as a reader sees it."""
    path, _, query = target.partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&") if pair]
    path = path[:-1] if path.endswith("/") else path
    if method == "POST":
        return path == "/api/v1/read"
    if method != "GET":
        return False
    if path in ("/api/v1/watch", "/api/v1/changes"):
        return all(name in _UNFILTERED for name in names)
    return _CONFIG.fullmatch(path) is not None and "revision" not in names


def variant_of(header: Optional[str]) -> Optional[str]:
    """The id of the change request whose candidate an answer shows, by its header; None for what is proven."""
    kind, *rest = (part.strip() for part in (header or "").split(";"))
    found = [part[len("change=") :] for part in rest if part.startswith("change=")]
    return found[0] if kind == "candidate" and found else None
