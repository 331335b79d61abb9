// Headless Chromium, talked to over a pipe (Chrome DevTools Protocol), so that it needs no package.
import { spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

const NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"];

// The path of a browser; CHROMIUM names one that is not on the path.
export const findBrowser = () => {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  for (const folder of (process.env.PATH || "").split(delimiter)) for (const name of NAMES) {
    try { accessSync(join(folder, name), constants.X_OK); return join(folder, name); } catch { /* the next one */ }
  }
  throw new Error(`no browser found: install one of ${NAMES.join(", ")} or set CHROMIUM`);
};

export class Browser {
  constructor(path) {
    this.profile = mkdtempSync(join(tmpdir(), "pages-"));
    const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", `--user-data-dir=${this.profile}`];
    this.process = spawn(path, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.next = 0;
    this.waiting = new Map();
    this.listeners = [];
    let rest = "";
    this.process.stdio[4].on("data", (data) => {
      const parts = (rest + data).split("\0");
      rest = parts.pop();
      for (const part of parts) this.take(JSON.parse(part));
    });
  }
  take(message) {
    const waiting = this.waiting.get(message.id);
    if (!waiting) { for (const listener of this.listeners) listener(message); return; }
    this.waiting.delete(message.id);
    if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`)); else waiting.resolve(message.result);
  }
  send(method, params = {}, sessionId = undefined) {
    const id = ++this.next;
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject, method }));
  }
  // Opens a page and waits until the expression `ready` holds in it.
  async open(url, ready, { width = 1320, height = 900, media = [], scale = 1 } = {}) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, targetId);
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await page.send(`${domain}.enable`);
    await page.size(width, height, scale);
    await page.send("Emulation.setEmulatedMedia", { features: media });
    await page.send("Page.navigate", { url });
    await page.until(`document.readyState === 'complete' && (${ready})`, "the page draws");
    return page;
  }
  // Asked first: some systems start the browser from a shell, which dies alone.
  close() {
    this.send("Browser.close").catch(() => {});
    setTimeout(() => {
      this.process.kill();
      for (const pipe of this.process.stdio) pipe?.destroy();
      rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
    }, 500);
  }
}

class Page {
  constructor(browser, session, target) {
    this.browser = browser;
    this.session = session;
    this.target = target;
    this.errors = [];
    this.requests = [];
    browser.listeners.push((message) => {
      if (message.sessionId !== session) return;
      const { method, params } = message;
      if (method === "Runtime.exceptionThrown") this.errors.push(params.exceptionDetails.exception?.description || params.exceptionDetails.text);
      if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) this.errors.push(params.args.map((one) => one.value || one.description).join(" "));
      if (method === "Log.entryAdded" && params.entry.level === "error") this.errors.push(`${params.entry.text} ${params.entry.url || ""}`);
      if (method === "Network.requestWillBeSent") this.requests.push(params.request.url);
    });
  }
  send(method, params) { return this.browser.send(method, params, this.session); }
  size(width, height, deviceScaleFactor = 1) { return this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor, mobile: width < 700 }); }
  async run(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description}`);
    return result.value;
  }
  async until(expression, what, seconds = 60) {
    const end = Date.now() + seconds * 1000;
    while (Date.now() < end) {
      if (await this.run(expression).catch(() => false)) return;
      await new Promise((done) => setTimeout(done, 100));
    }
    throw new Error(`${what}: not within ${seconds} s (${expression}); errors: ${this.errors.join("; ")}`);
  }
  mouse(type, x, y) { return this.send("Input.dispatchMouseEvent", { type, x, y, button: type === "mouseMoved" ? "none" : "left", buttons: type === "mouseReleased" ? 0 : 1, clickCount: 1 }); }
  async drag(from, to) {
    await this.mouse("mousePressed", ...from);
    for (let part = 1; part <= 5; part++) await this.send("Input.dispatchMouseEvent", { type: "mouseMoved", x: from[0] + ((to[0] - from[0]) * part) / 5, y: from[1] + ((to[1] - from[1]) * part) / 5, button: "left", buttons: 1 });
    await this.mouse("mouseReleased", ...to);
  }
  async picture(path, whole = true) {
    const height = whole ? await this.run("document.documentElement.scrollHeight") : 900, width = await this.run("innerWidth");
    const { data } = await this.send("Page.captureScreenshot", { format: "png", captureBeyondViewport: true, clip: { x: 0, y: 0, width, height, scale: 1 } });
    writeFileSync(path, Buffer.from(data, "base64"));
  }
  async close() { await this.browser.send("Target.closeTarget", { targetId: this.target }); }
}
