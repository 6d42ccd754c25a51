"""What `help` and editors show of methods that are made from flows."""

from __future__ import annotations

import inspect
import re
from typing import Any, Callable, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def shown_as(method: F, pattern: str) -> F:
    """Shows what the method returns in place of the flow that it runs."""
    signature = inspect.signature(method)
    inside = re.fullmatch(r"(?:Flow|Items)\[(.*)\]", str(signature.return_annotation))
    returned = pattern.format(inside[1]) if inside else signature.return_annotation
    method.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
    return method
