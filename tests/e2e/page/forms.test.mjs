// SPDX-License-Identifier: Apache-2.0
// The page's forms: what-if questions, policies, tokens.

import assert from "node:assert/strict";
import {createHash} from "node:crypto";
import {mkdtempSync, rmSync, writeFileSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {after, before, test} from "node:test";

import {assertAccessible, Fixture, launch, openTab, screenshot, texts, waitFor} from "./harness.mjs";

const tokens = {
  viewer: "viewer-token-of-the-test",
  operator: "operator-token-of-the-test",
  admin: "admin-token-of-the-test"
};
let browser;
let open;
let guarded;
let directory;

before(async () => {
  directory = mkdtempSync(join(tmpdir(), "weir-page-"));
  const file = join(directory, "tokens");
  const hash = (token) => createHash("sha256").update(token).digest("hex");
  writeFileSync(file, Object.entries(tokens).map(
      ([role, token]) => `the-${role} ${role} sha256:${hash(token)}\n`).join(""));
  [browser, open, guarded] = await Promise.all([launch(), Fixture.start(), Fixture.start(file)]);
  await Promise.all([open.tell("history"), guarded.tell("history")]);
});

after(async () => {
  await browser.close();
  await Promise.all([open.stop(), guarded.stop()]);
  rmSync(directory, {recursive: true});
});

for (const scheme of ["light", "dark"]) {
  test(`what if, ${scheme}`, async () => {
    const tab = await openTab(browser, open.url, {scheme, address: "/#/what-if"});
    const {page} = tab;
    await waitFor(page, "#if-job", /lm/);
    await page.fill("#if-bandwidth_bytes_per_s", "100");
    await page.press("#if-world", "Enter");
    assert.match(await waitFor(page, "#if-answer .headline", /dense/),
        /^top_k [\d.]+ over \w+ · saves \d+ % of dense's time, as predicted · keeps \d/);
    assert.match(
        await page.locator("#if-answer .reason").innerText(), /at 100 Mb\/s/);
    assert.equal(await page.locator("#if-answer tr.chosen").count(), 1);
    assert.equal(await page.locator("figure.chart .point.chosen").count() > 0, true);
    await screenshot(page, `what-if-${scheme}`);
    const free = await page.locator("#if-answer .headline b").innerText();
    await page.selectOption("#if-policy", "lm-bounds");
    await page.fill("#if-bandwidth_bytes_per_s", "1");
    await page.click("text=What would be chosen?");
    await waitFor(page, "#if-answer", /excluded: gain_min 0\.2/);
    assert.notEqual(await page.locator("#if-answer .headline b").innerText(), "", free);
    await tab.check();
    await tab.close();
  });
}

test("a what-if question can begin with a running job", async () => {
  const tab = await openTab(browser, open.url, {address: "/#/what-if"});
  await waitFor(tab.page, "#if-job", /lm/);
  await tab.page.click("#if-take");
  await tab.page.waitForFunction(() => document.getElementById("if-world").value === "6");
  assert.equal(await tab.page.inputValue("#if-model_parameters"), "2.62144");
  assert.equal(await tab.page.inputValue("#if-buckets"), "4");
  assert.equal(await tab.page.inputValue("#if-compute_s"), "30");
  await tab.check();
  await tab.close();
});

test("what the controller refuses is shown at its field", async () => {
  const tab = await openTab(browser, open.url, {address: "/#/what-if"});
  const {page} = tab;
  await waitFor(page, "#if-job", /lm/);
  await page.fill("#if-world", "0");
  await page.press("#if-world", "Enter");
  assert.equal(
      await page.evaluate(() => document.getElementById("what-if").checkValidity()), false);
  assert.equal(await page.locator("#if-answer").innerText(), "", "nothing was asked");
  await page.evaluate(() => document.getElementById("if-world").removeAttribute("max"));
  await page.fill("#if-world", "5000");
  await page.press("#if-world", "Enter");
  await waitFor(page, "#if-answer .error", /world: expected 1 to 4096, found 5000/);
  assert.equal(await page.getAttribute("#if-world", "aria-invalid"), "true");
  await tab.check(/400 \(Bad Request\)/);
  await tab.close();
});

for (const scheme of ["light", "dark"]) {
  test(`a policy is checked, compared and applied, ${scheme}`, async () => {
    const tab = await openTab(browser, open.url, {scheme, address: "/#/policies/lm-bounds"});
    const {page} = tab;
    await waitFor(page, "#policies", /lm-bounds.*built in/s);
    assert.equal(await page.isDisabled("#policy-apply"), true);
    const text = await page.inputValue("#policy-text");
    await page.fill("#policy-text", "name: lm-bounds\nbounds:\n  gain_min: 7\n");
    await page.click("#policy-check");
    await waitFor(
        page, "#policy-verdict.error", /policy:3: bounds\.gain_min: expected .*found '7'/);
    assert.equal(await page.evaluate(() => document.getSelection().toString()), "  gain_min: 7");
    assert.equal(await page.isDisabled("#policy-apply"), true);
    const gain = scheme === "light" ? "0.3" : "0.4";
    await page.fill("#policy-text", text.replace(/gain_min: [\d.]+/, `gain_min: ${gain}`));
    await page.click("#policy-check");
    await waitFor(
        page, "#policy-verdict", /Valid; 2 lines differ from what is in force as lm-bounds/);
    assert.match((await texts(page, "#policy-diff .line-removed"))[0], /- {3}gain_min: 0\.[23]/);
    assert.match(
        (await texts(page, "#policy-diff .line-added"))[0], new RegExp(`\\+ {3}gain_min: ${gain}`));
    await waitFor(page, "#policy-confirm", /Effect on running jobs.*lm/s);
    await screenshot(page, `policy-${scheme}`);
    await page.fill("#policy-actor", "somebody");
    await page.click("#policy-apply");
    await waitFor(page, "#policy-verdict", /Applied: lm-bounds is in force/);
    const {policies} = await (await fetch(`${open.url}/v1/policies`)).json();
    assert.equal(
        policies.find((policy) => policy.name === "lm-bounds").bounds.gain_min, Number(gain));
    await tab.check();
    await tab.close();
  });
}

const put = (source, name) => fetch(`${open.url}/v1/policies/${encodeURIComponent(name)}`,
    {method: "PUT", headers: {"Content-Type": "application/json"}, body: JSON.stringify({source, actor: "other"})});

test("a policy is deleted after its effects were shown and confirmed", async () => {
  assert.equal((await put("name: passing\njobs: [\"lm*\"]\npriority: 9\n", "passing")).status, 200);
  const tab = await openTab(browser, open.url, {address: "/#/policies/passing"});
  const {page} = tab;
  await waitFor(page, "#policies", /passing/);
  assert.equal(await page.locator("#policy-delete-now").count(), 0, "deleting is asked for first");
  await page.click("#policy-delete");
  await waitFor(page, "#policy-confirm", /What deleting passing does to running jobs.*lm.*passing → /s);
  await page.click("#policy-keep");
  assert.equal(await page.locator("#policy-delete-now").count(), 0);
  await page.click("#policy-delete");
  await waitFor(page, "#policy-delete-now", /Delete passing/);
  assert.equal((await put("name: passing\njobs: [\"lm\"]\npriority: 9\n", "passing")).status, 200);
  await page.click("#policy-delete-now");
  await waitFor(page, "#policy-verdict.error", /Not deleted: somebody changed it/);
  await page.reload();
  await waitFor(page, "#policies", /passing/);
  await page.click("#policy-delete");
  await page.click("#policy-delete-now");
  await waitFor(page, "#policy-verdict", /Deleted: passing is no longer in force/);
  const {policies} = await (await fetch(`${open.url}/v1/policies`)).json();
  assert.equal(policies.find((policy) => policy.name === "passing"), undefined);
  await page.goto(`${open.url}/#/policies/default`);
  await waitFor(page, "#editor h3", /default/);
  assert.equal(await page.isDisabled("#policy-delete"), true, "only what was applied is deleted here");
  await tab.check(/412 \(Precondition Failed\)/);
  await tab.close();
});

test("a policy that leaves a job nothing to choose cannot be applied", async () => {
  const tab = await openTab(browser, open.url, {address: "/#/policies/lm-bounds"});
  const {page} = tab;
  await waitFor(page, "#policies", /lm-bounds/);
  await page.fill("#policy-text", "name: lm-bounds\njobs: [\"lm*\"]\nbounds: {codecs: [top_k], ratio_max: 0.001, gain_min: 0.999}\n");
  await page.click("#policy-check");
  await waitFor(page, "#policy-confirm", /leaves nothing to choose/);
  assert.equal(await page.isDisabled("#policy-apply"), true);
  await page.click("#policy-discard");
  await tab.check();
  await tab.close();
});

test("a late edit does not undo another person's", async () => {
  const tab = await openTab(browser, open.url, {address: "/#/policies/lm-bounds"});
  const {page} = tab;
  await waitFor(page, "#policies", /lm-bounds/);
  await page.fill("#policy-text", "name: lm-bounds\njobs: [\"lm*\"]\nbounds: {gain_min: 0.1}\n");
  await page.click("#policy-check");
  await waitFor(page, "#policy-verdict", /Valid/);
  assert.equal((await put("name: lm-bounds\nbounds: {gain_min: 0.45}\n", "lm-bounds")).status, 200);
  await page.click("#policy-apply");
  await waitFor(page, "#policy-verdict.error", /Not applied: somebody changed it/);
  assert.match(await page.inputValue("#policy-text"), /gain_min: 0\.1/, "the text is kept");
  assert.equal(await page.isDisabled("#policy-apply"), true);
  await page.click("#policy-check");
  await waitFor(page, "#policy-diff .line-removed", /0\.45/);
  // A change of views must not lose the text.
  await page.click("text=Fleet");
  await waitFor(page, "#heatmap", /n0/);
  await page.goBack();
  await waitFor(page, "#policy-verdict", /your text from before/);
  assert.match(await page.inputValue("#policy-text"), /gain_min: 0\.1/);
  await page.click("#policy-discard");
  assert.match(await page.inputValue("#policy-text"), /gain_min: 0\.45/);
  await tab.check(/412 \(Precondition Failed\)/);
  await tab.close();
});

test("texts of the controller are never markup", async () => {
  const tab = await openTab(browser, open.url, {address: "/#/policies"});
  const {page} = tab;
  await waitFor(page, "#policies", /lm-bounds/);
  await page.fill("#policy-text", "name: x\njobs: [\"<img src=x onerror=alert(1)>\"]\n");
  await page.click("#policy-check");
  await waitFor(page, "#policy-verdict.error", /found the entry '<img src=x onerror=alert\(1\)>'/);
  assert.equal(await page.locator("main img").count(), 0);
  await tab.check();
  await tab.close();
});

async function giveToken(page, token) {
  await page.fill("#token", token);
  await page.press("#token", "Enter");
}

test("a token is asked for, kept for the tab, and can be forgotten", async () => {
  const tab = await openTab(browser, guarded.url);
  const {page} = tab;
  await waitFor(page, "#token-note", /wants a token/);
  await waitFor(page, "#connection", /token needed/);
  assert.equal(await page.locator("main").isVisible(), false, "nothing is shown");
  await screenshot(page, "token");
  await giveToken(page, "not-the-token");
  await waitFor(page, "#token-note", /refused the token: unknown token/);
  await giveToken(page, "two words");
  await waitFor(page, "#token-note", /one word/);
  await giveToken(page, tokens.viewer);
  await waitFor(page, "#headline", /saves .* of the time/);
  await waitFor(page, "#role", /role: viewer/);
  const kept = await page.evaluate(() => [location.href + document.cookie, localStorage.length]);
  assert.ok(!kept[0].includes(tokens.viewer));
  assert.equal(kept[1], 0);
  await page.reload();
  await waitFor(page, "#headline", /saves .* of the time/);
  await tab.check(/401 \(Unauthorized\)/);
  await page.click("#forget-token");
  await waitFor(page, "#token-note", /wants a token/);
  await tab.close();
});

test("without the role a policy can be tried, not applied", async () => {
  const tab = await openTab(browser, guarded.url, {address: "/#/policies/lm-bounds"});
  const {page} = tab;
  await giveToken(page, tokens.viewer);
  await waitFor(page, "#policies", /lm-bounds/);
  await page.fill("#policy-text", "name: lm-bounds\n");
  await page.click("#policy-check");
  await waitFor(page, "#policy-verdict", /Valid; \d+ lines differ/);
  assert.equal(await page.isVisible("#policy-apply"), true);
  assert.equal(await page.isDisabled("#policy-apply"), true);
  assert.equal(await page.isDisabled("#policy-delete"), true);
  await waitFor(page, "#policy-role", /need the role admin; you have viewer/);
  await screenshot(page, "policy-viewer");
  await page.click("#forget-token");
  await giveToken(page, tokens.admin);
  await waitFor(page, "#policies", /lm-bounds/);
  await page.fill("#policy-text", "name: lm-bounds\n");
  await page.click("#policy-check");
  await waitFor(page, "#policy-verdict", /Valid/);
  assert.equal(await page.isDisabled("#policy-apply"), false);
  await tab.check(/401 \(Unauthorized\)/);
  await tab.close();
});

test("a job is pinned and unpinned by an operator who confirms it", async () => {
  const tab = await openTab(browser, guarded.url, {address: "/#/jobs/lm"});
  const {page} = tab;
  await giveToken(page, tokens.viewer);
  await waitFor(page, "#pin-role", /needs the role operator; you have viewer/);
  assert.equal(await page.isDisabled("#pin"), true);
  await page.click("#forget-token");
  await giveToken(page, tokens.operator);
  await waitFor(page, "#pin-role", /wants a reason/);
  await page.selectOption("#pin-choice", {label: "dense over ring"});
  await page.fill("#pin-reason", "to compare");
  await page.fill("#pin-actor", "ann");
  await page.click("#pin");
  await waitFor(page, "#pin-question", /Pin job lm to dense over ring\?/);
  await page.click("#pin-no");
  assert.equal(await page.isVisible("#pin-dialog"), false);
  assert.equal((await job()).pinned, "", "nothing without a yes");
  await page.click("#pin");
  await page.click("#pin-yes");
  await waitFor(page, "#pin-state", /^Pinned by the-operator: dense over ring \(to compare\)/);
  assert.match((await job()).pinned, /^the-operator: dense over ring/);
  await page.selectOption("#decision-filter", "all");
  await page.click("#unpin");
  await waitFor(page, "#pin-question", /Unpin job lm/);
  await page.keyboard.press("Escape");
  assert.match((await job()).pinned, /^the-operator/);
  await page.click("#unpin");
  await page.click("#pin-yes");
  await waitFor(page, "#pin-state", /The controller decides/);
  assert.equal((await job()).pinned, "");
  await tab.check(/401 \(Unauthorized\)/);
  await tab.close();

  async function job() {
    const answer = await fetch(
        `${guarded.url}/v1/jobs/lm`, {headers: {Authorization: `Bearer ${tokens.viewer}`}});
    return answer.json();
  }
});

test("the audit trail tells admins who changed what, and what was refused", async () => {
  const refused = await fetch(`${guarded.url}/v1/policies/lm-bounds`, {
    method: "DELETE",
    headers: {Authorization: `Bearer ${tokens.viewer}`, "Content-Type": "application/json"}
  });
  assert.equal(refused.status, 403);
  const applied = await fetch(`${guarded.url}/v1/policies/other`, {
    method: "PUT",
    headers: {Authorization: `Bearer ${tokens.admin}`, "Content-Type": "application/json"},
    body: JSON.stringify({source: "name: other\njobs: [nobody]\n"})
  });
  assert.equal(applied.status, 200);
  const tab = await openTab(browser, guarded.url, {address: "/#/audit"});
  const {page} = tab;
  await giveToken(page, tokens.viewer);
  await waitFor(page, "#audit", /needs the role admin/);
  await page.click("#forget-token");
  await giveToken(page, tokens.admin);
  await waitFor(page, "#audit caption", /The newest \d+ records/);
  const rows = await texts(page, "#audit tbody tr");
  assert.match(rows[0], /the-admin\s+token\s+127\.0\.0\.1\s+ApplyPolicy\s+other\s+OK/);
  assert.match(rows[1], /the-viewer\s+token\s+127\.0\.0\.1\s+DeletePolicy\s+lm-bounds\s+▲ PERMISSION_DENIED/);
  assert.match(await page.locator("#audit tbody tr").nth(1).getAttribute("class"), /trouble/);
  await assertAccessible(page);
  await screenshot(page, "audit");
  await tab.check(/401 \(Unauthorized\)/);
  await tab.close();
});
