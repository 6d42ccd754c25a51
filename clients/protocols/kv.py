"""Reads and follows keys with py-consul, as check.py asks: one JSON text a line."""

import json
import os
import sys
import threading
import time

import consul
import requests

host, port = os.environ["CONCORD_NODE"].split(":")
client = consul.Consul(host=host, port=int(port), token=os.environ["CONCORD_API_KEY"])
lines = threading.Lock()


def say(reply):
    with lines:
        print(json.dumps(reply), flush=True)


def plain(entry):
    if isinstance(entry, list):
        return [plain(each) for each in entry]
    return entry and {"key": entry["Key"], "value": entry["Value"].decode(), "created": entry["CreateIndex"], "modified": entry["ModifyIndex"]}


def follow(key, recurse, wait):
    """Blocking queries, each with the index of the one before. A failed one is asked again."""
    index = None
    while True:
        try:
            newer, found = client.kv.get(key, index=index, wait=wait, recurse=recurse)
        except (consul.ConsulException, requests.RequestException) as error:
            say({"trouble": str(error)})
            time.sleep(0.2)
            continue
        if newer != index:
            index = newer
            say({"seen": plain(found)})


for line in sys.stdin:
    asked = json.loads(line)
    key, do = asked["key"], asked["do"]
    try:
        if do == "follow":
            threading.Thread(target=follow, args=(key, asked["recurse"], asked["wait"]), daemon=True).start()
        elif do == "keys":
            say({"value": client.kv.get(key, keys=True, separator=asked.get("separator"))[1]})
        elif do == "put":
            say({"value": client.kv.put(key, "x")})
        else:
            say({"value": plain(client.kv.get(key, recurse=asked.get("recurse", False))[1])})
    except consul.ConsulException as error:
        say({"error": f"{type(error).__name__}: {error}"})
