"use strict";
// The page: what is written in the form becomes one question in JSON, and the module's answer is shown. Numbers are the module's; only
// their rounding for people is made here.
const at = (id) => document.getElementById(id);
const made = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
};

// The module, inflated once; an instance that ended by a fault is replaced by a fresh one.
const planner = {
  module: null,
  instance: null,
  async load() {
    const bytes = Uint8Array.from(atob(at("module").textContent), (letter) => letter.charCodeAt(0));
    const inflated = new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
    this.module = await WebAssembly.compile(await inflated.arrayBuffer());
    await this.start();
  },
  async start() { this.instance = await WebAssembly.instantiate(this.module, {}); },
  ask(question) {
    const { memory, room, ask, leave } = this.instance.exports;
    const bytes = new TextEncoder().encode(JSON.stringify(question));
    const address = room(bytes.length);
    new Uint8Array(memory.buffer, address, bytes.length).set(bytes);
    const found = ask(address, bytes.length) >>> 0;
    const length = new DataView(memory.buffer).getUint32(found - 4, true);
    const text = new TextDecoder().decode(new Uint8Array(memory.buffer, found, length));
    leave(found);
    return JSON.parse(text);
  },
};

const bytesText = (value) => {
  for (const [unit, size, digits] of [["TiB", 2 ** 40, 2], ["GiB", 2 ** 30, 2], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]]) if (Math.abs(value) >= size) return `${(value / size).toFixed(digits)} ${unit}`;
  return `${value.toFixed(0)} B`;
};
const count = (value) => value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(3);
const usdText = (value) => `$${value >= 100 ? Math.round(value).toLocaleString("en-US") : value.toFixed(2)}`;
const timeText = (seconds) => {
  if (seconds < 60) return `${seconds.toPrecision(3)} s`;
  if (seconds < 3600) return `${(seconds / 60).toFixed(1)} min`;
  return seconds < 360000 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
};

const EXAMPLE = { architectures: ["LlamaForCausalLM"], model_type: "llama", hidden_size: 4096, intermediate_size: 14336, num_hidden_layers: 32, num_attention_heads: 32, num_key_value_heads: 8, vocab_size: 128256, max_position_embeddings: 131072, rope_theta: 500000, rms_norm_eps: 1e-5, tie_word_embeddings: false, torch_dtype: "bfloat16" };
const STARTS = { precision: "bf16", gradient_checkpointing: "full", micro_batch: 4, sequence_length: 2048 };
let menu = null;

// The menu becomes the form.
const fill = () => {
  const option = (value, text) => made("option", { value }, text);
  at("stack").append(...menu.tools.map((tool) => option(tool.name, tool.title)));
  at("device").append(option("", "none: no verdict, no speed"), ...menu.devices.map((device) => option(device.name, `${device.name}, ${device.memory_bytes / 2 ** 30} GiB`)));
  at("stack").value = "trl";
  at("device").value = "A100 80GB";
  for (const setting of menu.settings) {
    const id = `set-${setting.name}`, usual = STARTS[setting.name] ?? setting.usual;
    const input = setting.is_switch ? made("select", { id }, option("false", "no"), option("true", "yes"))
      : setting.choices ? made("select", { id }, ...setting.choices.map((name) => option(name, name)))
      : made("input", { id, type: "number", step: setting.between ? 1 : "any", min: setting.between?.[0] ?? 0, max: setting.between?.[1] });
    input.value = String(usual);
    if (input.type === "number") input.placeholder = `${setting.usual}, as is usual`;
    input.dataset.setting = setting.name;
    at("of-form").append(made("div", { title: setting.about }, made("label", { for: id }, setting.name.replaceAll("_", " ")), input));
  }
  at("about").textContent = `peft-tune ${menu.version}. Six stacks are predicted here; plans of peft-tune's own engine, of studies with their data, and of scripts need the program.`;
};

const numberOf = (id) => at(id).value.trim() === "" ? null : Number(at(id).value);
const fromFile = () => document.querySelector("[name=from]:checked").value === "file";
const settings = () => {
  const all = {};
  for (const setting of menu.settings) {
    const { value } = at(`set-${setting.name}`);
    if (value.trim() !== "") all[setting.name] = setting.is_switch ? value === "true" : setting.choices ? value : Number(value);
  }
  return all;
};
const question = () => {
  const file = fromFile(), asked = { ask: "plan", config: at("config").value, model: at("model").value.trim(), offload: at("offload").checked, rows_differ: at("differ").checked };
  if (file) asked.file = { name: at("name").value.trim() || "config.yaml", text: at("file").value };
  else asked.settings = settings();
  for (const id of ["stack", "device", "sharing"]) if (at(id).value) asked[id] = at(id).value;
  for (const [id, key] of [["devices", "devices"], ["rows", "rows"], ["epochs", "epochs"], ["steps", "steps"], ["price", "usd_per_h"]]) { const value = numberOf(id); if (value !== null) asked[key] = value; }
  return asked;
};

// Fields that are shown and hold something else than a number: their value would read as none at all.
const unreadable = () => [...at("form").querySelectorAll("input[type=number]")].filter((input) => input.offsetParent && input.validity.badInput).map((input) => input.labels[0].textContent);

const FITS = { fits: "fits", fits_by_an_unproven_model: "unproven", uncertain: "uncertain", does_not: "not" };
const say = (fit, ...words) => { at("status").dataset.fit = fit; at("status").replaceChildren(...words); };

// A bar from the low to the high bound with a mark at the value, on a scale from 0 to a little above the high bound or the limit.
const bars = ([low, value, high], limit = 0) => {
  const most = Math.max(high, limit) * 1.05 || 1, x = (one) => (100 * one / most).toFixed(2);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 14"); svg.setAttribute("preserveAspectRatio", "none"); svg.setAttribute("aria-hidden", "true");
  svg.innerHTML = `<rect x="0" y="6" width="100" height="2" fill="var(--grid)"/><rect x="${x(Math.max(low, 0))}" y="4" width="${x(high - Math.max(low, 0))}" height="6" fill="var(--low)"/><rect x="${x(value) - 0.4}" y="1" width="0.8" height="12" fill="var(--front)"/>${limit ? `<rect x="${x(limit) - 0.4}" y="0" width="0.8" height="14" fill="var(--bad)"/>` : ""}`;
  return svg;
};
const tile = (name, triple, text, more = "", limit = 0) => made("div", { class: "tile" }, made("span", {}, name), made("b", {}, triple ? text(triple[1]) : "-"),
  made("span", { class: "range" }, triple ? `${text(Math.max(triple[0], 0))} to ${text(triple[2])}` : more), triple ? bars(triple, limit) : null, triple && more ? made("span", {}, more) : null);
const table = (heads, rows) => made("table", {}, made("thead", {}, made("tr", {}, ...heads.map(([text, number]) => made("th", { scope: "col", class: number ? "num" : null }, text)))),
  made("tbody", {}, ...rows.map((row) => made("tr", {}, ...row.map((cell, index) => made("td", { class: heads[index][1] ? "num" : null }, cell))))));
const quiet = (text) => made("p", { class: "quiet" }, text);

const show = (answer) => {
  const { plan, cost, between } = answer, { verdict } = plan;
  if (verdict) say(FITS[verdict.fit], made("b", {}, `${answer.fit_words} `), `on ${plan.assumed.device.split(";")[0]}: ${verdict.unproven ? "needs about" : "at least"} ${bytesText(verdict.least_bytes)} of ${bytesText(verdict.usable_bytes)}, and ${bytesText(verdict.reserve_bytes)} must be left for the prediction's error. ${verdict.unproven ? `Unproven: ${verdict.unproven}.` : ""}`);
  else say("none", `Needs ${bytesText(plan.peak_process_bytes)}. Choose a device for a verdict and the speed.`);
  const price = cost.price ? `at ${usdText(cost.price.usd_per_h)} an hour: ${cost.price.source}` : "no price is listed: write yours";
  at("tiles").replaceChildren(
    tile("peak of the process, one device", between.peak_process_bytes, bytesText, `${bytesText(plan.peak_tensors_bytes)} tensors, ${bytesText(answer.outside_bytes)} driver and libraries${verdict ? `; the red mark is what programs have, ${bytesText(verdict.usable_bytes)}` : ""}`, verdict?.usable_bytes),
    tile("tokens/s, padding counted", between.tokens_per_s, count, between.step_s ? `${timeText(plan.step_s)} a step${answer.scaling_text ? `; ${answer.scaling_text}` : ""}` : "choose a device"),
    tile("time of the training", cost.seconds, timeText, cost.missing ?? `${cost.steps.toLocaleString("en-US")} steps: ${cost.by}`),
    tile("price of the training", cost.usd, usdText, cost.usd ? price : cost.missing ?? price));
  const parts = Object.entries(plan.components).filter(([, size]) => size > 0).sort(([, one], [, other]) => other - one);
  const cached = plan.peak_reserved_bytes - plan.peak_tensors_bytes;
  if (cached > 0) parts.push(["cached blocks", cached]);
  parts.push(["driver and libraries", answer.outside_bytes]);
  const most = Math.max(...parts.map(([, size]) => size), 1);
  at("parts").replaceChildren(quiet(answer.setting_text), ...parts.map(([name, size]) => made("div", { class: "part" }, made("span", {}, name.replaceAll("_", " ")), made("span", { class: "of" }, (() => { const bar = made("i"); bar.style.width = `${100 * size / most}%`; return bar; })()), made("b", {}, bytesText(size)))),
    quiet(`Phases: ${plan.phases.map((phase) => `${phase.phase} ${bytesText(phase.tensors_bytes)}`).join(", ")}${answer.phases_note ? `; ${answer.phases_note}` : ""}`));
  const { tool, rows, device } = plan.assumed;
  at("notes").replaceChildren(...[`Tool: ${tool}`, `Rows: ${rows}`, `Device: ${device}`, ...plan.notes, ...answer.told].map((text) => made("li", {}, text)));
  at("limits").replaceChildren(plan.limits ? quiet(`All else as it is: micro-batches up to ${plan.limits.largest_micro_batch}, or rows of up to ${plan.limits.longest_sequence.toLocaleString("en-US")} tokens.`) : quiet("Choose a device."),
    plan.frontier.length ? table([["row length", 1], ["largest micro-batch", 1], ["tokens/s", 1]], plan.frontier.map((point) => [point.sequence_length.toLocaleString("en-US"), String(point.micro_batch), point.tokens_per_s === null ? "-" : count(point.tokens_per_s)])) : "");
  at("levers").replaceChildren(plan.levers.length ? table([["change of one thing", 0], ["saves", 1], ["speed", 1], ["then it", 0]], plan.levers.map((lever) => [lever.name, bytesText(lever.saves_bytes), lever.speed === null ? "-" : `x${lever.speed.toFixed(2)}`, lever.fit ? { fits: "fits", fits_by_an_unproven_model: "fits, unproven", uncertain: "is uncertain", does_not: "does not fit" }[lever.fit] : "-"])) : quiet("Nothing that this stack can run saves memory."));
  showPublished(answer.published);
  at("command").textContent = fromFile() ? "What the program prints for the same file and the same model:" : "What the program prints for a study with this setting as its baseline:";
  at("json").textContent = answer.plan_text;
  at("shown").hidden = false;
};

const showPublished = ({ rows, far }) => {
  const both = ({ published: was, predicted }, digits) => was === null || predicted === null ? "-" : `${was.toFixed(digits)} | ${predicted.toFixed(digits)}`;
  at("published").replaceChildren(
    quiet("Measured by others, then what is predicted of the same setting. Of all such rows nine of ten are within the bounds above. A star marks sources by which constants were chosen."), far === null ? "" : made("p", {}, far),
    table([["model", 0], ["setting", 0], ["device", 0], ["peak, GiB", 1], ["tokens/s", 1], ["source", 0]], rows.map((row) => [
      row.model.split("/").pop(),
      `${row.method}${row.rank ? ` r${row.rank}` : ""}${row.weights === "numbers" ? "" : `, ${row.weights.replace("_", " ")}`}, ${row.micro_batch} x ${row.sequence_length}${row.checkpointing === false ? ", no checkpointing" : ""}, ${row.stack}`,
      `${row.devices > 1 ? `${row.devices} x ` : ""}${row.device}`, row.process_gib.published === null ? `${both(row.tensors_gib, 1)} (tensors)` : both(row.process_gib, 1), both(row.tokens_per_s, 0),
      made("span", {}, row.origin.startsWith("https://") ? made("a", { href: row.origin, rel: "noreferrer" }, row.source) : row.origin, row.calibrated ? " *" : "")])));
};

const refuse = (text) => { at("shown").hidden = true; say("error", text); };
const answered = () => {
  const wrong = unreadable();
  if (wrong.length) return { error: `what is written there is no number: ${wrong.join(", ")}` };
  const started = performance.now(), answer = planner.ask(question());
  document.body.dataset.took = (performance.now() - started).toFixed(0);
  return answer;
};
let waiting = 0;
const plan = async () => {
  clearTimeout(waiting);
  if (!at("config").value.trim()) { at("shown").hidden = true; say("none", "Paste a model's config.json, drop its folder, or take the example."); return; }
  try {
    const answer = answered();
    if (answer.error) refuse(answer.error); else show(answer);
  } catch (error) {
    refuse(`The planner ended on this input (${error.message}). That is a fault of it: please report it with the input.`);
    try { await planner.start(); } catch (again) { refuse(`The planner ended, and cannot start again (${again.message}): load the page anew.`); }
  }
  document.body.dataset.asked = String(Number(document.body.dataset.asked ?? 0) + 1);
};
const soon = () => { clearTimeout(waiting); waiting = setTimeout(plan, 150); };

const LARGEST = 8 * 2 ** 20;
// Also as browsers call it where they have fetched one before.
const CONFIG = /^config( ?\(\d+\))?\.json$/;
const nameOf = (file) => file.dropped || file.webkitRelativePath || file.name;
const listOf = (names) => names.slice(0, 8).join(", ") + (names.length > 8 ? ` and ${names.length - 8} more` : "");
// The text of the file that lies highest in its folder, of those alike the first; whatever is not read is noted.
const textOf = async (files, notes) => {
  const depth = (file) => nameOf(file).split("/").length, [first, ...rest] = [...files].sort((one, other) => depth(one) - depth(other));
  if (!first) return null;
  if (rest.length) notes.push(`passed over beside ${nameOf(first)}: ${listOf(rest.map(nameOf))}`);
  if (first.size < LARGEST) return { file: first, text: await first.text() };
  notes.push(`${nameOf(first)} is not read: it has ${bytesText(first.size)}, and a file of its kind less than ${bytesText(LARGEST)}`);
  return null;
};
// Files of settings, the likeliest first. Any other text may be a tokenizer's or a list of packages: it counts where it is alone.
const settingsOf = (files) => {
  const ending = (pattern) => files.filter((file) => pattern.test(file.name));
  const others = files.length === 1 ? ending(/\.(txt|json)$/i).filter(({ name }) => !CONFIG.test(name) && name !== "adapter_config.json") : [];
  return [ending(/^adapter_config\.json$/), ending(/\.ya?ml$/i), ending(/\.sh$/i), others].flat();
};

// Files that were dropped or chosen: a config.json is the model, JSONL are rows, the rest a tool's settings. Returns what is to be said.
const taken = async (files) => {
  const notes = [], configs = files.filter((file) => CONFIG.test(file.name)), candidates = settingsOf(files);
  const rows = files.filter((file) => /\.jsonl$/i.test(file.name)), scripts = files.filter((file) => /\.(py|ipynb)$/i.test(file.name));
  const config = await textOf(configs, notes), settings = await textOf(candidates, notes);
  if (config) {
    at("config").value = config.text;
    at("model").value = nameOf(config.file).split("/").slice(-2, -1).join("");
  }
  if (settings) {
    at("file").value = settings.text;
    at("name").value = settings.file.name;
    document.querySelector("[name=from][value=file]").checked = true;
    at("stack").value = "";
  }
  if (rows.length) {
    let lines = 0;
    for (const file of rows) lines += await linesOf(file);
    at("rows").value = lines;
    notes.push(`${lines} rows in ${listOf(rows.map(nameOf))}`);
  }
  if (scripts.length) notes.push(`scripts are read by the program alone: ${listOf(scripts.map(nameOf))}`);
  if (![configs, candidates, rows, scripts].some((some) => some.length)) notes.push(files.length ? `none of these is a config.json, a tool's settings file or JSONL: ${listOf(files.map(nameOf))}` : "no file lies in that folder itself");
  return notes;
};
// Takes files from a promise of them, which a folder that cannot be read breaks.
const take = async (files) => {
  let notes;
  try { notes = await taken(await files); } catch (error) { notes = [`a file cannot be read: ${error.message}`]; }
  switchFrom();
  await plan();
  if (notes.length) at("notes").prepend(...notes.map((text) => made("li", {}, text)));
  if (at("shown").hidden && notes.length) at("status").append(` (${notes.join("; ")})`);
};
const linesOf = async (file) => {
  const reader = file.stream().getReader();
  let lines = 0, isBlank = true;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return lines + (isBlank ? 0 : 1);
    for (const byte of value) if (byte === 10) { lines += isBlank ? 0 : 1; isBlank = true; } else if (byte !== 13 && byte !== 32) isBlank = false;
  }
};
// The files of a dropped entry: itself, or those that lie in the folder and not deeper.
const filesOf = async (entry) => {
  const fileOf = async (one) => Object.assign(await new Promise((done, failed) => one.file(done, failed)), { dropped: one.fullPath.slice(1) });
  if (entry.isFile) return [await fileOf(entry)];
  const reader = entry.createReader(), all = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!some.length) return all;
    for (const one of some) if (one.isFile) all.push(await fileOf(one));
  }
};
// The tool's own keys tell the stack of a file, so that none need be chosen there.
const switchFrom = () => {
  const file = fromFile(), auto = at("stack").querySelector("option[value='']");
  if (file && !auto) { at("stack").prepend(made("option", { value: "" }, "the one that the file's keys tell")); at("stack").value = ""; }
  if (!file && auto) { if (!at("stack").value) at("stack").value = "trl"; auto.remove(); }
  at("of-file").hidden = !file;
  at("of-form").hidden = file;
};

const listen = () => {
  at("form").addEventListener("input", () => { switchFrom(); soon(); });
  at("form").addEventListener("submit", (event) => event.preventDefault());
  at("example").addEventListener("click", () => { at("config").value = JSON.stringify(EXAMPLE, null, 2); at("model").value = "an 8B Llama"; plan(); });
  for (const id of ["files", "folder"]) at(id).addEventListener("change", (event) => {
    event.stopPropagation();
    const files = [...at(id).files];
    // Files of a folder come from all depths.
    if (files.length) take(files.filter((file) => nameOf(file).split("/").length <= 2));
  });
  const over = (is) => at("drop").classList.toggle("over", is);
  // A text that is dropped goes where it is dropped.
  const hasFiles = (event) => event.dataTransfer.types.includes("Files");
  for (const name of ["dragover", "dragenter"]) document.addEventListener(name, (event) => { if (hasFiles(event)) { event.preventDefault(); over(true); } });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(false);
    // Entries are there only until the first wait.
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean), files = [...event.dataTransfer.files];
    if (entries.length || files.length) take(entries.length ? Promise.all(entries.map(filesOf)).then((all) => all.flat()) : files);
  });
  at("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
  });
};

(async () => {
  try {
    await planner.load();
    menu = planner.ask({ ask: "menu" });
    fill();
    listen();
    switchFrom();
    await plan();
    document.body.dataset.ready = "yes";
  } catch (error) {
    say("error", `This browser cannot run the planner: ${error.message}. It needs WebAssembly and DecompressionStream (2023 or newer).`);
  }
})();
