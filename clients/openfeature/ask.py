"""Evaluates flags with the OpenFeature SDK and the OFREP provider for Python, as check.py asks."""

import json
import logging
import os
import sys

from openfeature import api
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext

# The SDK logs each failed evaluation with its stack; the reply has the error.
logging.disable(logging.CRITICAL)
authorization = {"Authorization": f"Bearer {os.environ['CONCORD_API_KEY']}"}
api.set_provider(OFREPProvider(os.environ["OFREP_ENDPOINT"], headers_factory=lambda: authorization))
client = api.get_client()
ASK = {
    "boolean": client.get_boolean_details,
    "string": client.get_string_details,
    "integer": client.get_integer_details,
    "float": client.get_float_details,
    "object": client.get_object_details,
}

for line in sys.stdin:
    asked = json.loads(line)
    attributes = dict(asked["context"])
    context = EvaluationContext(attributes.pop("targetingKey", None), attributes)
    found = ASK[asked["type"]](asked["flag"], asked["default"], context)
    reply = {"value": found.value, "variant": found.variant, "reason": found.reason, "error": found.error_code}
    print(json.dumps(reply), flush=True)
