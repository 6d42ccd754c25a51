"""Every operation of the older client library, against one node.

Usage: tartarus_client.py BASE_URL API_KEY PREFIX

The library is used as its users use it. Only one thing is added: 503 says that nothing was done, so the call is
made again (a leader change on a busy machine must not fail the test).
"""

import sys
import time

from tartarus_lib import TartarusAPIClient, TartarusError

base, key, prefix = sys.argv[1:]
client = TartarusAPIClient(base, key)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "object", "properties": {"height": {"type": "integer"}}},
    },
    "required": ["name"],
}


def call(operation, *args, **kwargs):
    end = time.monotonic() + 60
    while True:
        try:
            return operation(*args, **kwargs)
        except TartarusError as error:
            if " 503 " not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.1)


def succeeds(operation, *args, **kwargs):
    answer = call(operation, *args, **kwargs)
    assert answer["status"] == "SUCCESS", answer
    assert "errors" not in answer, answer
    return answer["data"]


def fails(status, operation, *args, **kwargs):
    try:
        answer = call(operation, *args, **kwargs)
    except TartarusError as error:
        assert f" {status} " in str(error), error
        return str(error)
    raise AssertionError(f"expected {status}, got {answer}")


def timeless(record):
    assert record.pop("created_at").endswith("Z"), record
    assert record.pop("modified_at").endswith("Z"), record
    return record


assert isinstance(call(client.ping), dict)

definitions, configs = client.config_definitions, client.configs
name = f"{prefix}-definition"
whole = {"config_definition_key": name, "indexes": ["name", "size.height"], "json_schema": SCHEMA}
assert succeeds(definitions.create, name, SCHEMA, ["name", "size.height"]) == whole
fails(409, definitions.create, name, SCHEMA, [])
assert timeless(succeeds(definitions.retrieve, name)) == whole
assert succeeds(definitions.update, name, ["name"]) == {"indexes": ["name"]}
assert timeless(succeeds(definitions.retrieve, name))["indexes"] == ["name"]
listed = succeeds(definitions.list, page=1, limit=5, sort_by="created_at", sort_order="asc", search=name)
assert listed["meta"] == {"page": 1, "limit": 5, "total": 1}, listed
assert [record["config_definition_key"] for record in listed["results"]] == [name]
assert succeeds(definitions.list)["meta"]["limit"] == 10
fails(422, definitions.list, page=0)
fails(422, definitions.list, sort_by="other")
fails(422, definitions.create, f"{name}-wrong", SCHEMA, ["missing"])

bare = f"{prefix}-bare"
assert succeeds(definitions.create, bare) == {"config_definition_key": bare, "indexes": []}

first = {"name": "Alice", "size": {"height": 170}}
assert succeeds(configs.create, name, "first", first) == first
fails(409, configs.create, name, "first", first)
fails(422, configs.create, name, "wrong", {"size": 1})
fails(404, configs.create, f"{name}-absent", "first", first)
assert timeless(succeeds(configs.retrieve, name, "first")) == {"config_key": "first", "data": first}
fails(404, configs.retrieve, name, "absent")
second = {"name": "Bob"}
assert succeeds(configs.create, name, "second", second) == second
assert succeeds(configs.update, name, "first", second) == second
fails(404, configs.update, name, "absent", second)
fails(422, configs.update, name, "first", {})
listed = succeeds(configs.list, name)
assert [record["config_key"] for record in listed["results"]] == ["first", "second"], listed
assert listed["meta"] == {"page": 1, "limit": 10, "total": 2}, listed
listed = succeeds(configs.list, name, page=2, limit=1, sort_by="config_key", sort_order="asc")
assert [record["config_key"] for record in listed["results"]] == ["second"], listed
assert succeeds(configs.list, name, search="FIR")["meta"]["total"] == 1
assert succeeds(configs.delete, name, "first") == {"config_definition_key": name, "config_key": "first"}
fails(404, configs.delete, name, "first")

assert succeeds(definitions.delete, name) == {"config_definition_key": name}
fails(404, definitions.delete, name)
fails(404, configs.list, name)
assert succeeds(definitions.delete, bare) == {"config_definition_key": bare}

stranger = TartarusAPIClient(base, "unknown")
fails(401, stranger.config_definitions.list)
fails(401, stranger.configs.retrieve, name, "first")
print("every operation of the older client works")
