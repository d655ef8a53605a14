// SPDX-License-Identifier: Apache-2.0
// The page before a real training: the address comes in WEIR_PAGE_URL, what the controller decided
// in WEIR_PAGE_SUMMARY. Read-only; what each view must do is in views.test.mjs.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {drawnPixels, launch, openTab, screenshot, texts, waitFor} from "./harness.mjs";

const url = process.env.WEIR_PAGE_URL;
let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

for (const scheme of ["light", "dark"]) {
  test(`every view of a running training, ${scheme}`, async () => {
    const tab = await openTab(browser, url, {scheme});
    const {page} = tab;
    await waitFor(
        page, "#headline", /(saves|costs) .* of the time|as fast as dense|not compared|dense ran/i);
    const marks = (await texts(page, "#marks li")).join("\n");
    assert.ok(marks.includes(process.env.WEIR_PAGE_SUMMARY),
        `${process.env.WEIR_PAGE_SUMMARY} is not in\n${marks}`);
    const rows = await texts(page, "#candidates tbody tr");
    assert.ok(rows.length >= 5);
    assert.equal(await page.locator("#candidates tr.chosen").count(), 1);
    // Dense with each collective that is among the best: on a fast network several.
    assert.ok(rows.some((row) => /■ dense/.test(row) && /\sas dense/.test(row)), rows.join("\n"));
    for (const drawn of await drawnPixels(page)) assert.ok(drawn > 200, `${drawn} pixels`);
    await screenshot(page, `live-job-${scheme}`);
    await page.click("text=Fleet");
    await waitFor(page, "#heatmap td[class^=v]", /[kMG]b\/s/);
    await screenshot(page, `live-fleet-${scheme}`);
    await page.click("text=What if");
    await waitFor(page, "#if-job", /\S/);
    await page.click("#if-take");
    await page.click("text=What would be chosen?");
    await waitFor(page, "#if-answer .headline", /over \w+/);
    await screenshot(page, `live-what-if-${scheme}`);
    await page.click("nav >> text=Policies");
    await waitFor(page, "#policies", /built in/);
    await tab.check();
    await tab.close();
  });
}
