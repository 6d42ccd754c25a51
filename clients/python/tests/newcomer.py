"""The installed package, as somebody uses it who has nothing else: three nodes, a definition, a config, a cache.

Run it outside of the checkout, with CONCORD_BIN.
"""

import pathlib
import sys

# `nodes` is of the tests; the package must not be.
sys.path.append(str(pathlib.Path(__file__).resolve().parent))

import concord_client
from nodes import cluster

package = pathlib.Path(concord_client.__file__).parent
assert "site-packages" in package.parts, package
assert (package / "py.typed").exists()

with cluster() as nodes, concord_client.Client(nodes.urls, nodes.key, timeout=60) as client:
    client.create_definition("limits", indexes=["plan"])
    client.create("limits", "acme", {"plan": "pro"})
    with client.cache("limits", start_timeout=60) as cache:
        nodes.kill(nodes.leader())
        revision = client.patch("limits", "acme", {"seats": 3}).revision
        assert revision is not None
        assert cache.wait_revision(revision, 60)
        value = cache.get("limits", "acme")
        assert value.data == {"plan": "pro", "seats": 3}, value
print(f"concord-config-client {concord_client.__version__} works as installed")
