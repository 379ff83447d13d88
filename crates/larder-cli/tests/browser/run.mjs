// The pages in a real browser: each loads without errors and foreign requests, passes axe, is usable by keyboard, and
// the live page follows the agent, also across its restart.
//
// Usage: node run.mjs LARDER [PICTURES], with the directory for pictures of each page.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import axe from "axe-core";
import puppeteer from "puppeteer-core";

const [larder, pictures] = process.argv.slice(2).map((path) => resolve(path));
const examples = new URL("../../../../examples", import.meta.url).pathname;
const desk = mkdtempSync(join(tmpdir(), "larder-browser-"));
const children = [];
const chromium = process.env.CHROMIUM ?? "/usr/bin/chromium";
if (pictures) mkdirSync(pictures, { recursive: true });

const browser = await puppeteer.launch({
  executablePath: chromium,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", `--user-data-dir=${join(desk, "profile")}`],
});

// A page whose errors and foreign requests fail the test.
async function open(url, own) {
  const page = await browser.newPage();
  const problems = [];
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(own)) problems.push(`request: ${request.url()}`);
  });
  await page.setViewport({ width: 1000, height: 620 });
  await page.goto(url);
  return { page, problems };
}

// Until the page has been painted as it is now.
const painted = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

async function check(name, { page, problems }) {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await painted(page);
    await page.evaluate(axe.source);
    const found = await page.evaluate(() => axe.run());
    const violations = found.violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html).join(" ")}`);
    assert.deepEqual(violations, [], `axe, ${name}, ${scheme}`);
  }
  if (pictures) await page.screenshot({ path: join(pictures, `${name}-dark.png`) });
  await page.setViewport({ width: 360, height: 740 });
  await painted(page);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= 360, `${name} is ${width} pixels wide on a telephone`);
  if (pictures) await page.screenshot({ path: join(pictures, `${name}-narrow.png`) });
  await page.setViewport({ width: 1000, height: 620 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`) });
  await page.emulateMediaType("print");
  if (pictures) await page.screenshot({ path: join(pictures, `${name}-print.png`) });
  await page.emulateMediaType("screen");
  assert.deepEqual(problems, [], name);
  console.log(`${name}: ok`);
}

const shown = (page) => page.$$eval("article:not([hidden])", (cards) => cards.length);

// Search and keyboard.
async function use(page, word, expected) {
  const all = await shown(page);
  await page.keyboard.press("/");
  await page.keyboard.type(word);
  assert.equal(await shown(page), expected, `search for ${word}`);
  assert.match(await page.$eval("#state", (state) => state.textContent), new RegExp(`^${expected} of ${all} `));
  await page.keyboard.press("Escape");
  assert.equal(await shown(page), all);
  await page.keyboard.press("j");
  const focused = () => page.evaluate(() => document.activeElement.closest("article")?.id);
  const first = await focused();
  await page.keyboard.press("j");
  assert.notEqual(await focused(), first);
  const isOpen = () => page.evaluate(() => document.activeElement.parentElement.open);
  await page.keyboard.press("Enter");
  assert.equal(await isOpen(), false);
  await page.keyboard.press("Enter");
  assert.equal(await isOpen(), true);
  await page.evaluate(() => { document.activeElement.blur(); scrollTo(0, 0); });
}

async function file(name, text, word, expected) {
  const path = join(desk, `${name}.html`);
  writeFileSync(path, text);
  assert.ok(!text.includes("correct horse"), "a value of a Secret");
  const tab = await open(`file://${path}`, `file://${path}`);
  await use(tab.page, word, expected);
  await check(name, tab);
}

function run(args, codes = [0]) {
  try {
    return execFileSync(larder, args, { cwd: desk, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"], maxBuffer: 1 << 26 });
  } catch (error) {
    assert.ok(codes.includes(error.status), `larder ${args.join(" ")}: ${error.message}`);
    return error.stdout;
  }
}

// Starts larder, and returns its first line.
async function start(...args) {
  const child = spawn(larder, args, { cwd: desk, stdio: ["ignore", "pipe", "ignore"] });
  children.push(child);
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]();
  const line = (await lines.next()).value;
  child.stdout.resume();
  return { child, line };
}

async function stop({ child }) {
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  if (child.exitCode === null) await ended;
}

// Waits until the live page has the text, and returns the time in milliseconds.
async function until(page, text) {
  const start = performance.now();
  await page.waitForFunction((text) => document.body.textContent.includes(text), { polling: 20, timeout: 20000 }, text);
  return Math.round(performance.now() - start);
}

async function live() {
  cpSync(examples, join(desk, "m"), { recursive: true });
  const agent = ["run", "--manifests", "m", "--root-dir", "root", "--node-name", "edge-7"];
  let running = await start(...agent);
  const ui = await start("ui", "--root-dir", "root");
  const own = ui.line.split("?")[0];
  const tab = await open(ui.line, own);
  const { page } = tab;
  await until(page, "demo/web");
  assert.match(page.url().slice(own.length), /^[0-9a-f]{32}\/$/, "the token stays in the address");

  const edit = (number) => {
    const path = join(desk, "m", "extra.yaml");
    const map = `apiVersion: v1\nkind: ConfigMap\nmetadata: {name: extra, namespace: demo}\ndata: {n: "${number}"}\n`;
    const pod = `apiVersion: v1\nkind: Pod\nmetadata: {name: extra-${number}, namespace: demo}\nspec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: extra}}]}]}\n`;
    writeFileSync(path, `${map}---\n${pod}`);
  };
  edit(1);
  console.log(`live: a change was on the page after ${await until(page, "demo/extra-1")} ms`);
  await use(page, "extra-1", 3);
  await check("ui", tab);

  await stop(running);
  await until(page, "no agent answers");
  edit(2);
  running = await start(...agent);
  await until(page, "demo/extra-2");
  const pods = await page.$$eval("h2", (heads) => heads.map((head) => head.textContent));
  assert.ok(!pods.some((pod) => pod.includes("demo/extra-1")), "a pod that is gone");
  await page.reload();
  await until(page, "demo/extra-2");
  assert.deepEqual(tab.problems, []);
  console.log("live: a restart of the agent: ok");

  // Another browser, another method, another site.
  const other = await (await browser.createBrowserContext()).newPage();
  assert.equal((await other.goto(ui.line)).status(), 401);
  const headers = { cookie: (await page.cookies()).map(({ name, value }) => `${name}=${value}`).join("; ") };
  const status = async (init) => (await fetch(own, { ...init, headers: { ...headers, ...init.headers } })).status;
  assert.equal(await status({}), 200);
  assert.equal(await status({ method: "POST" }), 405);
  assert.equal(await status({ headers: { origin: "http://evil.example" } }), 403);
  await page.close();
  await stop(ui);
  await stop(running);
}

// A hundred pods, one of which fails: it is on the first screen, and the counts show only what they count.
async function hundred() {
  const pod = (name, map) =>
    `apiVersion: v1\nkind: Pod\nmetadata: {name: ${name}, namespace: many}\nspec: {nodeName: edge-7, containers: [{name: c, image: i, envFrom: [{configMapRef: {name: ${map}}}], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: ${map}}}]}\n`;
  const names = Array.from({ length: 100 }, (_, number) => `web-${number}`);
  const map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m, namespace: many}\ndata: {a: b}\n";
  mkdirSync(join(desk, "many"));
  const pods = names.map((name) => pod(name, name === "web-57" ? "missing" : "m"));
  writeFileSync(join(desk, "many", "all.yaml"), [map, ...pods].join("---\n"));
  const running = await start("run", "--manifests", "many", "--root-dir", "many-root", "--node-name", "edge-7");
  const ui = await start("ui", "--root-dir", "many-root");
  const tab = await open(ui.line, ui.line.split("?")[0]);
  const { page } = tab;
  await page.waitForFunction(() => document.querySelectorAll('[data-state="delivered"]').length === 99, { polling: 20, timeout: 20000 });
  for (const [width, height] of [[1280, 720], [390, 844]]) {
    await page.setViewport({ width, height });
    const bottom = await page.$eval("article:not([data-state=delivered])", (card) => card.getBoundingClientRect().bottom);
    const text = await page.$eval("article:not([data-state=delivered])", (card) => card.textContent);
    assert.ok(text.includes("many/web-57") && text.includes("missing"), text);
    assert.ok(bottom <= height, `the pod that waits ends at ${bottom} of ${height} pixels at a width of ${width}`);
    const row = await page.$eval("article li .row", (row) => [...row.children].filter((cell) => cell.textContent).map((cell) => cell.getBoundingClientRect().top));
    assert.ok(new Set(row.map(Math.round)).size < row.length, "each cell of a row is a line");
    if (pictures) await page.screenshot({ path: join(pictures, `hundred-${width}.png`) });
  }
  await page.setViewport({ width: 1280, height: 720 });
  const columns = await page.$eval("article[data-state=delivered]", (card) => {
    card.querySelector("details").open = true;
    const columns = [...card.querySelectorAll(".row")].map((row) => row.children[2].getBoundingClientRect().left);
    card.querySelector("details").open = false;
    return columns.map(Math.round);
  });
  assert.ok(columns.length === 2 && columns[0] === columns[1], `columns of phases: ${columns}`);
  const changes = await page.$$eval("#changes li", (lines) => lines.length);
  assert.equal(changes, 5);
  assert.equal(await page.$$eval("article[data-state=delivered] > details[open]", (open) => open.length), 0);
  assert.match(await page.$eval("time", (time) => `${time.textContent} ${time.title}`), /^\d+[smhd] \d{4}-\d\d-\d\dT/);
  await page.click("[data-only=delivered]");
  assert.equal(await shown(page), 99);
  await page.click("[data-only=delivered]");
  assert.ok((await shown(page)) > 100);
  await check("hundred", tab);
  await page.close();
  await stop(ui);
  await stop(running);
}

try {
  cpSync(examples, join(desk, "examples"), { recursive: true });
  await file("render", run(["render", "-f", "examples", "-o", "html"], [1]), "worker", 1);
  for (const side of ["from", "to"]) cpSync(examples, join(desk, side), { recursive: true });
  const edits = [
    ["01-web.yaml", { info: "debug", 8080: "9090", battery: "other", "password: correct": "pass: correct" }],
    ["02-sources.yaml", { 'search: "on"': 'search: "off"', "fieldPath: metadata.name": "fieldPath: metadata.namespace" }],
  ];
  for (const [name, words] of edits) {
    const path = join(desk, "to", name);
    const text = Object.entries(words).reduce((text, [from, to]) => text.replaceAll(from, to), readFileSync(path, "utf8"));
    writeFileSync(path, text);
  }
  await file("diff", run(["diff", "--from-file", "from", "--to-file", "to", "-o", "html"], [1]), "web", 1);
  await live();
  await hundred();
} finally {
  await browser.close();
  for (const child of children) if (child.exitCode === null) await stop({ child });
  for (const root of ["root", "many-root"]) run(["clean", "--root-dir", root], [1, 2]);
  rmSync(desk, { recursive: true, force: true });
}
