"""A batch, a list with a filter and a 404, by the Python client that openapi-python-client makes.

scripts/openapi-test.sh runs it with the client in PYTHONPATH. It imports each module of the client, too.
"""

import importlib
import os
import pkgutil

import concord_api
from concord_api import AuthenticatedClient
from concord_api.api.batch import run_batch
from concord_api.api.cluster import get_cluster
from concord_api.api.configs import list_configs, read_config
from concord_api.models import (
    ConfigPageAnswer,
    CreateConfigOperation,
    CreateConfigOperationData,
    CreateConfigOperationOp,
    CreateDefinitionOperation,
    CreateDefinitionOperationOp,
    ListConfigsFilters,
    NotFoundError,
    PatchConfigOperation,
    PatchConfigOperationOp,
    PlainBatch,
)

DEFINITION = "generated-python"

for module in pkgutil.walk_packages(concord_api.__path__, "concord_api."):
    importlib.import_module(module.name)

client = AuthenticatedClient(os.environ["CONCORD_URL"], os.environ["CONCORD_API_KEY"])


def config(key, port):
    data = CreateConfigOperationData.from_dict({"port": port})
    return CreateConfigOperation(op=CreateConfigOperationOp.CREATE_CONFIG, config_definition_key=DEFINITION, config_key=key, data=data)


created = CreateDefinitionOperation(op=CreateDefinitionOperationOp.CREATE_DEFINITION, config_definition_key=DEFINITION, indexes=["port"])
patched = PatchConfigOperation(op=PatchConfigOperationOp.PATCH_CONFIG, config_definition_key=DEFINITION, config_key="https", patch={"port": 443})
batch = PlainBatch([created, config("http", 80), config("https", 80), patched])
done = run_batch.sync(client=client, body=batch, idempotency_key="generated-python-1")
results = done.data.results
assert [result.created for result in results] == [True, True, True, False], results
assert results[3].op.value == "patch_config", results
assert done.data.revision, done

filters = ListConfigsFilters.from_dict({"port[gte]": "100"})
page = list_configs.sync(DEFINITION, client=client, filters=filters)
assert isinstance(page, ConfigPageAnswer), page
(found,) = page.data.results
assert page.data.meta.total == 1 and found.config_key == "https" and found.data["port"] == 443, page

missing = read_config.sync_detailed(DEFINITION, "missing", client=client)
assert missing.status_code == 404 and isinstance(missing.parsed, NotFoundError), missing
assert missing.parsed.errors[0].code.value == "config_not_found", missing

cluster = get_cluster.sync(client=client)
assert len(cluster.data.members) == 1, cluster
print("python: a batch, a list with a filter, a 404, the cluster")
