# SPDX-License-Identifier: Apache-2.0
"""REST by its own document: Hypothesis makes requests out of /openapi.json, valid and broken ones, and
every answer must be what the document says, before a controller with a simulated fleet.

WEIR_OPENAPI_EXAMPLES, default 40, is how many requests each operation gets; runs repeat exactly.
"""
import http.client
import json
import os
import pathlib
import re
import subprocess
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
# Hypothesis keeps its database in the build directory, wherever the test was started.
os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(BUILD / "tests" / "e2e" / "hypothesis")

import hypothesis  # noqa: E402  pylint: disable=wrong-import-position
import jsonschema  # noqa: E402  pylint: disable=wrong-import-position
from hypothesis import strategies as st  # noqa: E402  pylint: disable=wrong-import-position

FIXTURE = BUILD / "tests" / "e2e" / "weir-page-fixture"
EXAMPLES = int(os.environ.get("WEIR_OPENAPI_EXAMPLES", "40"))
ANSWER_S = 10
# Inputs that Hypothesis rarely finds by itself: numbers at edges, and text with a meaning to some
# part.
EDGES = ["0", "-1", "1e999", "NaN", "Infinity", "4294967296", "18446744073709551616", "%", "a/b", "..", "",
         "\x00", "ü", "𝄞", "x:pin", "{name}", "true", "null", "9" * 400]
TEXT = st.one_of(st.sampled_from(EDGES), st.text(max_size=30))
NUMBERS = st.one_of(st.integers(-2 ** 70, 2 ** 70), st.floats(), st.sampled_from(
    [0, 1, 4, 1e-300, 1e300, 2 ** 32, 2 ** 31, 10, 1e6]))


# Valid bodies; requests change some of their fields.
SOUND = {
    "ApplyPolicy": {"source": "name: checked\n", "actor": "amy"},
    "Pin": {"choice": {"codec": "identity", "collective": "ring", "ratio": 1}, "reason": "to see"},
    "Unpin": {"actor": "amy"},
    "SetLogLevel": {"level": "info"},
    "StartBackup": {"reason": "to see"},
    "ValidatePolicy": {"source": "name: a\n"},
    "Simulate": {"model_parameters": "1000000", "world": 4, "latency_s": 0.001,
                 "bandwidth_bytes_per_s": 1e7, "compute_s": 0.1, "buckets": 2},
}


# Names in addresses, by what they name. The last node is silent.
NAMES = {"/v1/nodes": ["n0", "spare2"], "/v1/jobs": ["lm"], "/v1/policies": ["checked", "lm-bounds"]}


def known_texts():
    """Values that the fleet and the policies know, by field, so that requests get past the first check."""
    return {"job": ["lm"], "name": ["n0", "lm", "checked", "lm-bounds"], "id": ["1", "2", "3"],
            "codec": ["identity", "top_k", "fp16", "absent"], "collective": ["ring", "tree", "absent"],
            "source": ["name: a\n", "name: default\nbounds: {ratio_min: 0.5}\n", "name: [", "{}"],
            "policy_source": ["", "name: x\n", "name: x\nobjective: throughput\n"],
            "kinds": ["job", "decision"], "page_token": ["2", "5"]}


def value_for(schema, document, name, depth=0):
    """A strategy for values that the schema allows, mostly ones that mean something."""
    if "$ref" in schema:
        target = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return st.just({}) if depth > 3 else value_for(target, document, name, depth + 1)
    kind = schema.get("type")
    if kind == "object":
        fields = {key: value_for(part, document, key, depth + 1)
                  for key, part in schema.get("properties", {}).items()}
        return st.fixed_dictionaries({}, optional=fields)
    if kind == "array":
        return st.lists(value_for(schema["items"], document, name, depth + 1), max_size=3)
    if kind == "integer":
        return st.one_of(st.integers(0, 8), st.integers(schema.get("minimum", -2 ** 31),
                                                        schema.get("maximum", 2 ** 31 - 1)))
    if kind == "number":
        return st.one_of(st.sampled_from([0, 1, 0.01, 1e-3, 1e7]),
                         st.floats(allow_nan=False, allow_infinity=False))
    if kind == "boolean":
        return st.booleans()
    if "pattern" in schema:
        return st.one_of(st.sampled_from(["1", "1000000"]), st.integers(0, 2 ** 64 - 1).map(str))
    if "enum" in schema:
        return st.one_of(st.sampled_from(schema["enum"]), TEXT)
    if "allOf" in schema:
        return value_for(schema["allOf"][0], document, name, depth)
    known = known_texts().get(name)
    return st.one_of(st.sampled_from(known), TEXT) if known else TEXT


def anything():
    """JSON of any kind, deep and odd."""
    return st.recursive(st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
                        lambda inner: st.one_of(st.lists(inner, max_size=3),
                                                st.dictionaries(TEXT, inner, max_size=3)), max_leaves=8)


def as_parameter(value):
    """A value as it stands in an address."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@st.composite
def requests(draw, path, verb, operation, document):
    """(method, address, body or None, whether it breaks the document's rules and must be refused)."""
    wrong, query, fields = False, [], {}
    for parameter in operation["parameters"]:
        name = parameter["name"]
        if parameter["in"] == "path":
            values = value_for(parameter["schema"], document, name).filter(bool)
            known = NAMES.get(path.rpartition("/")[0])
            fields[name] = draw(st.one_of(st.sampled_from(known), values) if known else values)
        elif draw(st.booleans()):
            query.append((name, as_parameter(draw(value_for(parameter["schema"], document, name)))))
    body = None
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        changes = draw(value_for(schema, document, ""))
        kept = dict(SOUND.get(operation["operationId"], {})) if draw(st.integers(0, 3)) else {}
        for key in list(changes) if kept and draw(st.booleans()) else []:
            if draw(st.booleans()):
                del changes[key]
        body = json.dumps({**kept, **(changes if draw(st.integers(0, 3)) else {})}).encode()
    broken = draw(st.sampled_from(["", "", "", "parameter", "unknown", "bytes", "json", "method"]))
    if broken == "parameter" and query:
        query[0] = (query[0][0], draw(st.one_of(TEXT, st.from_regex(r"\A[0-9]{1,3}[a-z. -]\Z"))))
        schema = next(p["schema"] for p in operation["parameters"] if p["name"] == query[0][0])
        wrong = schema.get("type") == "integer" and not re.fullmatch("[0-9]+", query[0][1], re.ASCII)
    elif broken == "unknown" and verb == "get":
        query.append(("x" + draw(TEXT), "1"))
        wrong = True
    elif broken == "bytes" and body is not None:
        body = draw(st.binary(max_size=40))
    elif broken == "json" and body is not None:
        body = json.dumps(draw(anything())).encode()
    elif broken == "method":
        verb = draw(st.sampled_from(["get", "post", "put", "delete", "patch"]))
    for name, value in fields.items():
        path = path.replace("{" + name + "}", urllib.parse.quote(value, safe="", errors="surrogatepass"))
    if query:
        path += "?" + urllib.parse.urlencode(query, errors="surrogatepass")
    return verb.upper(), path, body, wrong


class OpenApiTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.fixture = subprocess.Popen([FIXTURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       stderr=subprocess.DEVNULL)
        cls.addClassCleanup(cls.end)
        cls.port = int(cls.fixture.stdout.readline().split()[1])
        cls.tell("history")
        status, _, body = cls.ask("GET", "/openapi.json")
        assert status == 200, status
        cls.document = json.loads(body)

    @classmethod
    def end(cls):
        cls.fixture.stdin.close()
        try:
            cls.fixture.wait(timeout=20)
        except subprocess.TimeoutExpired:
            cls.fixture.kill()
            cls.fixture.wait()
        cls.fixture.stdout.close()

    @classmethod
    def tell(cls, line):
        cls.fixture.stdin.write(line + "\n")
        cls.fixture.stdin.flush()
        assert cls.fixture.stdout.readline().startswith("ok"), line

    @classmethod
    def ask(cls, method, address, body=None):
        """(status, media type, bytes); of an event stream only its first line."""
        connection = http.client.HTTPConnection("127.0.0.1", cls.port, timeout=ANSWER_S)
        try:
            connection.request(method, address, body, {"Content-Type": "application/json"} if method != "GET" else {})
            answer = connection.getresponse()
            media = answer.headers.get_content_type()
            content = answer.readline() if media == "text/event-stream" else answer.read()
            return answer.status, media, content
        finally:
            connection.close()

    def schema_for(self, schema):
        """The schema without leave for fields that it does not name: today's answers have none."""
        closed = json.loads(json.dumps(self.document["components"]).replace(
            '"additionalProperties": true', '"additionalProperties": false'))
        return jsonschema.Draft4Validator(dict(schema, components=closed))

    def judge(self, method, address, body, wrong, path):
        """The answer to one request against the document."""
        status, media, content = self.ask(method, address, body)
        what = f"{method} {address[:300]} {(body or b'')[:300]!r} -> {status} {content[:300]!r}"
        self.assertIsNone(self.fixture.poll(), f"the controller ended at {what}")
        operation = self.document["paths"][path].get(method.lower())
        if operation is None:      # another method: another operation of that path, or 405
            self.assertIn(status, (200, 400, 404, 405), what)
            return status
        self.assertIn(str(status), operation["responses"], what)
        if wrong:
            self.assertIn(status, (400, 404), what)
        content_types = operation["responses"][str(status)].get("content") or self.document["components"][
            "responses"][operation["responses"][str(status)]["$ref"].rpartition("/")[2]]["content"]
        self.assertIn(media, content_types, what)
        if media == "application/json":
            def refuse(constant):
                raise AssertionError(f"{constant} is no JSON: {what}")
            document = json.loads(content.decode("utf-8"), parse_constant=refuse)
            errors = list(self.schema_for(content_types[media]["schema"]).iter_errors(document))
            self.assertFalse(errors, f"{what}: {errors[:1]}")
            if status != 200:
                self.assertTrue(document["message"] and document["code"], what)
        self.assertLess(status, 500, what)
        return status

    def test_the_document_is_sound(self):
        for name, schema in self.document["components"]["schemas"].items():
            jsonschema.Draft4Validator.check_schema(schema)
            self.assertEqual(schema["type"], "object", name)
        text = json.dumps(self.document)
        for reference in re.findall(r'"\$ref": "#/([^"]+)"', text):
            part = self.document
            for step in reference.split("/"):
                part = part[step]
        self.assertEqual(self.document["components"]["securitySchemes"].keys(), {"bearer", "session", "csrf"})
        operations = [o["operationId"] for verbs in self.document["paths"].values() for o in verbs.values()]
        self.assertEqual(len(operations), len(set(operations)))

    def test_everything_is_described_and_who_may_call(self):
        schemas = self.document["components"]["schemas"]
        for verbs in self.document["paths"].values():
            for verb, operation in verbs.items():
                name = operation["operationId"]
                self.assertTrue(operation["summary"] and operation["description"], name)
                self.assertIn({"bearer": []}, operation["security"], name)
                session = next(way for way in operation["security"] if "session" in way)
                self.assertEqual("csrf" in session, verb != "get", name)
                answer = operation["responses"]["200"]["content"]
                target = schemas[next(iter(answer.values()))["schema"]["$ref"].rpartition("/")[2]]
                self.assertIs(target["additionalProperties"], True, name)
                if "requestBody" in operation:
                    body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                    self.assertIs(schemas[body.rpartition("/")[2]]["additionalProperties"], False, name)
        fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
        described = sum("description" in field for field in fields)
        self.assertEqual(described, len(fields))
        self.assertEqual(schemas["AuditRecord"]["properties"]["proof"]["enum"],
                         ["token", "certificate", "session", "local", ""])
        self.assertEqual(schemas["SetLogLevelRequest"]["properties"]["level"]["enum"],
                         ["debug", "info", "warning", "error", ""])
        verdict = schemas["Benefit"]["properties"]["verdict"]
        self.assertIn("BENEFIT_VERDICT_SAVES", verdict["enum"])
        self.assertIn("the whole interval lies above 0", verdict["x-enum-descriptions"])
        self.assertIn("what is known of the newest step that was skipped",
                      schemas["Job"]["properties"]["non_finite"]["description"])
        self.assertIn("would have taken for the same progress", schemas["Benefit"]["description"])

    def test_every_answer_is_as_the_document_says(self):
        seen = {}
        for path, verbs in self.document["paths"].items():
            for verb, operation in verbs.items():
                name = operation["operationId"]
                with self.subTest(operation=name):
                    seen[name] = self.run_operation(path, verb, operation)
        # Every operation must have succeeded at least once, but that the only job runs and cannot be forgotten, and
        # that nobody guesses the id of a copy.
        self.assertEqual([name for name, statuses in seen.items() if 200 not in statuses], ["ForgetJob", "ReadBackup"])
        self.assertGreater(sum(400 in statuses for statuses in seen.values()), len(seen) // 2, seen)

    def run_operation(self, path, verb, operation):
        statuses = set()

        @hypothesis.settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(requests(path, verb, operation, self.document))
        def one(request):
            method, address, body, wrong = request
            status = self.judge(method, address, body, wrong, path)
            if method.lower() == verb:
                statuses.add(status)

        one()
        return statuses


if __name__ == "__main__":
    unittest.main()
