// SPDX-License-Identifier: Apache-2.0
// A browser that records errors, and a controller with a simulated fleet.

import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import {mkdirSync, readFileSync} from "node:fs";
import {createRequire} from "node:module";
import {join} from "node:path";
import {createInterface} from "node:readline";

const {chromium} = createRequire(join(process.env.WEIR_NODE_MODULES, "x"))("playwright-core");
const out = process.env.WEIR_PAGE_OUT;
const stepTimeoutMs = 60000;  // a training uses the same cores

// Drives weir-page-fixture, whose source lists its commands.
export class Fixture {
  static async start(tokenFile) {
    const fixture = new Fixture();
    fixture.child = spawn(process.env.WEIR_PAGE_FIXTURE, tokenFile ? [tokenFile] : [],
        {stdio: ["pipe", "pipe", "ignore"]});
    fixture.lines = createInterface({input: fixture.child.stdout})[Symbol.asyncIterator]();
    const [word, port] = (await fixture.lines.next()).value.split(" ");
    assert.equal(word, "http");
    fixture.url = `http://127.0.0.1:${port}`;
    return fixture;
  }

  async tell(line) {
    this.child.stdin.write(`${line}\n`);
    assert.equal((await this.lines.next()).value, "ok", line);
  }

  // It ends when its input ends; if it were killed, it could not close its connections.
  async stop(killed) {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const gone = new Promise((resolve) => this.child.once("exit", resolve));
    if (killed)
      this.child.kill("SIGKILL");
    else
      this.child.stdin.end();
    await gone;
  }
}

export const launch = () => chromium.launch({
  executablePath: process.env.WEIR_CHROMIUM,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
});

// A tab that records all errors: those in the console, exceptions, violations of the
// content-security policy, requests to other hosts. `allowed`: errors that the test provokes
// itself.
export async function openTab(browser, url, {scheme = "light", address = ""} = {}) {
  const context =
      await browser.newContext({colorScheme: scheme, viewport: {width: 1400, height: 900}});
  const page = await context.newPage();
  page.setDefaultTimeout(stepTimeoutMs);
  const wrong = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) wrong.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => wrong.push(`exception: ${error.message}`));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin)
      wrong.push(`foreign request: ${request.url()}`);
  });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation",
        (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
  });
  await page.goto(url + address);
  const check = async (allowed = /^$/) => {
    const found = [...wrong, ...await page.evaluate(() => window.violations)].filter(
        (text) => !allowed.test(text));
    assert.deepEqual(found, []);
  };
  return {page, check, close: () => context.close()};
}

export async function screenshot(page, name, fullPage = true) {
  mkdirSync(out, {recursive: true});
  await page.screenshot({path: join(out, `${name}.png`), fullPage});
}

// Waits until `selector` shows text that matches; returns the text.
export async function waitFor(page, selector, pattern) {
  const place = page.locator(selector).first();
  const end = Date.now() + stepTimeoutMs;
  for (;;) {
    const text = (await place.count()) > 0 && (await place.isVisible()) ?
        await place.innerText().catch(() => "") :
        "";
    if (pattern.test(text)) return text;
    assert.ok(
        Date.now() < end, `waited for ${pattern} in ${selector}; it says '${text.slice(0, 300)}'`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export const texts = (page, selector) => page.locator(selector).allInnerTexts();

// The contrast between each element's text and its background, by WCAG 2's formula.
export const contrasts = (page, selector) => page.evaluate((wanted) => {
  const parse = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g,
    b]) => [r, g, b]
               .map((value) => value / 255)
               .map(
                   (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
               .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll(wanted)]
      .filter((each) => each.checkVisibility())
      .map((each) => {
        const [a, b] = [parse(getComputedStyle(each).color), behind(each)].map(luminance).sort(
            (x, y) => y - x);
        return {ratio: (a + 0.05) / (b + 0.05), text: each.textContent.slice(0, 40)};
      });
}, selector);

// How many pixels of each chart's canvas are not its paper. Charts are drawn when they are seen.
export async function drawnPixels(page) {
  const found = [];
  for (const plot of await page.locator(".plot").all()) {
    await plot.scrollIntoViewIfNeeded();
    await plot.locator("canvas").waitFor();
    found.push(await plot.locator("canvas").evaluate((canvas) => {
      const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let drawn = 0;
      for (let at = 3; at < data.length; at += 4) drawn += data[at] > 0;
      return drawn;
    }));
  }
  return found;
}

// Fails with what axe finds against the rules of WCAG 2.1 A and AA and of good practice.
export async function assertAccessible(page) {
  const source = join(process.env.WEIR_NODE_MODULES, "axe-core", "axe.min.js");
  await page.evaluate(readFileSync(source, "utf8"));
  const {violations, passes} = await page.evaluate(() => window.axe.run(document, {preload: false}));
  assert.ok(passes.length > 10, "axe has looked");
  const found = violations.map(
      ({id, help, nodes}) => `${id}: ${help}: ${nodes.map((node) => node.target.join(" ")).join(", ")}`);
  assert.deepEqual(found, []);
}
