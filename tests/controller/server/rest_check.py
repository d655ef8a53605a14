#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Asks a running controller every route of its own OpenAPI document and validates each answer.

Usage: rest_check.py PORT JOB. Prints one line per check; exits 1 at the first that fails.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import jsonschema

base = f"http://127.0.0.1:{sys.argv[1]}"
job = sys.argv[2]


def call(method, path, body=None, raw=False, send=None):
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data=data, method=method)
    request.add_header("Content-Type", "application/json")
    for name, value in (send or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            content = answer.read()
            return answer.status, answer.headers, content if raw else json.loads(content)
    except urllib.error.HTTPError as error:
        content = error.read()
        return error.code, error.headers, content if raw else json.loads(content)


def check(condition, what):
    print(("ok   " if condition else "FAIL ") + what)
    if not condition:
        sys.exit(1)


status, headers, document = call("GET", "/openapi.json")
check(status == 200 and document["openapi"].startswith("3."), "openapi document is served")


def validate(schema, answer, what):
    # References in the document start at its root.
    whole = dict(schema, components=document["components"])
    errors = list(jsonschema.Draft7Validator(whole).iter_errors(answer))
    check(not errors, f"{what} matches its schema" + (f": {errors[0].message} at {list(errors[0].path)}"
                                                       if errors else ""))


def schema_of(path, verb, code="200"):
    return document["paths"][path][verb]["responses"][code]["content"]["application/json"]["schema"]


status_schema = document["components"]["schemas"]["Status"]
_, _, decisions = call("GET", f"/v1/decisions?job={job}")
check(len(decisions["decisions"]) > 0, "there is a decision")
decision = decisions["decisions"][0]["id"]
_, _, nodes = call("GET", "/v1/nodes")
values = {"job": job, "id": decision, "name": None}
bodies = {
    "ValidatePolicy": {"source": "name: x\n"},
    "ApplyPolicy": {"source": "name: checked\n", "actor": "check", "dry_run": True},
    "Pin": {"choice": {"codec": "identity", "collective": "ring", "ratio": 1}, "actor": "check"},
    "Unpin": {"actor": "check"},
    "OpenPage": {},
    "Replay": {},
    "SetLogLevel": {"level": "info"},
    "StartBackup": {"reason": "check"},
    "Simulate": {"model_parameters": "1000000", "world": 4, "latency_s": 0.001,
                 "bandwidth_bytes_per_s": 1e7, "compute_s": 0.1},
}
names = {"/v1/nodes/{name}": nodes["nodes"][0]["name"], "/v1/jobs/{name}": job,
         "/v1/policies/{name}": "checked"}
check(call("PUT", "/v1/policies/checked", {"source": "name: checked\n"})[0] == 200, "a policy is applied")
present = {"ForgetNode", "ForgetJob"}  # what is connected is not forgotten
operations = 0
for path, verbs in document["paths"].items():
    for verb, operation in verbs.items():
        operations += 1
        if operation["operationId"] == "Watch":
            continue
        target = path
        for parameter in operation["parameters"]:
            if parameter["in"] == "path":
                name = parameter["name"]
                value = names.get(path, values[name])
                target = target.replace("{" + name + "}", urllib.parse.quote(value, safe=""))
        code, headers, answer = call(verb.upper(), target, bodies.get(operation["operationId"]))
        expected = 400 if operation["operationId"] in present else 200
        check(code == expected, f"{verb.upper()} {target} answers {expected} (got {code}: {str(answer)[:200]})")
        if operation["operationId"] == "StartBackup":
            names["/v1/backups/{id}"] = answer["id"]
        validate(status_schema if expected == 400 else schema_of(path, verb), answer, operation["operationId"])
        if operation["operationId"] in bodies:
            request_schema = operation["requestBody"]["content"]["application/json"]["schema"]
            validate(request_schema, bodies[operation["operationId"]], operation["operationId"] + " request")
proto = pathlib.Path(__file__).resolve().parents[3] / "proto" / "weir" / "v1" / "admin.proto"
rpcs = sum(line.startswith("  rpc ") for line in proto.read_text(encoding="utf-8").splitlines())
check(operations == rpcs > 0, f"every AdminService method has a path (got {operations} of {rpcs})")

for verb, path, body, code in [
        ("GET", "/v1/jobs/absent", None, 404),
        ("GET", "/v1/absent", None, 404),
        ("GET", "/absent.html", None, 404),
        ("GET", "/../../etc/passwd", None, 404),
        ("GET", "/v1/decisions?page_size=x", None, 400),
        ("GET", "/v1/decisions?bogus=1", None, 400),
        ("GET", "/v1/decisions/zero", None, 400),
        ("GET", "/v1/watch?kinds=bogus", None, 400),
        ("POST", "/v1/jobs", {}, 405),
        ("DELETE", "/v1/links", None, 405),
        ("DELETE", "/v1/jobs/absent", None, 404),
        ("DELETE", "/v1/policies/default", None, 400),
        ("POST", "/v1:logLevel", {"level": "loud"}, 404),
        ("POST", f"/v1/jobs/{job}:pin", b"{", 400),
        ("POST", f"/v1/jobs/{job}:pin", b"[" * 100000, 400),
        ("POST", f"/v1/jobs/{job}:pin", {"choice": {"codec": "absent", "collective": "ring"}}, 404),
        ("POST", "/v1:simulate", {"world": 0}, 400),
        ("PUT", "/v1/policies/x", {"source": "name: x\nbogus: 1\n"}, 400),
        ("POST", "/v1/policies:validate", b" " * (2 << 20), 413)]:
    got, headers, answer = call(verb, path, body)
    check(got == code, f"{verb} {path[:60]} answers {code} (got {got})")
    validate(status_schema, answer, "the error")
    check(answer["message"] != "" and answer["code"] != 0, f"it says: {answer['message'][:80]}")

for path in ["/healthz", "/readyz"]:
    check(call("GET", path, raw=True)[0] == 200, path)
code, headers, page = call("GET", "/", raw=True)
check(code == 200 and b"<html" in page.lower() and "text/html" in headers["Content-Type"], "the page")
policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
check(policy["default-src"] == "'none'", "its policy allows nothing that is not named")
for kind in ("script-src", "style-src", "img-src", "connect-src"):
    check(policy[kind] == "'self'", f"{kind} is this controller only: nothing inline, nothing from elsewhere")
check(policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'", "no frames, forms, bases")
check(policy["trusted-types"] == "'none'" and "require-trusted-types-for" in policy, "no markup from strings")
for path, kind in (("/", "text/html"), ("/app.js", "text/javascript"), ("/style.css", "text/css"),
                   ("/favicon.svg", "image/svg+xml")):
    code, headers, content = call("GET", path, raw=True)
    check(code == 200 and headers["Content-Type"].startswith(kind) and content, f"{path} is {kind}")
    check(headers["Cache-Control"] == "no-cache" and headers["ETag"], f"{path} may be kept, and is asked about")
    again, _, nothing = call("GET", path, raw=True, send={"If-None-Match": headers["ETag"]})
    check(again == 304 and not nothing, f"{path} is not sent twice")
    check(call("GET", path, raw=True, send={"If-None-Match": '"other"'})[0] == 200, f"{path} is sent where it changed")
code, headers, _ = call("GET", "/v1/nodes")
check(headers["Cache-Control"] == "no-store" and headers["Weir-Role"] == "admin", "answers are not kept and tell the role")
code, _, _ = call("PUT", "/v1/policies/checked", {"source": "name: checked\n", "dry_run": True},
                  send={"If-Match": '"0000000000000000"'})
check(code == 412, f"If-Match of another text is refused (got {code})")
code, _, _ = call("PUT", "/v1/policies/checked",
                  {"source": "name: checked\n", "dry_run": True, "if_match": "0000000000000000"})
check(code == 409, f"the same said in the body is a conflict (got {code})")

request = urllib.request.urlopen(base + "/v1/watch?kinds=step,job", timeout=10)
event = None
while event is None:
    line = request.readline().decode()
    check(line != "", "the event stream stays open")
    if line.startswith("id: "):
        identifier = line[4:].strip()
    if line.startswith("data: "):
        event = json.loads(line[6:])
check(event["id"] == identifier, "the stream numbers its events")
validate({"$ref": "#/components/schemas/Event"}, event, "a server-sent event")
check(event["kind"] in ("step", "job"), "of a kind asked for")
request.close()
with urllib.request.urlopen(urllib.request.Request(
        base + "/v1/watch?kinds=job,decision", headers={"Last-Event-ID": "0"}), timeout=10) as request:
    lines = [request.readline().decode() for _ in range(3)]
check(any(line.startswith("id: ") for line in lines), "a stream that is taken up again begins with what was missed")

code, headers, metrics = call("GET", "/metrics", raw=True)
check(code == 200 and b"weir_prediction_error_ratio" in metrics, "/metrics")
if shutil.which("promtool"):
    lint = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, timeout=30)
    check(lint.returncode == 0 and not lint.stdout + lint.stderr,
          "promtool finds nothing: " + (lint.stdout + lint.stderr).decode()[:300])
