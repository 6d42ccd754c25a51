"""Data to change and write back where the key may not see all of them.

In place of each secret value stands a marker that keeps it: `{"$concord-keep": true}`. Which value that is, the service
knows by the place alone. So a marker remembers its place, and is not written at another one.

**Invariant:** a secret value that nobody saw stays where it is, or the write is refused before it is sent.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Sequence, Tuple
from urllib.parse import unquote

from ._errors import invalid
from ._json import FrozenDict
from ._models import to_data

Place = Tuple[str, ...]


class Kept(FrozenDict):
    """What stands for a secret value that stays as it is. Not to be changed; a copy of it is itself."""

    __slots__ = ("place",)
    place: Place

    def __deepcopy__(self, memo: Dict[int, Any]) -> Kept:
        return self

    def __copy__(self) -> Kept:
        return self

    def __reduce__(self) -> Tuple[Any, ...]:
        return (_kept, (self.place,))


def _kept(place: Place) -> Kept:
    made = Kept({"$concord-keep": True})
    made.place = place
    return made


def editable(data: Any, redacted: Sequence[str]) -> Any:
    """A copy of the data with a marker at each place of a value that the key may not see."""
    made = copy.deepcopy(data)
    for pointer in redacted:
        if pointer == "...":
            # There are more places than the answer named. Their nulls are refused by the service.
            continue
        names = [part.replace("~1", "/").replace("~0", "~") for part in unquote(pointer.lstrip("#")).split("/")[1:]]
        if not names:
            return _kept(())
        at = made
        for name in names[:-1]:
            at = at[int(name)] if isinstance(at, list) else at[name]
        at[int(names[-1]) if isinstance(at, list) else names[-1]] = _kept(tuple(names))
    return made


def stored(data: Any) -> Any:
    """Data as they are written. Raises `Invalid` where a secret value would come to another place."""
    _check(data, ())
    return to_data(data)


def _check(value: Any, place: Place) -> None:
    if isinstance(value, Kept):
        if value.place != place:
            text = (
                "the secret value of {} can't be moved by a key that may not see it: use a JSON patch, or write it anew"
            )
            raise invalid("data_invalid", text.format("/" + "/".join(value.place)), "data", *place)
    elif isinstance(value, dict):
        for name, member in value.items():
            _check(member, (*place, str(name)))
    elif isinstance(value, (list, tuple)):
        for position, element in enumerate(value):
            _check(element, (*place, str(position)))
