// The console in a real browser: every page, light and dark, narrow and wide, with keys alone and
// without script. What it shows is what the protocol says, while clients work.
//
// Arguments: the address of HTTP, the port of the protocol, the browser, and where a screenshot is
// written to, if one is wanted. With BSD_PICTURES, a directory, a picture of every page is written
// there. Started by tests/it/console.rs, which has filled the queue.
"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const net = require("node:net");
const { join } = require("node:path");
const { chromium } = require("playwright-core");
const { source: axe } = require("axe-core");

const [site, port, browserPath, screenshot] = process.argv.slice(2);
const base = `http://${site}`;
const PATIENCE_MS = 60000;
const SIZES = [
  { width: 360, height: 740 },
  { width: 1400, height: 900 },
];
// Of the pictures: those of a telephone, and of a screen.
const PICTURE_SIZES = [
  { width: 390, height: 844 },
  { width: 1280, height: 800 },
];
const pictures = process.env.BSD_PICTURES;

// One connection that speaks the protocol.
class Wire {
  static async open() {
    const wire = new Wire();
    wire.said = "";
    wire.socket = net.connect(Number(port), "127.0.0.1");
    wire.socket.setEncoding("utf8");
    wire.socket.on("data", (data) => {
      wire.said += data;
      wire.wake?.();
    });
    await new Promise((resolve) => wire.socket.once("connect", resolve));
    return wire;
  }

  async line() {
    while (!this.said.includes("\r\n")) {
      await new Promise((resolve) => (this.wake = resolve));
    }
    const end = this.said.indexOf("\r\n");
    const line = this.said.slice(0, end);
    this.said = this.said.slice(end + 2);
    return line;
  }

  async ask(command) {
    this.socket.write(`${command}\r\n`);
    const line = await this.line();
    if (!line.startsWith("OK ")) {
      return line;
    }
    const size = Number(line.slice(3));
    while (this.said.length < size + 2) {
      await new Promise((resolve) => (this.wake = resolve));
    }
    const document = this.said.slice(0, size);
    this.said = this.said.slice(size + 2);
    return document;
  }

  async stats(command) {
    const document = await this.ask(command);
    return Object.fromEntries(document.split("\n").map((line) => line.split(": ")));
  }
}

const number = async (page, id) =>
  Number((await page.locator(`[id="${id}"]`).textContent()).replaceAll(",", ""));

// A page in which nothing goes wrong unseen.
async function open(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  page.on("pageerror", (error) => assert.fail(`${page.url()}: ${error}`));
  page.on("console", (message) => {
    const isExpected = message.text().includes("404 (Not Found)");
    assert.ok(isExpected || message.type() !== "error", `${page.url()}: ${message.text()}`);
  });
  return page;
}

// What is folded is looked at, too.
const openAll = () => document.querySelectorAll("details").forEach((it) => (it.open = true));

// What is being done, for anyone who reads why it failed.
let step = "the start of the browser";
const done = [];
let watchdog = watch();

// A step that does not end is named. All steps together may take as long as the machine needs.
function watch() {
  const tooLong = () => fail(new Error("this step has taken too long"));
  return setTimeout(tooLong, 2 * PATIENCE_MS).unref();
}

function begin(what) {
  clearTimeout(watchdog);
  watchdog = watch();
  done.push(`${Math.round(performance.now())} ms: ${what}`);
  step = what;
}

// A page that is loaded again when something has been read is looked at after that, and when it has
// come whole.
const settled = (page) =>
  page.waitForFunction(
    () => document.readyState === "complete" && !document.getElementById("stage"),
  );

// A task that is at this stage, seen on a page that has come whole. Chromium may never close a page that
// is about to show another one.
const isAt = (page, stage) =>
  page.waitForFunction(
    (stage) =>
      document.readyState === "complete" && document.getElementById("stage")?.textContent === stage,
    stage,
  );

// Press the button of a question. Its own page has counted, and is done too: it is left first.
async function confirm(page, button) {
  const question = page.url();
  await page.click(`button:text-is('${button}')`);
  await page.waitForURL((url) => url.href !== question);
}

// The name of a picture: of the page, whatever its ids are.
function nameOf(page, colorScheme, { width }) {
  const words = page.replace(/^\/clients\/\d+$/, "client").split(/[^a-z0-9]+/i).filter((it) => it);
  return `${words.join("-") || "overview"}.${colorScheme}.${width}.png`;
}

// What moves would make each picture another one.
async function takePicture(page, file, size) {
  const before = page.viewportSize();
  await page.setViewportSize(size);
  await page.screenshot({ path: file, fullPage: true, animations: "disabled" });
  await page.setViewportSize(before);
}

// What axe finds wrong. No page has frames: it can run in the page itself, without a second one.
async function violations(page) {
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const { violations } = await window.axe.run({ resultTypes: ["violations"] });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map((it) => it.html)}`);
  });
}

async function everyPageIsInOrder(browser, paths) {
  for (const colorScheme of ["light", "dark"]) {
    for (const viewport of SIZES) {
      const context = await browser.newContext({ colorScheme, viewport });
      const page = await open(context);
      const where = (path) => `${path}, ${colorScheme}, ${viewport.width}`;
      for (const [path, status] of paths) {
        begin(where(path));
        const answer = await page.goto(base + path);
        assert.equal(answer.status(), status, where(path));
        await settled(page);
        await page.evaluate(openAll);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= viewport.width, `${where(path)}: ${width} wide`);
        if (pictures) {
          begin(`the picture of ${where(path)}`);
          const size = PICTURE_SIZES[SIZES.indexOf(viewport)];
          await takePicture(page, join(pictures, nameOf(path, colorScheme, size)), size);
        }
        if ((colorScheme === "dark") !== (viewport === SIZES[0])) {
          continue;
        }
        begin(`axe on ${where(path)}`);
        assert.deepEqual(await violations(page), [], where(path));
      }
      await context.close();
    }
  }
}

const focused = (page) =>
  page.evaluate(() => {
    const element = document.activeElement;
    const style = getComputedStyle(element);
    return {
      name: element.tagName + (element.textContent || element.id || element.name),
      isSeen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
    };
  });

async function everythingIsReachedByKeys(browser, paths) {
  const context = await browser.newContext();
  const page = await open(context);
  for (const [path] of paths) {
    begin(`keys on ${path}`);
    await page.goto(base + path);
    await settled(page);
    await page.evaluate(openAll);
    // What a page shows at times alone, such as its keys, is reached when it is shown.
    const wanted = await page.evaluate(() => {
      const all = document.querySelectorAll(
        "a[href], button, input:not([type=hidden]), textarea, select, summary, [tabindex='0']",
      );
      return [...all].filter((element) => element.checkVisibility()).length;
    });
    await page.keyboard.press("Tab");
    assert.match((await focused(page)).name, /To the content/, path);
    for (let reached = 1; reached < wanted; reached += 1) {
      await page.keyboard.press("Tab");
      const { name, isSeen } = await focused(page);
      assert.ok(name !== "BODY" && isSeen, `${path}: the focus is lost after ${reached}: ${name}`);
    }
  }
  await page.goto(base);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await page.locator("nav[aria-label=Pages] a", { hasText: "Tubes" }).focus();
  await page.keyboard.press("Enter");
  await page.waitForURL("**/tubes");
  await context.close();
}

async function whatIsShownIsWhatTheProtocolSays(browser, wire) {
  const context = await browser.newContext();
  const page = await open(context);
  await page.goto(`${base}/tubes/quiet`);
  const tube = await wire.stats("stats-tube quiet");
  for (const state of ["ready", "reserved", "delayed", "buried"]) {
    assert.equal(await number(page, `jobs-${state}`), Number(tube[`current-jobs-${state}`]), state);
  }
  // Clients put all the while: what is shown lies between what was before and what is after.
  for (let round = 0; round < 5; round += 1) {
    const before = Number((await wire.stats("stats"))["total-jobs"]);
    await page.goto(base);
    await page.waitForFunction(
      (least) => Number(document.getElementById("put").textContent.replaceAll(",", "")) >= least,
      before,
    );
    const shown = await number(page, "put");
    const after = Number((await wire.stats("stats"))["total-jobs"]);
    assert.ok(before <= shown && shown <= after, `${before} <= ${shown} <= ${after}`);
  }
  await context.close();
}

async function anUpdateArrives(browser, wire) {
  const context = await browser.newContext();
  const page = await open(context);
  await page.goto(`${base}/tubes/quiet`);
  await page.waitForFunction(() => document.getElementById("connection").textContent === "live");
  const before = await number(page, "jobs-ready");
  assert.equal(await wire.ask("use quiet"), "USING quiet");
  assert.match(await wire.ask("put 0 0 60 5\r\nhello"), /^INSERTED/);
  const wanted = String(before + 1);
  await page.waitForFunction(
    (text) => document.getElementById("jobs-ready").textContent === text,
    wanted,
  );
  await context.close();
}

// The single keys go through a list, and open what is chosen.
async function keysWalkAList(browser) {
  const context = await browser.newContext();
  const page = await open(context);
  await page.goto(`${base}/tubes/quiet?state=buried`);
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "2");
  await page.keyboard.press("x");
  assert.ok(await page.getByLabel("Job 2", { exact: true }).isChecked());
  await page.keyboard.press("?");
  assert.ok(await page.locator("#keys").isVisible());
  await page.locator("#keys-on").uncheck();
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  assert.notEqual(await page.evaluate(() => document.activeElement.id), "find");
  await page.locator("#keys-open").click();
  await page.locator("#keys-on").check();
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "find");
  await page.keyboard.type("alert(1)");
  await page.keyboard.press("Enter");
  await page.waitForSelector("text=1 have this in their bodies");
  await settled(page);
  assert.match(await page.textContent("td code.preview"), /^<script>alert\(1\)/);
  await context.close();
}

async function withoutScriptAllIsThere(browser) {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(base);
  await page.click("nav[aria-label=Pages] >> text=Tubes");
  await page.fill("#contains", "quie");
  await page.click("text=Filter");
  await page.click("table >> text=quiet");
  assert.equal(await page.textContent("h1"), "Tube quiet");
  await page.fill("#find", "1");
  await page.click("text=Find");
  assert.equal(await page.textContent("h1"), "Job 1");
  assert.equal(await page.textContent("pre.body"), '{\n  "a": [\n    1,\n    "<b>"\n  ]\n}');
  await context.close();
}

async function formsChangeWhatTheySay(browser, wire) {
  const context = await browser.newContext();
  const page = await open(context);
  await page.goto(`${base}/tubes/default`);
  await page.click("text=Put a job");
  await page.fill("#body-of", "by hand");
  await page.click("button:text-is('Put')");
  const said = await page.textContent(".said");
  const id = Number(/^Job (\d+) was put into default\.$/.exec(said)[1]);
  assert.equal((await wire.stats(`stats-job ${id}`)).state, "ready");
  await page.click("button:text-is('Bury')");
  await page.waitForSelector("text=was buried");
  assert.equal((await wire.stats(`stats-job ${id}`)).state, "buried");
  const count = async () => {
    await page.goto(`${base}/tubes/default?state=buried`);
    await page.click("text=Change many jobs");
    await page.selectOption("#action", "delete");
    await page.click("button:text-is('Count them')");
    await page.waitForSelector("text=Delete 1 job of default that are buried?");
    assert.deepEqual(await violations(page), []);
    assert.equal((await wire.stats(`stats-job ${id}`)).state, "buried");
  };
  // With a delete that can be undone it is held back first.
  await count();
  await confirm(page, "Delete 1 job");
  await page.click("button:text-is('Undo')");
  await isAt(page, "undone");
  await count();
  await page.uncheck("input[name=undo]");
  await confirm(page, "Delete 1 job");
  await isAt(page, "done");
  assert.equal(await wire.ask(`peek ${id}`), "NOT_FOUND");
  await context.close();
}

// Two of three jobs are ticked with keys alone, and changed when their number was seen.
async function jobsAreTicked(browser, wire) {
  for (const javaScriptEnabled of [true, false]) {
    const at = (what) => begin(`jobs are ticked, script ${javaScriptEnabled}: ${what}`);
    at("put");
    const context = await browser.newContext({ javaScriptEnabled });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    assert.equal(await wire.ask("use picked"), "USING picked");
    const ids = [];
    for (const body of ["one", "two", "six"]) {
      ids.push(/^INSERTED (\d+)$/.exec(await wire.ask(`put 5 0 60 3\r\n${body}`))[1]);
    }
    at("tick");
    await page.goto(`${base}/tubes/picked`);
    for (const id of [ids[0], ids[2]]) {
      await page.getByLabel(`Job ${id}`, { exact: true }).focus();
      await page.keyboard.press("Space");
    }
    at("count");
    await page.selectOption("#selected-what", "delete");
    await page.locator("button:text-is('Count those selected')").focus();
    await page.keyboard.press("Enter");
    await page.waitForSelector("text=Delete 2 jobs of picked that are ready, of the 2 selected?");
    at("delete");
    await page.uncheck("input[name=undo]");
    await confirm(page, "Delete 2 jobs");
    if (javaScriptEnabled) {
      await isAt(page, "done");
    }
    at("look");
    while (!(await wire.ask(`peek ${ids[2]}`)).startsWith("NOT_FOUND")) {
      // A body follows.
      await wire.line();
    }
    assert.equal(await wire.ask(`peek ${ids[0]}`), "NOT_FOUND");
    assert.equal(await wire.ask(`delete ${ids[1]}`), "DELETED");
    await context.close();
  }
}

// One from its line of the list, those with a reason from the page of the tube, and all that are left.
async function deadLettersAreSentBack(browser, wire) {
  const context = await browser.newContext();
  const page = await open(context);
  const tubeOf = async (id) => (await wire.stats(`stats-job ${id}`)).tube.replaceAll('"', "");
  const sendBack = async (jobs) => {
    await page.waitForSelector(`text=Send back ${jobs} of mail-dead`);
    await confirm(page, `Send back ${jobs}`);
    await isAt(page, "done");
  };
  await page.goto(`${base}/tubes/mail-dead`);
  const line = page.locator("tr", { hasText: "no route to host" });
  assert.match(await line.textContent(), /failed/);
  const id = Number((await line.locator("th").textContent()).trim());
  assert.equal(await tubeOf(id), "mail-dead");
  await line.locator("button").click();
  await page.waitForSelector(`text=Job ${id} was sent back.`);
  assert.equal(await tubeOf(id), "mail");
  await page.goto(`${base}/tubes/mail`);
  await page.locator("tr", { hasText: "Released" }).locator("button").click();
  await sendBack("1 job");
  await page.goto(`${base}/tubes/mail-dead`);
  assert.equal(await page.locator("tr", { hasText: "no such user" }).count(), 1);
  assert.equal(await page.locator("tr", { hasText: "released" }).count(), 0);
  await page.click("button:text-is('Send back all')");
  await sendBack("1 job");
  await page.goto(`${base}/tubes/mail-dead`);
  assert.equal(await page.locator("tr", { hasText: "no such user" }).count(), 0);
  await context.close();
}

async function takeScreenshot(browser) {
  const context = await browser.newContext({ viewport: { width: 1000, height: 700 } });
  const page = await open(context);
  await page.goto(base);
  await page.waitForFunction(() => document.getElementById("connection").textContent === "live");
  await page.screenshot({ path: screenshot });
  await context.close();
}

async function main() {
  if (pictures) {
    fs.mkdirSync(pictures, { recursive: true });
  }
  const browser = await chromium.launch({
    executablePath: browserPath,
    args: process.getuid() === 0 ? ["--no-sandbox"] : [],
  });
  try {
    const wire = await Wire.open();
    const list = await (await fetch(`${base}/clients`)).text();
    const client = /"(\/clients\/\d+)"/.exec(list)[1];
    const paths = [
      ["/", 200],
      ["/tubes?sort=-ready", 200],
      ["/tubes/quiet", 200],
      ["/tubes/quiet?state=buried", 200],
      ["/tubes/quiet?state=reserved", 200],
      ["/tubes/quiet?select=all", 200],
      ["/tubes/mail", 200],
      ["/tubes/mail-dead", 200],
      ["/find?q=four", 200],
      ["/schedules", 200],
      ["/schedules/daily", 200],
      ["/schedules/daily/delete", 200],
      ["/schedules/none", 404],
      ["/jobs/1", 200],
      ["/jobs/999999", 404],
      ["/jobs/4/delete", 200],
      ["/jobs/2/history", 200],
      ["/durability?span=1h", 200],
      ["/clients", 200],
      [client, 200],
      ["/tasks", 200],
    ];
    if (screenshot) {
      await takeScreenshot(browser);
    }
    await everyPageIsInOrder(browser, paths);
    await everythingIsReachedByKeys(browser, paths);
    const rest = [
      keysWalkAList,
      withoutScriptAllIsThere,
      whatIsShownIsWhatTheProtocolSays,
      anUpdateArrives,
      formsChangeWhatTheySay,
      jobsAreTicked,
      deadLettersAreSentBack,
    ];
    for (const check of rest) {
      begin(check.name);
      await check(browser, wire);
    }
    wire.socket.end();
    begin("the end of the browser");
  } finally {
    await browser.close();
  }
  console.log("every page is in order");
}

function fail(error) {
  console.error(`while it was at "${step}", after\n${done.join("\n")}\n`, error);
  process.exit(1);
}

process.on("uncaughtException", fail);
main().catch(fail);
