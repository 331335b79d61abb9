// Checks the planner, which scripts/package/planner.py builds: that its numbers are those of `plan --json` to the last digit, and, in
// headless Chromium, that the page works from a file, by keyboard, at widths of 400 and 1,400 pixels and in both themes.
//
//   node scripts/checks/planner.mjs PLANNER.html [--program peft-tune] [--pictures DIR] [--axe axe.min.js] [--every 6] [--no-browser]
//
// Without a program the numbers are not compared; it says so. Of the files in tests/tool_files and the models in tests/golden every sixth
// is; `--every 1` takes all of them.
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { gunzipSync } from "node:zlib";
import { check, end, inBrowser } from "./checks.mjs";

const words = process.argv.slice(2);
const value = (name) => { const at = words.indexOf(name); return at < 0 ? null : words.splice(at, 2)[1]; };
const option = (name) => { const path = value(name); return path === null ? null : resolve(path); };
const program = option("--program"), pictures = option("--pictures"), axe = option("--axe"), every = Number(value("--every") ?? 6);
const browserless = words.includes("--no-browser");
const page = resolve(words.find((word) => !word.startsWith("--")));
const root = fileURLToPath(new URL("../..", import.meta.url));
if (pictures) mkdirSync(pictures, { recursive: true });

// The module as the page holds it, asked without the page.
const html = readFileSync(page, "utf8");
const packed = html.match(/id="module">([^<]+)</)[1];
const { instance } = await WebAssembly.instantiate(gunzipSync(Buffer.from(packed, "base64")), {});
const ask = (question) => {
  const { memory, room, ask, leave } = instance.exports, bytes = new TextEncoder().encode(JSON.stringify(question));
  const address = room(bytes.length);
  new Uint8Array(memory.buffer, address, bytes.length).set(bytes);
  const found = ask(address, bytes.length) >>> 0, length = new DataView(memory.buffer).getUint32(found - 4, true);
  const text = new TextDecoder().decode(new Uint8Array(memory.buffer, found, length));
  leave(found);
  return JSON.parse(text);
};

// Models in the sizes that people train; all others are the test models of the repository.
const plain = (hidden, layers, heads, kv, inner, vocabulary, more = {}) => ({ model_type: "llama", hidden_size: hidden, num_hidden_layers: layers, num_attention_heads: heads, num_key_value_heads: kv, intermediate_size: inner, vocab_size: vocabulary, max_position_embeddings: 32768, tie_word_embeddings: false, ...more });
const MODELS = {
  "llama-8b": plain(4096, 32, 32, 8, 14336, 128256),
  "llama-70b": plain(8192, 80, 64, 8, 28672, 128256),
  "qwen2-1.5b": plain(1536, 28, 12, 2, 8960, 151936, { model_type: "qwen2", tie_word_embeddings: true }),
  "gemma3-12b": plain(3840, 48, 16, 8, 15360, 262208, { model_type: "gemma3_text", head_dim: 256 }),
  "mixtral": plain(4096, 32, 32, 8, 14336, 32000, { model_type: "mixtral", num_local_experts: 8, num_experts_per_tok: 2 }),
  "unknown": plain(2048, 24, 16, 4, 8192, 65536, { model_type: "newcomer" }),
};
const DEVICES = ["A100 80GB", "L4", "T4", "H100 SXM", "RTX 4090", "B200", null];
const STACKS = ["peft", "trl", "axolotl", "llamafactory", "unsloth", "torchtune"];

const filesBelow = (folder) => readdirSync(folder, { withFileTypes: true }).flatMap((entry) => entry.isDirectory() ? filesBelow(join(folder, entry.name)) : [join(folder, entry.name)]);

// One case: the program and the module are asked the same, and say the same.
const run = (folder, options) => {
  const { status, stdout, stderr } = spawnSync(program, ["plan", ...options, "--json"], { cwd: folder, encoding: "utf8", env: { ...process.env, PEFT_TUNE_DB: join(folder, "none.db"), HF_HUB_OFFLINE: "1" } });
  return { status, stdout, stderr };
};
const compare = (what, { status, stdout, stderr }, answer) => {
  if (status === 2) return { what, same: Boolean(answer.error) && stderr.replace(/\s+/g, " ").includes(answer.error.replace(/\s+/g, " ")), why: `${stderr.trim()} | ${answer.error}`, refused: true };
  const text = `${answer.plan_text}\n`;
  if (text === stdout) return { what, same: true };
  const [own, other] = [text.split("\n"), stdout.split("\n")], at = own.findIndex((line, index) => line !== other[index]);
  return { what, same: false, why: answer.error ?? `line ${at + 1}: ${own[at]} | ${other[at]} (${stderr.trim().slice(0, 200)})` };
};

const compareNumbers = () => {
  const folder = mkdtempSync(join(tmpdir(), "planner-")), results = [];
  for (const [name, config] of Object.entries(MODELS)) { mkdirSync(join(folder, name)); writeFileSync(join(folder, name, "config.json"), JSON.stringify(config)); }
  const golden = join(root, "tests/golden");
  for (const name of readdirSync(golden)) {
    try { mkdirSync(join(folder, name)); cpSync(join(golden, name, "model/config.json"), join(folder, name, "config.json")); } catch { rmSync(join(folder, name), { recursive: true, force: true }); }
  }
  cpSync(join(root, "tests/tool_files"), join(folder, "files"), { recursive: true });
  writeFileSync(join(folder, "sft.yaml"), "model_name_or_path: m\nuse_peft: true\nlora_r: 16\nmax_length: 1024\nper_device_train_batch_size: 2\n");
  const sizes = Object.keys(MODELS), models = readdirSync(folder).filter((name) => name.startsWith("ref_"));
  const one = (file, model, device, more = {}) => {
    const options = ["--check", file, "--model", model];
    for (const [name, value] of Object.entries({ device, ...more })) if (value) options.push(`--${name}`, ...(value === true ? [] : [String(value)]));
    const answer = ask({ ask: "plan", config: readFileSync(join(folder, model, "config.json"), "utf8"), model, file: { name: file, text: readFileSync(join(folder, file), "utf8") }, ...(device ? { device } : {}), ...more });
    results.push(compare(`${file} on ${model}, ${device ?? "no device"} ${JSON.stringify(more)}`, run(folder, options), answer));
  };
  filesBelow(join(folder, "files")).map((file) => relative(folder, file)).filter((file) => /\.(ya?ml|json|sh|txt)$/.test(file) && !file.endsWith("cases.yaml") && !file.includes("models/")).forEach((file, index) => { if (index % every === 0) one(file, sizes[index / every % sizes.length | 0], DEVICES[index / every % DEVICES.length | 0]); });
  models.forEach((model, index) => { if (index % every === 0) one("sft.yaml", model, DEVICES[index / every % 6 | 0], { stack: STACKS[index / every % 5 | 0] }); });
  STACKS.slice(0, 5).forEach((stack, index) => one("sft.yaml", sizes[index], "H200", { stack, devices: 4, sharing: ["fsdp", "zero2", "zero3", "copies", "zero1"][index] }));
  // The form, beside a study whose baseline has its values; the rate is searched, since a study searches something.
  const form = (settings, model, device, stack, more = {}) => {
    const { sequence_length, ...space } = settings, at = join(folder, model);
    writeFileSync(join(folder, "study.yaml"), JSON.stringify({ model: at, data: { train: "rows.jsonl" }, trial: { sequence_length }, space: { learning_rate: [1e-4, 2e-4], ...space } }));
    const options = ["study.yaml", "--stack", stack, "--device", device, ...Object.entries(more).flatMap(([name, value]) => [`--${name}`, String(value)])];
    const answer = ask({ ask: "plan", config: readFileSync(join(at, "config.json"), "utf8"), model: at, settings, device, stack, ...more });
    results.push(compare(`${JSON.stringify(settings)} on ${model}, ${device}, ${stack}`, run(folder, options), answer));
  };
  STACKS.forEach((stack, index) => {
    form({ sequence_length: 2048, rank: 32, precision: "nf4_double", micro_batch: 4, gradient_checkpointing: "full" }, sizes[index], "A100 80GB", stack);
    form({ sequence_length: 4096, rank: 8, precision: "bf16", micro_batch: 1, gradient_accumulation: 8, target_modules: "attention", optimizer: "paged_adamw_8bit", gradient_checkpointing: "none" }, sizes[(index + 2) % sizes.length], "H100 SXM", stack, { devices: 2 });
    form({ sequence_length: 1024, method: "full", micro_batch: 2, packing: true, gradient_checkpointing: "full" }, "qwen2-1.5b", "RTX 4090", stack);
  });
  const wrong = results.filter((one) => !one.same), refused = results.filter((one) => one.refused).length;
  for (const one of wrong) console.log(`     ${one.what}: ${one.why}`);
  check(wrong.length === 0 && results.length > 20, `${results.length} plans are those of the program to the last digit (${refused} are refused by both in the same words), ${wrong.length} are not`);
  rmSync(folder, { recursive: true });
};

const READY = "document.body.dataset.ready === 'yes'";
const asked = (tab) => tab.run("Number(document.body.dataset.asked ?? 0)");
const after = async (tab, what, act) => { const before = await asked(tab); await act(); await tab.until(`Number(document.body.dataset.asked ?? 0) > ${before}`, what); };
const key = async (tab, name, code, text) => { for (const type of ["keyDown", "keyUp"]) await tab.send("Input.dispatchKeyEvent", { type, key: name, code: name, windowsVirtualKeyCode: code, ...(text && type === "keyDown" ? { text } : {}) }); };
const example = (tab) => after(tab, "the example is planned", () => tab.run("at('example').click()"));

const checkUse = async (browser, url) => {
  const tab = await browser.open(url, READY);
  check((await tab.run("at('status').textContent")).includes("config.json"), "an empty page says what to give");
  await example(tab);
  check((await tab.run("at('status').dataset.fit")) === "fits", "the example fits its device");
  check((await tab.run("document.querySelectorAll('#tiles .tile').length")) === 4, "peak, speed, time and price are shown");
  check((await tab.run("document.querySelectorAll('#parts .part').length")) > 4, "the peak is shown by parts");
  check((await tab.run("document.querySelectorAll('#published tbody tr').length")) === 5, "the nearest published rows stand beside it");
  console.log(`     a plan takes ${await tab.run("document.body.dataset.took")} ms in this browser`);
  await after(tab, "rows give a time", () => tab.run("at('rows').value = 10000; at('rows').dispatchEvent(new Event('input', { bubbles: true }))"));
  const tiles = await tab.run("[...document.querySelectorAll('#tiles .tile')].map((one) => one.textContent)");
  check(tiles.every((text) => / to /.test(text)) && tiles[3].includes("$"), `each number has bounds: ${tiles[3]}`);
  const own = await tab.run("({ asked: question(), text: at('json').textContent })");
  check(own.text === ask(own.asked).plan_text && own.text.length > 500, "the page shows what the module says");

  // By keyboard alone: from the example's button to the device, which is chosen by its first letters.
  await tab.run("at('device').focus()");
  await after(tab, "keys choose a device", async () => { for (const letter of "T4") await key(tab, letter, letter.charCodeAt(0), letter); });
  check((await tab.run("at('device').value")) === "T4" && (await tab.run("at('status').dataset.fit")) !== "fits", "keys choose a device, on which it does not fit");
  await tab.run("at('config').focus()");
  const reached = new Set();
  for (let presses = 0; presses < 60; presses++) { await key(tab, "Tab", 9); reached.add(await tab.run("document.activeElement.id || document.activeElement.tagName")); }
  const controls = await tab.run("[...document.querySelectorAll('#form input, #form select, #form textarea, #form button')].filter((one) => one.offsetParent && one.id && one.type !== 'radio').map((one) => one.id)");
  const missed = controls.filter((id) => !reached.has(id) && !["config", "files", "folder"].includes(id));
  check(missed.length === 0, `the tab key reaches every control ${missed.join(", ")}`);

  // A folder's files, as they are dropped.
  const drop = (files) => after(tab, "files are read", () => tab.run(`take(${JSON.stringify(files)}.map(([name, text]) => new File([text], name)))`));
  await drop([["qlora.yaml", "base_model: m\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nsequence_len: 2048\nmicro_batch_size: 2\nnum_epochs: 2\nlora_target_linear: true\n"], ["rows.jsonl", "{}\n{}\n\n{}"]]);
  check((await tab.run("at('notes').textContent")).includes("axolotl"), "a tool's file is told by its keys");
  check((await tab.run("at('rows').value")) === "3", "rows of a dropped file are counted");
  const file = await tab.run("({ asked: question(), text: at('json').textContent })");
  check(file.text === ask(file.asked).plan_text, "the file's plan is the module's");
  await drop([["train.py", "print(1)"]]);
  // The result alone: the page's own script has these words too.
  const result = () => tab.run("at('result').textContent");
  check((await result()).includes("read by the program alone: train.py"), "a script is refused with what to do");
  await after(tab, "bad input is told", () => tab.run("at('config').value = '{'; at('config').dispatchEvent(new Event('input', { bubbles: true }))"));
  check((await tab.run("at('status').dataset.fit")) === "error" && (await tab.run("at('status').textContent")).includes("no JSON"), "bad input is told");
  await example(tab);
  check((await tab.run("at('shown').hidden")) === false, "the page goes on behind bad input");
  // What is no number, what is out of bounds, a fault of the module, and files beside others.
  const input = (id, value) => tab.run(`at('${id}').value = '${value}'; at('${id}').dispatchEvent(new Event('input', { bubbles: true }))`);
  const status = () => tab.run("at('status').dataset.fit + ': ' + at('status').textContent");
  for (const [id, value, told] of [["price", "-1", "not a price"], ["devices", "0", "`devices` is 0"], ["epochs", "-2", "`epochs` is -2"], ["rows", "0.5", "`rows` is 0.5"]]) {
    await after(tab, `${id} ${value} is answered`, () => input(id, value));
    const found = await status();
    check(found.startsWith("error") && found.includes(told), `${id} ${value} is refused: ${found}`);
    await after(tab, "the field is emptied", () => input(id, ""));
  }
  await tab.run("at('price').focus()");
  await after(tab, "letters are answered", async () => { for (const letter of "-e") await key(tab, letter, 0, letter); });
  check((await status()).includes("no number: US dollars"), `what is no number is told with its field: ${await status()}`);
  // As a number it would keep what is no number.
  await tab.run("at('price').type = 'text'; at('price').value = ''; at('price').type = 'number'");
  await after(tab, "the field is emptied", () => input("price", ""));
  await after(tab, "a fault is told", () => tab.run("{ const { exports } = planner.instance; planner.instance = { exports: { ...exports, ask: () => { throw new WebAssembly.RuntimeError('unreachable'); } } }; } plan()"));
  check((await status()).includes("The planner ended on this input"), "a fault of the module is told");
  await example(tab);
  check((await tab.run("at('shown').hidden")) === false, "the page goes on behind a fault of the module");
  const llama = JSON.stringify(MODELS["llama-8b"]);
  await tab.run("document.querySelector('[name=from][value=form]').checked = true");
  await drop([["config.json", llama], ["merges.txt", "#version: 0.2"], ["tokenizer.json", "{}"]]);
  check((await tab.run("fromFile()")) === false, "a tokenizer's texts are no tool's settings");
  await drop([["a.yaml", "base_model: m\nadapter: lora\n"], ["b.yaml", "x: 1"], ["train.py", "print(1)"]]);
  const beside = await result();
  check(beside.includes("passed over beside a.yaml: b.yaml") && beside.includes("read by the program alone: train.py"), "files that are passed over are told");
  await drop([["weights.bin", "\u0000\u0001"]]);
  check((await result()).includes("tool's settings file or JSONL: weights.bin"), "a binary file is told");
  check(tab.requests.every((one) => one.startsWith("file:") || one.startsWith("data:")), `the page asks nothing of the network (${tab.requests.length} requests)`);
  check(tab.errors.length === 0, `the page has no error ${tab.errors.join("; ")}`);
  await tab.close();
};

const checkLooks = async (browser, url) => {
  for (const width of [400, 1400]) for (const theme of ["light", "dark"]) {
    const what = `${width} pixels, ${theme}`, tab = await browser.open(url, READY, { width, media: [{ name: "prefers-color-scheme", value: theme }] });
    await tab.run("at('rows').value = 10000");
    await example(tab);
    const [wide, room] = await tab.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]");
    check(wide <= room + 1, `${what}: nothing scrolls sideways (${wide} in ${room})`);
    if (axe) {
      await tab.run(`${readFileSync(axe, "utf8")}; 0`);
      const found = await tab.run("axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map((one) => `${one.id} (${one.impact}): ${one.nodes.slice(0, 3).map((node) => node.target.join(' ')).join(' | ')}`))");
      check(found.length === 0, `${what}: axe finds nothing ${found.join("; ")}`);
    }
    if (pictures) await tab.picture(join(pictures, `planner-${width}-${theme}.png`));
    await tab.close();
  }
};

if (program) compareNumbers(); else console.log("     no --program: the numbers are not compared with `plan --json`");
if (!browserless) {
  const url = pathToFileURL(page).href;
  await inBrowser(async (browser) => {
    await checkUse(browser, url);
    await checkLooks(browser, url);
  });
}
end("the planner works");
