// SPDX-License-Identifier: Apache-2.0
// Modules of the page that need no browser.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {test} from "node:test";

const src = new URL("../../../dashboards/web/src/", import.meta.url);
const load = (name) => import(new URL(name, src));
globalThis.sessionStorage = {
  getItem: () => null
};

test("server-sent events survive being cut anywhere", async () => {
  const {EventParser} = await load("api.js");
  const stream =
      ": watching\n\nid: 7\nevent: job\ndata: {\"a\":1}\n\n: still here\n\nid: 8\nevent: rank\ndata: x: y\n\n";
  for (let size = 1; size <= stream.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < stream.length; at += size)
      found.push(...parser.push(stream.slice(at, at + size)));
    assert.deepEqual(found,
        [{id: "7", event: "job", data: "{\"a\":1}"}, {id: "8", event: "rank", data: "x: y"}]);
  }
});

test("waiting doubles up to a bound and is never the same for all", async () => {
  const {backoff} = await load("api.js");
  assert.equal(backoff(0, 1), 500);
  assert.equal(backoff(1, 1), 1000);
  assert.equal(backoff(50, 1), 30000);
  assert.equal(backoff(1, 0), 500);
});

test("a broken stream resumes after the last event, and a refused token ends it",
    async () => {
      const {followEvents} = await load("api.js");
      const asked = [];
      const answers = [
        () => new Response("id: 5\nevent: job\ndata: {\"text\":\"one\"}\n\n"),
        () => {
          throw new TypeError("network");
        },
        () => new Response("id: 6\nevent: job\ndata: {\"text\":\"two\"}\n\n"),
        () => new Response("{\"message\":\"unknown token\"}", {status: 401}),
      ];
      const kept = globalThis.fetch;
      globalThis.fetch = async (path, {headers}) => {
        asked.push(headers["Last-Event-ID"]);
        return answers[asked.length - 1]();
      };
      const seen = [];
      try {
        await followEvents("/v1/watch", (event) => seen.push(event.text));
      } finally {
        globalThis.fetch = kept;
      }
      assert.deepEqual(asked, [undefined, "5", "5", "6"]);
      assert.deepEqual(seen, ["one", "two"]);
    });

test("lists are taken page by page to their end, and no further than their bound", async () => {
  globalThis.sessionStorage = {getItem: () => null};
  const {getList} = await load("api.js");
  const kept = globalThis.fetch;
  const asked = [];
  let endless = false;
  globalThis.fetch = async (path) => {
    asked.push(path);
    const next = endless || asked.length < 3 ? `a/${asked.length}` : "";
    const body = {nodes: [asked.length], next_page_token: next};
    return {ok: true, headers: new Map(), json: async () => body};
  };
  try {
    assert.deepEqual(await getList("/v1/nodes", "nodes"), [1, 2, 3]);
    assert.deepEqual(asked, ["/v1/nodes", "/v1/nodes?page_token=a%2F1", "/v1/nodes?page_token=a%2F2"]);
    endless = true;
    assert.equal((await getList("/v1/nodes", "nodes", 4)).length, 4);
  } finally {
    globalThis.fetch = kept;
  }
});

test("events are kept once, newest first, and not without end", async () => {
  const {withEvent} = await load("store.js");
  let events = [];
  for (let id = 1; id <= 400; id += 1) events = withEvent(events, {id: String(id), unix_s: id});
  assert.equal(events.length, 300);
  assert.equal(events[0].id, "400");
  assert.equal(withEvent(events, {id: "400", unix_s: 400}), events);
});

test("addresses survive a round trip, whatever the name of the job", async () => {
  const {address, parse} = await load("router.js");
  for (const name of ["lm", "a/b", "%", "ö #?&", "<b>"]) {
    assert.deepEqual(parse(address("jobs", name)), {view: "jobs", argument: name});
  }
  assert.deepEqual(parse("#/jobs/%zz"), {view: "jobs", argument: ""});
  assert.deepEqual(parse(""), {view: "", argument: ""});
});

test("a difference turns the one text into the other, and is as short as can be", async () => {
  const {diffLines} = await load("diff.js");
  let seed = 7;
  const random = (below) => {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    return Math.floor((seed / 2147483648) * below);
  };
  for (let round = 0; round < 300; round += 1) {
    const text = () => Array.from({length: random(7)}, () => "abc"[random(3)]);
    const [before, after] = [text(), text()];
    const lines = diffLines(
        before.map((line) => `${line}\n`).join(""), after.map((line) => `${line}\n`).join(""));
    assert.deepEqual(
        lines.filter((line) => line.kind !== "added").map((line) => line.text), before);
    assert.deepEqual(
        lines.filter((line) => line.kind !== "removed").map((line) => line.text), after);
    assert.equal(lines.filter((line) => line.kind === "same").length, common(before, after),
        `round ${round}`);
  }
});

// Finds the common lines by trying everything.
function common(a, b) {
  if (a.length === 0 || b.length === 0) return 0;
  if (a[0] === b[0]) return 1 + common(a.slice(1), b.slice(1));
  return Math.max(common(a.slice(1), b), common(a, b.slice(1)));
}

test("axes have round numbers within their range", async () => {
  const {range, scale, ticks} = await load("charts/scale.js");
  assert.deepEqual(ticks({low: 0, high: 10, count: 5}), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(
      ticks({low: 0.001, high: 0.1, log: true}).map((value) => Number(value.toPrecision(3))),
      [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1]);
  for (const [low, high] of [[0, 1e-9], [0, 3e12], [5, 5.001], [-2, 7]]) {
    const found = ticks({low, high, count: 4});
    assert.ok(found.length >= 2 && found.length <= 6, `${low} to ${high}: ${found}`);
    for (const value of found)
      assert.ok(value >= low - 1e-12 * Math.abs(low) && value <= high * (1 + 1e-9));
  }
  assert.deepEqual(range([NaN, null, 0], {log: true}), {low: 0.1, high: 1});
  assert.deepEqual(range([], {}), {low: 0, high: 1});
  assert.equal(range([4, 6], {}).low, 0);
  assert.ok(range([4, 6], {tight: true}).low > 3);
  assert.equal(scale({low: 1, high: 100, from: 0, to: 10, log: true})(10), 5);
});

test("the parts of a step add up to it and are never negative", async () => {
  const {parts} = await load("step_parts.js");
  const points = [
    {
      step_s: 1,
      compute_s: 0.2,
      backward_s: 0.3,
      exposed_s: 0.4,
      encode_s: 0.1,
      network_s: 0.6,
      decode_s: 0.1
    },
    {step_s: 1, compute_s: 0.2, exposed_s: 5, network_s: 1},
    {step_s: 0.1, compute_s: 0.5},
    {step_s: 1, exposed_s: 0.5},
    {},
  ];
  for (const point of points) {
    const found = Object.values(parts(point));
    assert.ok(Math.abs(found.reduce((sum, value) => sum + value, 0) - (point.step_s || 0)) < 1e-12,
        JSON.stringify(point));
    assert.ok(found.every((value) => value >= 0), JSON.stringify(found));
  }
  const first = parts(points[0]);
  assert.ok(Math.abs(first.network - 0.3) < 1e-12 && Math.abs(first.wait - 0.1) < 1e-12);
});

test("numbers read as in a terminal, by the same cases", async () => {
  const format = await load("format.js");
  const cases = JSON.parse(readFileSync(new URL("../../data/units.json", import.meta.url)));
  const formats = {
    seconds: format.seconds,
    bandwidth: format.bitsPerSecond,
    bytes: format.bytes,
    percent: format.percent,
    number: format.significant,
    age: format.duration
  };
  for (const [name, text] of Object.entries(formats)) {
    assert.ok(cases[name].length > 5, name);
    for (const [value, expected] of cases[name]) {
      assert.equal(text(value === null ? NaN : value), expected, `${name} of ${value}`);
    }
  }
  for (const [value, deviation, expected] of cases.deviation) {
    assert.equal(format.withDeviation(format.bitsPerSecond(value), value, deviation), expected);
  }
  assert.equal(format.choiceLabel({codec: "identity", collective: "ring", ratio: 1}), "dense over ring");
});

test("time saved is told against dense, lost time too, with the sign's tone", async () => {
  const {savings, savingsOfAll, worstFirst} = await load("savings.js");
  const saves = {name: "a", compared_s: 60, saved_s: 60};
  const costs = {name: "b", compared_s: 60, saved_s: -6};
  assert.deepEqual(savings(saves),
      {share: 0.5, saved_s: 60, compared_s: 60, text: "saves 50 % of the time (60 s)", tone: "good"});
  assert.equal(savings(costs).text, "costs 11 % of the time (6 s)");
  assert.equal(savings(costs).tone, "bad");
  assert.equal(savings({}).text, "not compared with dense yet");
  const figure = {
    verdict: "BENEFIT_VERDICT_UNCLEAR",
    saved_share: 0.01,
    compared_s: 40,
    saved_s: 0.4,
    text: "saves 1 % +- 5 % of the time"
  };
  const unclear = {name: "c", benefit: figure, saved_s: 99, compared_s: 1};
  assert.equal(savings(unclear).text, figure.text);
  assert.equal(savings(unclear).tone, "even");
  assert.equal(savingsOfAll([saves, costs, unclear]).saved_s, 54.4);
  assert.deepEqual(worstFirst([{name: "z"}, saves, unclear, {name: "y"}, costs]).map((job) => job.name),
      ["b", "c", "a", "y", "z"]);
});

test("jobs are found by name, policy and choice, and by what is wrong with them", async () => {
  const {matching} = await load("views/jobs.js");
  const jobs = [
    {name: "lm", policy: "fast", state: "running", compared_s: 9, saved_s: 3},
    {name: "vision", policy: "slow", state: "ended", compared_s: 9, saved_s: -3},
    {name: "audio", policy: "slow", state: "running", pinned: "ann"}
  ];
  const names = (words, filter) => matching(jobs, words, filter).map((job) => job.name);
  assert.deepEqual(names("", "all"), ["vision", "lm", "audio"]);
  assert.deepEqual(names(" SLOW", "all"), ["vision", "audio"]);
  assert.deepEqual(names("", "losing"), ["vision"]);
  assert.deepEqual(names("", "running"), ["lm", "audio"]);
  assert.deepEqual(names("i", "pinned"), ["audio"]);
});

test("candidates that none beats in both are the front", async () => {
  const {undominated} = await load("views/what_if.js");
  const all = [
    {step_s: 1, gain: 0.2}, {step_s: 2, gain: 0.9}, {step_s: 2.5, gain: 0.9}, {step_s: 3, gain: 1}
  ];
  assert.deepEqual(undominated(all), [all[0], all[1], all[3]]);
});

test("older steps and decisions come page by page, once, up to a bound", async () => {
  const {JobHistory} = await load("job_history.js");
  const kept = globalThis.fetch;
  const asked = [];
  const steps = Array.from({length: 900}, (_, index) => ({step: String(index + 1)}));
  const page = (from, count, next) => ({
    decisions: Array.from({length: count}, (_, index) => ({id: String(from - index)})),
    next_page_token: next
  });
  globalThis.fetch = async (path) => {
    asked.push(path);
    const body = path.includes("points_max") ? {points: steps.slice(-300)} :
        path.includes("since_step") ? {points: steps.slice(-1)} :
        path.includes("/series") ? {points: steps} :
        path.includes("page_token=b") ? page(1400, 500, "") :
        path.includes("page_token=a") ? page(1900, 500, "b") :
        page(2000, path.includes("page_size=10&") ? 10 : 100, "a");
    return {ok: true, headers: new Map(), json: async () => body};
  };
  try {
    const api = await load("api.js");
    const history = new JobHistory(api, "lm");
    await history.load();
    assert.equal(history.decisions.size, 100);
    assert.equal(history.points.length, 300);
    assert.ok(await history.loadOlder());
    assert.deepEqual(history.points, steps);
    assert.ok(await history.loadOlder());
    assert.ok(await history.loadOlder());
    assert.equal(await history.loadOlder(), false);
    assert.equal(history.decisions.size, 1100);
    await history.load();
    assert.equal(history.decisions.size, 1100);
    assert.equal(history.newestFirst()[0].id, "2000");
    assert.equal(asked.filter((path) => path.includes("decisions")).length, 4);
  } finally {
    globalThis.fetch = kept;
  }
});

test("a job that began anew forgets its former steps", async () => {
  const {JobHistory} = await load("job_history.js");
  const history = new JobHistory(null, "lm");
  history.addPoints([{step: "1"}, {step: "2"}], 0);
  history.addPoints([{step: "2"}, {step: "3"}], 2);
  assert.deepEqual(history.points.map((point) => point.step), ["1", "2", "3"]);
  history.addPoints([], 3);
  assert.deepEqual(history.points, []);
  history.addPoints([{step: "1"}], 0);
  assert.deepEqual(history.points.map((point) => point.step), ["1"]);
});

test("trouble is an event that may need action", async () => {
  const {isTrouble} = await load("events.js");
  assert.ok(isTrouble({kind: "rank", rank_event: {kind: "plan_nack"}}));
  assert.ok(!isTrouble({kind: "rank", rank_event: {kind: "closing"}}));
  assert.ok(isTrouble({kind: "decision", decision: {outcome: "withdrawn"}}));
  assert.ok(!isTrouble({kind: "decision", text: "a rank refused", decision: {outcome: "active"}}));
  assert.ok(isTrouble({kind: "node", text: "node n1 lost: closed"}));
  assert.ok(!isTrouble({kind: "node", text: "node n1 connected"}));
});
