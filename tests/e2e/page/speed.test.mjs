// SPDX-License-Identifier: Apache-2.0
// A job of days, on a slow computer: 2,000 decisions and as many steps, the CPU throttled by four.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {Fixture, launch, openTab, waitFor} from "./harness.mjs";

const decisions = 2000;
const limitMs = 6000;  // the goal is 2,000 on a quiet machine; those of tests are shared and up to three times slower
const tries = 4;  // other work on the same cores counts as ours

let browser;
let fixture;

before(async () => {
  [browser, fixture] = await Promise.all([launch(), Fixture.start()]);
  await fixture.tell("history");
  await fixture.tell("steps 1600");
  await fixture.tell(`decisions ${decisions}`);
});

after(async () => {
  await browser.close();
  await fixture.stop();
});

// Milliseconds from the navigation to a job's figures, charts and decisions.
async function opens() {
  const tab = await openTab(browser, fixture.url, {address: "/#/policies"});
  await tab.page.goto("about:blank");
  const cdp = await tab.page.context().newCDPSession(tab.page);
  await cdp.send("Emulation.setCPUThrottlingRate", {rate: 4});
  const begin = Date.now();
  await tab.page.goto(`${fixture.url}/#/jobs/lm`);
  await tab.page.waitForFunction(
      () => document.querySelector("#decisions tbody tr") && document.querySelector(".plot canvas") &&
          document.querySelector("main > div").checkVisibility());
  const ms = Date.now() - begin;
  return {tab, ms};
}

test("a job with 2,000 decisions opens at once", {timeout: 100000}, async () => {
  const found = [];
  for (let count = 0; count < tries; count += 1) {
    const {tab, ms} = await opens();
    found.push(ms);
    // All of them come in the end, and the page stays usable.
    await tab.page.selectOption("#decision-filter", "all");
    await waitFor(tab.page, "#decisions", /100 of 2000 decisions/);
    assert.ok(await tab.page.locator("#marks li").count() <= 100);
    await tab.check();
    await tab.close();
    if (Math.min(...found) <= limitMs) break;
  }
  console.log(`opened after ${found.join(", ")} ms`);
  assert.ok(Math.min(...found) <= limitMs, `opened after ${found.join(", ")} ms`);
});

test("what it takes is small, packed, and in time", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/jobs"});
  await waitFor(tab.page, "#connection", /live/);
  const answers = await tab.page.evaluate(async () => {
    const all = [];
    for (const path of ["/v1/jobs/lm", "/v1/jobs/lm:explain", "/v1/decisions?job=lm&page_size=500", "/v1/jobs/lm/series"]) {
      const begin = performance.now();
      await (await fetch(path)).arrayBuffer();
      const timing = performance.getEntriesByName(new URL(path, location.href).href).at(-1);
      all.push({path, ms: performance.now() - begin, packed: timing.encodedBodySize, bytes: timing.decodedBodySize});
    }
    return all;
  });
  for (const {path, ms, packed, bytes} of answers) {
    console.log(`${path}: ${bytes} bytes, ${packed} sent, ${Math.round(ms)} ms`);
    assert.ok(packed < bytes / 2, `${path} is not packed: ${packed} of ${bytes}`);
    assert.ok(bytes < 3e6 && ms < 5000, path);
  }
  await tab.check();
  await tab.close();
});
