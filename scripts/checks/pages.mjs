// Opens a report and a dashboard in headless Chromium and checks what a person would: they load without an error and
// without the network, brushing selects, the table sorts and filters, phone and print fit, and the live page follows a
// search and can pause it.
//
//   node scripts/checks/pages.mjs REPORT.html [DASHBOARD_URL_WITH_TOKEN] [--pictures DIR] [--axe axe.min.js]
//
// `cargo test browser` runs it with a study of its own where Node and Chromium are installed. CHROMIUM names the browser
// where it is not found.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { check, end, inBrowser } from "./checks.mjs";

// Both pages are there when their charts are drawn.
const DRAWN = "typeof PT === 'object' && PT.charts.length > 0";

const arguments_ = process.argv.slice(2);
const option = (name) => { const at = arguments_.indexOf(name); return at < 0 ? null : resolve(arguments_.splice(at, 2)[1]); };
const pictures = option("--pictures"), axe = option("--axe");
if (pictures) mkdirSync(pictures, { recursive: true });
const [report, dashboard] = arguments_;

const middle = (selector) => `(() => { const box = document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()`;
const fits = async (page, what) => {
  const [wide, room] = await page.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
  check(wide <= room + 1, `${what} does not scroll sideways (${wide} in ${room})`);
};

// What axe-core calls serious or critical, where its file is given. It runs outside the page's policy, as the browser's own tools do.
const accessible = async (page, what) => {
  if (!axe) return;
  await page.run(`${readFileSync(axe, "utf8")}; 0`);
  const found = await page.run("axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.length}, ${one.nodes.slice(0, 3).map((node) => node.target.join(' ')).join(' | ')}`))");
  check(found.length === 0, `axe finds nothing serious on ${what} ${found.join("; ")}`);
};

// Widths and themes at which both pages must be readable.
const checkSizes = async (browser, url, what) => {
  for (const width of [400, 1000, 1600]) for (const theme of ["light", "dark"]) {
    const page = await browser.open(url, DRAWN, { width, media: [{ name: "prefers-color-scheme", value: theme }] });
    await fits(page, `${what}, ${width} wide, ${theme}`);
    await accessible(page, `${what}, ${width} wide, ${theme}`);
    if (pictures) await page.picture(join(pictures, `${what.replaceAll(" ", "-")}-${width}-${theme}.png`));
    await page.close();
  }
};

const checkReport = async (browser) => {
  const url = pathToFileURL(resolve(report)).href, page = await browser.open(url, DRAWN);
  const charts = await page.run("document.querySelectorAll('svg.chart').length");
  check(charts >= 5, `the report draws its charts (${charts})`);
  check(await page.run("document.querySelectorAll('script').length") === 2, "no name became a script");
  check(page.requests.every((one) => one.startsWith("file:") || one.startsWith("data:")), `the report asks nothing of the network (${page.requests.length} requests)`);
  if (pictures) await page.picture(join(pictures, "desktop.png"));

  const all = await page.run("PT.view.trials.length"), kept = () => page.run("PT.view.trials.filter(PT.kept).length");
  await page.run("document.querySelector('#axes').scrollIntoView({ block: 'center' })");
  const [left, top, width, height] = await page.run(middle("#axes [data-axis] .track"));
  await page.drag([left + width / 2, top + 2], [left + width / 2, top + height * 0.45]);
  const some = await kept();
  check(some > 0 && some < all, `brushing an axis selects (${some} of ${all})`);
  await page.until(`document.querySelectorAll('#axes .trial.out').length === ${all - some}`, "lines outside the brush fade");
  check(await page.run("document.querySelectorAll('#pairs .dot.out').length") > 0, "the scatter plots follow the brush");
  check((await page.run("PT.at('shown').textContent")).startsWith(`${some} of ${all}`), "the table follows the brush");
  if (pictures) await page.picture(join(pictures, "brushed.png"));
  await page.run("PT.at('selection').querySelector('button').click()");
  check(await kept() === all, "clearing the selection keeps all");

  await page.run("document.querySelector('#pairs').scrollIntoView({ block: 'center' })");
  const [fx, fy, fw, fh] = await page.run(middle("#pairs .field"));
  await page.drag([fx + 4, fy + fh * 0.5], [fx + fw * 0.6, fy + fh - 4]);
  const boxed = await kept();
  check(boxed < all, `a box in a scatter plot selects (${boxed} of ${all})`);
  await page.run("PT.at('selection').querySelector('button').click()");

  await page.run("(() => { const input = PT.at('filter'); const known = PT.view.trials.map((one) => one.metrics[2]).filter((one) => one !== null).sort((a, b) => a - b); input.value = `loss<${known[known.length >> 1]}`; input.dispatchEvent(new Event('input')); })()");
  check(await kept() < all && await kept() > 0, `the table filters (${await kept()} of ${all})`);
  await page.run("(() => { const input = PT.at('filter'); input.value = ''; input.dispatchEvent(new Event('input')); })()");
  await page.run("[...document.querySelectorAll('#rows th button')].find((one) => one.textContent.startsWith('loss')).click()");
  check(await page.run("(() => { const cells = [...document.querySelectorAll('#rows tbody tr')].map((row) => parseFloat(row.children[4].textContent)).filter((one) => one >= 0); return cells.every((one, index) => !index || cells[index - 1] <= one); })()"), "the table sorts by loss");
  const dots = () => page.run("document.querySelectorAll('#pairs .dot').length"), every = await dots();
  await page.run("PT.at('beaten').click()");
  check(await dots() < every && await dots() > 0, `what others beat can be left out (${await dots()} of ${every} marks)`);
  await page.run("PT.at('beaten').click()");
  const [first, second] = await page.run("PT.view.trials.filter((one) => one.state === 'complete').map((one) => one.number).slice(-2)");
  await page.run(`PT.pick(${first}); PT.pick(${second})`);
  const heads = await page.run("[...document.querySelectorAll('#compare thead th')].map((one) => one.textContent).join()");
  check(heads.includes(`trial ${first}`) && heads.includes(`trial ${second}`), `two picked trials stand side by side (${heads})`);
  await page.run("document.querySelector('#pairs').scrollIntoView({ block: 'center' })");
  const [number, markX, markY] = await page.run("(() => { const svg = document.querySelector('#pairs svg'), box = svg.querySelector('.dot.best').getBoundingClientRect(); return [PT.best(), box.left + box.width / 2, box.top + box.height / 2]; })()");
  await page.drag([markX, markY], [markX, markY]);
  check(await page.run(`PT.picked.includes(${number})`), "a click on a mark picks its trial");
  check(await page.run("document.querySelectorAll('#history .line').length") === 1, "the best so far is drawn");
  const started = Date.now();
  await page.run("PT.redraw()");
  check(Date.now() - started < 1500, `everything is drawn again in ${Date.now() - started} ms`);
  check(page.errors.length === 0, `the report has no error ${page.errors.join("; ")}`);
  await page.close();

  await checkSizes(browser, url, "report");
  const phone = await browser.open(url, DRAWN, { width: 390, height: 844, scale: 2 });
  await fits(phone, "the report on a phone");
  if (pictures) await phone.picture(join(pictures, "phone.png"));
  await phone.close();
  const dark = await browser.open(url, DRAWN, { media: [{ name: "prefers-color-scheme", value: "dark" }] });
  check(await dark.run("getComputedStyle(document.body).backgroundColor") === "rgb(16, 19, 23)", "a dark system has a dark page");
  if (pictures) await dark.picture(join(pictures, "dark.png"));
  await dark.send("Emulation.setEmulatedMedia", { media: "print" });
  for (const width of [640, 420]) {
    await dark.size(width, 900);
    const broken = await dark.run("[...document.querySelectorAll('.command .flag')].map((flag) => flag.getClientRects().length).filter((lines) => lines !== 1).length");
    const flags = await dark.run("document.querySelectorAll('.command .flag').length");
    check(flags > 0 && broken === 0, `no flag of a command is broken in print, ${width} wide (${broken} of ${flags})`);
  }
  const { data } = await dark.send("Page.printToPDF", { printBackground: true, preferCSSPageSize: true });
  check(Buffer.from(data, "base64").length > 10_000, "the report prints");
  if (pictures) writeFileSync(join(pictures, "print.pdf"), Buffer.from(data, "base64"));
  await dark.close();
};

const checkDashboard = async (browser) => {
  const page = await browser.open(dashboard, DRAWN), origin = new URL(dashboard).origin;
  await page.until("PT.at('link').dataset.state === 'live'", "the live page connects");
  check(!(await page.run("location.hash")).includes("token"), "the token leaves the address");
  const before = await page.run("PT.view.trials.length");
  await page.until(`PT.view.trials.length > ${before} + 1`, "trials appear as the search runs");
  check(true, "trials appear as the search runs");
  await page.until("document.querySelectorAll('#rows tbody tr').length > 0 && document.querySelectorAll('#pairs .dot').length > 0", "the charts follow");
  await page.until("document.querySelectorAll('#device svg').length >= 2", "the machine is sampled");
  const press = async (text) => { await page.until(`[...document.querySelectorAll('#control button')].some((one) => one.textContent === ${JSON.stringify(text)} && !one.disabled)`, `${text} can be pressed`); return page.run(`[...document.querySelectorAll('#control button')].find((one) => one.textContent === ${JSON.stringify(text)}).click()`); };
  await page.until("!PT.at('control').hidden && PT.at('control').querySelector('button')", "the controls appear with the token");
  await press("Pause");
  await page.until("document.querySelector('#running .pill').dataset.state === 'paused'", "the search pauses");
  check(true, "the search pauses");
  if (pictures) await page.picture(join(pictures, "live.png"));
  await press("Resume");
  await page.until("document.querySelector('#running .pill').dataset.state === 'running'", "the search goes on");
  await press("Stop after this trial");
  await page.until("document.querySelector('#running .pill').dataset.state === 'ended'", "the search stops");
  check(true, "the search goes on and stops");
  check(page.requests.every((one) => one.startsWith(origin) || one.startsWith("data:")), "the live page asks only its own server");
  check(page.errors.length === 0, `the live page has no error ${page.errors.join("; ")}`);
  await page.size(390, 844, 2);
  await page.run("PT.redraw()");
  await fits(page, "the live page on a phone");
  await page.close();
  await checkSizes(browser, `${origin}/`, "live page");
  const looking = await browser.open(`${origin}/`, DRAWN);
  // The token stays with the tab that was opened with it.
  check(await looking.run("PT.at('control').hidden"), "without the token there are no controls");
  await looking.close();
};

await inBrowser(async (browser) => {
  await checkReport(browser);
  if (dashboard) await checkDashboard(browser);
});
end("all pages work");
