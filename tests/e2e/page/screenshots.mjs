// SPDX-License-Identifier: Apache-2.0
// Makes the pictures of the page that READMEs show, of the simulated fleet of weir-page-fixture:
//   cd dashboards/web && npm ci --ignore-scripts && npm run screenshots
// WEIR_BUILD: the build directory, ../../build unless given. Writes dashboards/web/screenshots.

import {existsSync} from "node:fs";
import {dirname, join, resolve} from "node:path";
import {fileURLToPath} from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../../..");
const web = join(root, "dashboards/web");
process.env.WEIR_NODE_MODULES ||= join(web, "node_modules");
process.env.WEIR_PAGE_OUT = join(web, "screenshots");
process.env.WEIR_PAGE_FIXTURE ||= join(process.env.WEIR_BUILD || join(root, "build"), "tests/e2e/weir-page-fixture");
process.env.WEIR_CHROMIUM ||= ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);
const {Fixture, launch, openTab, screenshot, waitFor} = await import("./harness.mjs");

const [browser, fixture] = await Promise.all([launch(), Fixture.start()]);
try {
  await fixture.tell("history");
  for (const scheme of ["light", "dark"]) {
    const tab = await openTab(browser, fixture.url, {scheme, address: "/#/jobs/lm"});
    await tab.page.setViewportSize({width: 1280, height: 900});
    await waitFor(tab.page, "#headline", /of the time/);
    await tab.page.waitForTimeout(1000);  // charts take their width
    await screenshot(tab.page, `job-${scheme}`, false);
    await tab.close();
  }
} finally {
  await browser.close();
  await fixture.stop();
}
