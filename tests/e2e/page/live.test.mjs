// SPDX-License-Identifier: Apache-2.0
// The page during a real training. WEIR_PAGE_URL is its address and WEIR_PAGE_REASON the
// controller's decision. Read-only; views.test.mjs tests each view.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";

import {launch, openTab, screenshot, texts, waitFor} from "./harness.mjs";

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
        page, "#headline", /(faster than|as fast as|slower than) dense.* · gain [\d.]+ · /);
    const marks = (await texts(page, "#marks li")).join("\n");
    assert.ok(marks.includes(process.env.WEIR_PAGE_REASON),
        `${process.env.WEIR_PAGE_REASON} is not in\n${marks}`);
    const rows = await texts(page, "#candidates tbody tr");
    assert.ok(rows.length >= 5);
    assert.equal(await page.locator("#candidates tr.chosen").count(), 1);
    // Dense appears with each collective that is among the best; on a fast network there are
    // several.
    assert.ok(rows.some((row) => /■ dense/.test(row) && /\s1×/.test(row)), rows.join("\n"));
    // A front of one candidate is a point.
    for (const path of await page.locator("figure.chart path.line:not(.front)")
             .evaluateAll(
                 (all) => all.filter((each) => each.closest("svg").getAttribute("role") === "img")
                              .map((each) => each.getAttribute("d")))) {
      assert.ok(path.length > 20 && !/NaN|Infinity/.test(path), path.slice(0, 80));
    }
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
