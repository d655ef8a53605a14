// SPDX-License-Identifier: Apache-2.0
// Every view in both colour schemes, its updates, and a tour of the page by keyboard.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {assertAccessible, contrasts, drawnPixels, Fixture, launch, openTab, screenshot, texts, waitFor} from "./harness.mjs";

let browser;
let fixture;

before(async () => {
  [browser, fixture] = await Promise.all([launch(), Fixture.start()]);
});

after(async () => {
  await browser.close();
  await fixture.stop();
});

async function readable(page, scheme) {
  const found = await contrasts(
      page, "h2, h3, p, td, th, a, b, li, label, button:enabled, .badge, output, summary");
  assert.ok(found.length > 10);
  const poor = found.filter(({ratio}) => ratio < 4.5);
  assert.deepEqual(poor, [], `${scheme}: text of too little contrast`);
}

test("without a job the page says what to do", async () => {
  const tab = await openTab(browser, fixture.url);
  await waitFor(tab.page, "#empty", /No training job has attached yet/);
  await waitFor(tab.page, "#connection", /live/);
  await tab.check();
  await tab.close();
  await fixture.tell("history");
});

for (const scheme of ["light", "dark"]) {
  test(`job, ${scheme}`, async () => {
    const tab = await openTab(browser, fixture.url, {scheme});
    const {page} = tab;
    // The only job that runs is where the page begins.
    const headline = await waitFor(page, "#headline", /saves/);
    assert.match(headline, /^saves [\d.]+ % .*of the time.* · top_k [\d.]+ over \w+$/);
    assert.equal(await page.locator("#headline b").getAttribute("class"), "good");
    assert.match(await page.locator("#summary").innerText(),
        /^Step \d+: .*(rose|fell) .* -> .*; predicted [\d.]+ m?s \(dense [\d.]+ m?s\), keeps \d+ %\.$/);
    assert.equal(new URL(page.url()).hash, "#/jobs/lm");
    const tiles = new Map(
        await page.locator("#tiles .tile")
            .evaluateAll((all) => all.map(
                             (each) => [each.dataset.label, each.querySelector("b").textContent])));
    assert.match(tiles.get("bandwidth believed"), /^[\d.]+ Mb\/s( \+\/- [\d.]+ %)?$/);
    assert.match(tiles.get("one-way latency believed"), /^[\d.]+ us/);
    assert.ok(Number(tiles.get("step")) > 300);
    assert.equal(tiles.get("frames"), "checked");
    await jobTables(page);
    await jobCharts(page);
    await readable(page, scheme);
    await assertAccessible(page);
    const paper = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(paper, scheme === "dark" ? "rgb(16, 22, 29)" : "rgb(246, 248, 250)");
    await screenshot(page, `job-${scheme}`);
    await tab.check();
    await tab.close();
  });
}

async function jobTables(page) {
  assert.match(await page.locator("#reason").innerText(), /predicts .* against .* dense/);
  assert.equal(await page.locator("#candidates tr.chosen").count(), 1);
  const rows = await texts(page, "#candidates tbody tr");
  assert.ok(rows.length >= 5);
  assert.ok(rows.some((row) => /■ dense/.test(row)), "dense is always compared");
  assert.ok(rows.some((row) => /excluded: gain_min 0\.2/.test(row)), "why a candidate is out");
  assert.match(await page.locator("#why").innerText(),
      /Asked by \w+ at step \d+.*binding constraint: gain_min/);
  // Refusals are among the events of the job, with rank and reason, and among the decisions on
  // request.
  const events = await texts(page, "#job-events tr.trouble");
  assert.ok(events.some((row) => /▲ trouble.*rank 0 refuses plan \d+: no memory/s.test(row)),
      events.join("\n"));
  assert.ok(!(await texts(page, "#decisions tr")).some((row) => /nacked/.test(row)));
  await page.selectOption("#decision-filter", "failed");
  const failed = await texts(page, "#decisions tbody tr");
  assert.ok(failed.length >= 1 && failed.every((row) => /▲ nacked/.test(row)));
  await page.selectOption("#decision-filter", "switches");
  assert.equal(await page.locator("#ranks tbody tr").count(), 6);
}

async function jobCharts(page) {
  const chart = (title) =>
      page.locator("figure.chart", {has: page.locator(`h3:text-is("${title}")`)});
  const ratio = chart("Kept ratio, with the reason of each change");
  const marks = await texts(page, "#marks li");
  assert.ok(marks.length >= 3, "first plan, slow, fast again");
  for (const mark of marks) assert.match(mark, /^Step \d+: .+\. Now .+ over \w+.*; predicted /);
  const time = chart("Where a step's time goes");
  assert.equal(await time.locator(".plot").getAttribute("data-series"),
      "compute, encode, network, decode, wait, dense, predicted");
  assert.match(await time.locator("output").innerText(),
      /compute 30 ms, encode .*network .*decode .*wait .*dense, predicted \d/);
  const drawn = await drawnPixels(page);
  assert.equal(drawn.length, 7);
  for (const pixels of drawn) assert.ok(pixels > 500, `${drawn}`);
  await zoom(page, time, ratio);
  const pareto = chart("Step time against gain: the Pareto front");
  assert.equal(await pareto.locator("svg[role=img] .point.chosen").count(), 1);
  assert.equal(await pareto.locator("svg[role=img] .point.dense").count(), 1);
  assert.ok(await pareto.locator("svg[role=img] .point.excluded").count() >= 1);
  assert.match(await pareto.locator(".bound").textContent(), /gain at least 0\.2/);
  assert.match(await pareto.locator(".bounds").innerText(), /kept ratio 0\.001 to 1/);
  await ratio.locator("summary").click();
  await ratio.locator("tbody tr").nth(50).waitFor();  // the same as a table
  await ratio.locator("summary").click();
}

// A choice in one chart applies to all: the cursor, the zoom, the range and the axis.
async function zoom(page, time, ratio) {
  const output = (figure) => figure.locator("output").innerText();
  await time.scrollIntoViewIfNeeded();
  const newest = await output(ratio);
  const box = await time.locator(".u-over").boundingBox();
  const y = box.y + box.height / 2;
  await page.mouse.move(box.x + box.width * 0.3, y);
  await page.waitForFunction((text) =>
    document.querySelectorAll("figure.chart output")[1].textContent !== text, newest);
  const step = (text) => Number(text.match(/^step (\d+)/)[1]);
  assert.equal(step(await output(time)), step(await output(ratio)));
  const ticks = () => page.evaluate(() => [...document.querySelectorAll(".plot canvas")].map((each) => each.toDataURL().length));
  const before = await ticks();
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, y, {steps: 4});
  await page.mouse.up();
  const zoomed = await ticks();
  assert.ok(zoomed.every((size, index) => size !== before[index]), "all charts show the same stretch");
  await page.mouse.dblclick(box.x + box.width * 0.5, y);
  await page.mouse.move(0, 0);
  await page.selectOption("#chart-axis", "time");
  await page.selectOption("#chart-span", "100");
  await time.locator("summary").click();
  await page.waitForFunction(() => document.querySelectorAll("figure.chart details[open] tbody tr").length === 100);
  await time.locator("summary").click();
  await page.selectOption("#chart-span", "0");
  await page.selectOption("#chart-axis", "step");
}

test("jobs are found, and what all of them save is told", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/jobs"});
  const {page} = tab;
  await waitFor(page, "#fleet-saved", /saves [\d.]+ % of the time/);
  assert.match(await page.locator("#jobs tbody").innerText(), /lm\s+running\s+6 of 6\s+saves/);
  await page.fill("#job-search", "nothing of that name");
  await waitFor(page, "#jobs", /No job matches/);
  await page.fill("#job-search", "LM");
  await page.selectOption("#job-filter", "losing");
  await waitFor(page, "#jobs", /No job matches/);
  await page.selectOption("#job-filter", "running");
  await waitFor(page, "#jobs tbody", /lm/);
  await assertAccessible(page);
  await tab.check();
  await tab.close();
});

test("before the first answer the page says so, and claims nothing", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/fleet"});
  const {page} = tab;
  let answer = () => {};
  const held = new Promise((resolve) => {
    answer = resolve;
  });
  await page.route("**/v1/jobs/lm/series*", async (route) => {
    await held;
    await route.continue();
  });
  await page.goto(`${fixture.url}/#/jobs/lm`);
  await waitFor(page, "#loading", /Loading/);
  assert.doesNotMatch(await page.locator("main").innerText(), /Nothing measured|not compared|No decision/);
  answer();
  await waitFor(page, "#headline", /saves/);
  assert.equal(await page.locator("#loading").count(), 0);
  await tab.check();
  await tab.close();
});

for (const scheme of ["light", "dark"]) {
  test(`fleet, ${scheme}`, async () => {
    const tab = await openTab(browser, fixture.url, {scheme, address: "/#/fleet"});
    const {page} = tab;
    await waitFor(page, "#nodes", /spare2/);
    const nodes = await texts(page, "#nodes tbody tr");
    assert.equal(nodes.length, 9);
    assert.match(nodes.find((row) => row.startsWith("n0")), /● connected.*10\.0\.0\.1.*lm/s);
    assert.match(nodes.find((row) => row.startsWith("spare2")), /▲ lost.*eth0 10 Gb\/s/s);
    const cell = (source, target) =>
        page.locator(`#heatmap td[aria-label^="${source} to ${target}:"]`);
    assert.match(await cell("n0", "n1").getAttribute("aria-label"),
        /^n0 to n1: [\d.]+ Mb\/s.*tcp_info, \d+ samples, (now|\d+ s ago)$/);
    assert.match(await cell("spare0", "n0").innerText(), /^8 Mb\/s\s+(now|\d+ (s|min) ago)/);
    assert.match(await cell("n0", "spare0").innerText(), /^-/);
    const colours =
        await page.locator("#heatmap td[class^=v]")
            .evaluateAll(
                (all) => new Set(all.map((each) => getComputedStyle(each).backgroundColor)).size);
    assert.ok(colours >= 6, `${colours} colours`);
    const slow = await cell("spare0", "n0").getAttribute("class");
    assert.match(slow, /^v0/, "the slowest is the darkest");
    await page.getByLabel("Round trip").check();
    assert.match(await cell("spare0", "n0").innerText(), /^100 us/);
    assert.match(
        await cell("spare0", "n0").getAttribute("class"), /^v9/, "the shortest is the brightest");
    await page.fill("#heatmap-filter", "spare");
    assert.equal(await page.locator("#heatmap tbody tr").count(), 3);
    await page.fill("#heatmap-filter", "");
    await page.getByLabel("Bandwidth").check();
    assert.ok(
        (await texts(page, "#links tbody tr")).some((row) => /^spare1\s+n5\s.*iperf3/s.test(row)));
    await page.check("#only-trouble");
    const events = await texts(page, "#events tbody tr");
    assert.ok(events.some((row) => /node spare2 lost: silent/.test(row)));
    assert.ok(events.every((row) => /▲ trouble/.test(row)));
    await readable(page, scheme);
    await assertAccessible(page);
    await screenshot(page, `fleet-${scheme}`);
    await tab.check();
    await tab.close();
  });
}

test("events show without reloading", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/jobs/lm"});
  const {page} = tab;
  await waitFor(page, "#headline", /saves/);
  const before = await page.locator("#marks li").count();
  await fixture.tell("fast");
  await fixture.tell("steps 40");
  await waitFor(page, "#marks", /Step [4-9]\d\d: bandwidth rose .* -> \d[\d.]* Gb\/s/);
  assert.ok(await page.locator("#marks li").count() > before);
  await fixture.tell("lose 5");
  await waitFor(page, "#ranks tr.trouble", /n5\s+▲ gone/);
  await page.click("text=Fleet");
  await waitFor(page, "#events", /node n5 lost/);
  await fixture.tell("return 5");
  await waitFor(page, "#events", /node n5 connected/);
  await tab.check();
  await tab.close();
});

test("everything can be done by keyboard", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/jobs"});
  const {page} = tab;
  await waitFor(page, "#jobs", /lm/);
  const focused = () => page.evaluate(() => document.activeElement.textContent.slice(0, 60));
  const tabTo = async (what, limit = 60) => {
    for (let count = 0; count < limit; count += 1) {
      await page.keyboard.press("Tab");
      if (await page.evaluate((selector) => document.activeElement.matches(selector), what)) return;
    }
    assert.fail(`no way to ${what} by Tab; at '${await focused()}'`);
  };
  await tabTo(".skip", 1);
  assert.ok(
      (await page.locator(".skip").boundingBox()).x >= 0, "the link shows when it has the focus");
  const ring = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
  assert.equal(ring, "solid", "where one is can be seen");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await tabTo("#jobs a");
  await page.keyboard.press("Enter");
  await waitFor(page, "#headline", /saves/);
  assert.equal(await focused(), "Job lm", "a new view is announced");
  await chartByKeyboard(page, tabTo);
  await page.locator("main h2").focus();
  for (let count = 0; count < 20 && !/Fleet/.test(await focused()); count += 1)
    await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter");
  await waitFor(page, "#heatmap", /n5/);
  await tabTo("#heatmap td");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("ArrowDown");
  await waitFor(page, "#heatmap > output", /^n2 to n1: /);
  await page.waitForTimeout(3500);  // longer than a refresh
  assert.match(await page.evaluate(() => document.activeElement.getAttribute("aria-label")),
      /^n2 to n1: /, "the place is kept");
  await tab.check();
  await tab.close();
});

async function chartByKeyboard(page, tabTo) {
  await tabTo("figure.chart .plot");
  const step = (text) => Number(text.match(/^step (\d+)/)[1]);
  let first = 0, second = 0;
  // Earlier steps, which come after the newest, move what is read between the two keys.
  for (let tries = 0; tries < 5 && second !== first + 1; tries += 1) {
    await page.keyboard.press("Home");
    first = step(await waitFor(page, "figure.chart output", /^step \d+: compute/));
    await page.keyboard.press("ArrowRight");
    second = step(await waitFor(page, "figure.chart output", /^step \d+:/));
  }
  assert.equal(second, first + 1);
  await page.keyboard.press("Escape");
}

test("colours can be chosen, and stay chosen", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/jobs"});
  const {page} = tab;
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.locator("#theme").focus();
  await page.keyboard.press("Space");
  await page.keyboard.press("Space");
  assert.match(await page.locator("#theme").innerText(), /dark/);
  assert.equal(await paper(), "rgb(16, 22, 29)");
  await page.reload();
  assert.equal(await paper(), "rgb(16, 22, 29)");
  await tab.check();
  await tab.close();
});

test("the page forbids everything it does not need", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/jobs"});
  const {page} = tab;
  await waitFor(page, "#connection", /live/);
  await tab.check();
  const refused = await page.evaluate(() => {
    const script = document.createElement("script");
    script.append("window.ran = true");
    document.body.append(script);
    document.body.setAttribute("style", "color: red");
    let sink = "";
    try {
      document.body.insertAdjacentHTML("beforeend", "<b>x</b>");
    } catch (error) {
      sink = error.name;
    }
    return {ran: Boolean(window.ran), style: document.body.style.color, sink};
  });
  assert.deepEqual(refused, {ran: false, style: "", sink: "TypeError"});
  await assert.rejects(tab.check());
  await tab.close();
});

test("the page says that the controller is gone, and how old its data are", async () => {
  const mortal = await Fixture.start();
  const tab = await openTab(browser, mortal.url, {address: "/#/fleet"});
  await waitFor(tab.page, "#connection", /live/);
  await mortal.stop(true);
  await waitFor(tab.page, "#error", /does not answer; trying again; what you see is \d+ s old/);
  await waitFor(tab.page, "#connection", /no answer/);
  assert.equal(await tab.page.locator("main.outdated").count(), 1, "what shows looks old");
  await tab.check(/net::ERR|Failed to load/);
  await tab.close();
});

test("a fault of the page itself is not taken for a silent controller", async () => {
  const tab = await openTab(browser, fixture.url, {address: "/#/policies"});
  await tab.page.route("**/v1/jobs", (route) => route.fulfill({json: {jobs: [{name: "lm", ranks: 5}]}}));
  await tab.page.goto(`${fixture.url}/#/jobs`);
  await waitFor(tab.page, "#error", /This page failed: .*filter/);
  await waitFor(tab.page, "#connection", /live/);
  await tab.check(/^console: .*filter/);
  await tab.close();
});
