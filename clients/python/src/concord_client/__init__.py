"""A client of Concord, a replicated store of typed configuration.

from concord_client import Client

with Client("http://127.0.0.1:8101,http://127.0.0.1:8102", key="…") as client:
    client.create("limits", "acme", {"plan": "pro"})
    with client.cache("limits", file="/var/lib/app/limits.json") as cache:
        print(cache.get("limits", "acme"))
"""

from . import op
from ._async import AsyncCache, AsyncClient
from ._cache import Status, Typed, Value
from ._errors import (
    ApiError,
    ChangeRequired,
    ConcordError,
    Conflict,
    EnvironmentFrozen,
    Expired,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    ModelError,
    NotCached,
    NotFound,
    NotReady,
    PreconditionFailed,
    ProtocolError,
    RateLimited,
    ServerError,
    StorageFull,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnknownOutcome,
    UnsupportedCoding,
    Violation,
)
from ._flow import Answer
from ._json import ExactNumber
from ._models import schema_of
from ._reader import Host
from ._records import (
    BatchResult,
    Change,
    Config,
    Definition,
    DeletedDefinition,
    Event,
    IndexProgress,
    ManyConfigs,
    OperationResult,
    Page,
    Past,
    SchemaChange,
    State,
    Written,
)
from ._sync import Cache, Client
from ._version import __version__

__all__ = [
    "Client",
    "AsyncClient",
    "Cache",
    "AsyncCache",
    "Value",
    "Status",
    "Host",
    "Typed",
    "op",
    "schema_of",
    "Config",
    "Definition",
    "DeletedDefinition",
    "Written",
    "SchemaChange",
    "IndexProgress",
    "Page",
    "Past",
    "Event",
    "Change",
    "State",
    "BatchResult",
    "OperationResult",
    "ManyConfigs",
    "Answer",
    "ExactNumber",
    "Violation",
    "ConcordError",
    "ApiError",
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "MethodNotAllowed",
    "Conflict",
    "ChangeRequired",
    "EnvironmentFrozen",
    "Expired",
    "PreconditionFailed",
    "TooLarge",
    "UnsupportedCoding",
    "Invalid",
    "RateLimited",
    "StorageFull",
    "ServerError",
    "Unavailable",
    "UnknownOutcome",
    "ProtocolError",
    "ModelError",
    "NotReady",
    "NotCached",
    "__version__",
]
