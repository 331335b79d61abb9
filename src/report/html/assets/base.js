"use strict";
// What every part of the page shares: elements, numbers, the study and what is selected of it.
const PT = { view: null, charts: [], brushes: new Map(), filter: () => true, hot: null, picked: [null, null], beaten: true };

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    // Text only ever becomes a text node: a name in a study is never read as markup.
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  };
  PT.h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  PT.s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  // A command or a change: its flags stay in one piece where the line is broken.
  PT.flags = (text) => text.split(/(?<=^| )(--\S+)/).map((part, index) => (index % 2 ? PT.h("span", { class: "flag" }, part) : part));
  PT.at = (id) => document.getElementById(id);
  PT.chart = (width, height, label) =>
    PT.s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  PT.width = (element, least) => Math.max(least || 260, Math.round(element.clientWidth || 600));

  // Numbers, as the program's own tables write them.
  PT.bytes = (value) => {
    for (const [unit, size, digits] of [["TiB", 2 ** 40, 2], ["GiB", 2 ** 30, 2], ["MiB", 2 ** 20, 1], ["KiB", 1024, 1]]) {
      if (Math.abs(value) >= size) return `${(value / size).toFixed(digits)} ${unit}`;
    }
    return `${Math.round(value)} B`;
  };
  PT.seconds = (value) => {
    if (!(value >= 0)) return "–";
    if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
    if (value < 1) return `${(value * 1e3).toPrecision(3)} ms`;
    if (value < 59.5) return `${value.toFixed(1)} s`;
    const whole = Math.round(value), two = (part) => String(part).padStart(2, "0");
    if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)}h ${two(Math.floor(whole / 60) % 60)}m`;
    return `${Math.floor(whole / 86400)}d ${two(Math.floor(whole / 3600) % 24)}h`;
  };
  PT.number = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e9) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    return String(+value.toPrecision(4));
  };
  const isBytes = (name) => name === "peak_memory" || name === "target_peak_memory" || name.endsWith("_bytes");
  const isRate = (name) => name === "throughput" || name === "target_throughput" || name.endsWith("tokens_per_s");
  PT.isBytes = isBytes;
  PT.metric = (name, value) => {
    if (value === null || value === undefined) return "–";
    if (isBytes(name)) return PT.bytes(value);
    if (isRate(name)) return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
    if (name === "loss" || name.endsWith("_loss")) return value.toFixed(4);
    if (name.endsWith("_s") && !name.endsWith("_per_s")) return PT.seconds(value);
    const of_gpu = PT.ofGpu.find((one) => one.name === name);
    return of_gpu ? of_gpu.text(value) : PT.number(value);
  };
  // What a GPU did while a trial was measured, where its driver told.
  PT.ofGpu = [
    { name: "mfu", label: "MFU", text: (value) => `${(100 * value).toFixed(1)}%` },
    { name: "gpu_utilisation", label: "GPU busy", text: (value) => `${(100 * value).toFixed(0)}%` },
    { name: "gpu_power_w", label: "power", text: (value) => `${value.toFixed(0)} W` },
    { name: "gpu_temperature_c", label: "temperature", text: (value) => `${value.toFixed(0)} °C` },
    { name: "gpu_clock_mhz", label: "clock", text: (value) => `${value.toFixed(0)} MHz` },
    { name: "joules_per_token", label: "J/token", text: (value) => PT.number(value) },
  ];
  // What stands beside the predictions of another stack.
  PT.measuredHere = [
    { name: "throughput", label: "tokens/s here", text: (value) => PT.metric("throughput", value) },
    { name: "peak_memory", label: "peak memory here", text: PT.bytes },
  ];
  // Those that any trial has, with their places among its metrics; objectives are shown anyway.
  PT.gpuMetrics = (view) => [...(view.study.target ? PT.measuredHere : []), ...PT.ofGpu]
    .map((one) => ({ ...one, index: view.metrics.indexOf(one.name) }))
    .filter((one) => one.index >= view.objectives.length);
  // The 95% interval that repeats gave a metric of a trial.
  PT.interval = (trial, index) => { const one = (trial.intervals || []).find((known) => known[0] === index); return one ? one.slice(1) : null; };
  PT.metricWithInterval = (trial, index) => {
    const value = trial.metrics[index], known = PT.interval(trial, index), text = PT.metric(PT.view.metrics[index], value);
    return known ? `${text} ±${((50 * (known[1] - known[0])) / Math.abs(value)).toFixed(1)}%` : text;
  };
  PT.param = (value) => {
    if (value === null || value === undefined) return "–";
    return typeof value === "number" ? PT.number(value) : Array.isArray(value) ? value.join(",") : String(value);
  };
  PT.label = (name) => {
    const objective = PT.view.objectives.find((one) => one.metric === name);
    return objective ? objective.label : name.replaceAll("_", " ");
  };

  // Which trials are kept: those inside every brush that pass the table's filter.
  PT.value = (trial, key) => (key.startsWith("p") ? trial.params : trial.metrics)[+key.slice(1)];
  PT.inside = (trial) => {
    for (const [key, brush] of PT.brushes) if (!brush(PT.value(trial, key), trial)) return false;
    return true;
  };
  PT.kept = (trial) => PT.inside(trial) && PT.filter(trial);
  PT.best = () => (PT.view.recommendation ? PT.view.recommendation.trial : null);
  PT.kind = (trial) => (trial.number === PT.best() ? "best" : trial.front ? "front" : trial.feasible ? "" : trial.state === "pruned" ? "stopped" : "broken");

  // Whether charts draw it: those that others beat can be left out.
  PT.drawn = (trial) => PT.beaten || trial.front || trial.number === PT.best() || trial.number === PT.view.baseline;

  let waiting = false;
  PT.changed = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      const kept = new Set(PT.view.trials.filter(PT.kept).map((trial) => trial.number));
      for (const chart of PT.charts) if (chart.select) chart.select(kept);
      PT.selectionBar(kept.size);
    });
  };
  PT.selectionBar = (count) => {
    const bar = PT.at("selection"), all = PT.view.trials.length;
    bar.hidden = PT.brushes.size === 0;
    bar.replaceChildren(
      PT.h("span", {}, `${count} of ${all} trials selected`),
      PT.h("button", { type: "button", onclick: () => { PT.brushes.clear(); PT.redraw(); } }, "Clear"),
    );
  };
  PT.point = (number) => {
    if (PT.hot === number) return;
    PT.hot = number;
    for (const chart of PT.charts) if (chart.point) chart.point(number);
  };

  // The tip beside the pointer.
  const rows = (pairs) => PT.h("table", {}, PT.h("tbody", {}, pairs.map(([name, value]) =>
    PT.h("tr", {}, PT.h("td", { class: "quiet" }, name), PT.h("td", {}, value)))));
  PT.tip = (event, ...content) => {
    const tip = PT.at("tip");
    tip.replaceChildren(...content);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), gap = 16;
    const left = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    const top = Math.min(event.clientY + gap, innerHeight - box.height - 6);
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, top)}px`;
  };
  PT.noTip = () => { PT.at("tip").hidden = true; PT.point(null); };
  PT.trialTip = (event, trial) => {
    const view = PT.view;
    const metrics = view.objectives.map((one, index) => [one.label, PT.metricWithInterval(trial, index)]);
    const ofGpu = PT.gpuMetrics(view).map((one) => [one.label, PT.metric(one.name, trial.metrics[one.index])]).filter((pair) => pair[1] !== "–");
    const params = view.params.map((one, index) => [one.name, PT.param(trial.params[index])]).filter((pair) => pair[1] !== "–");
    const kind = trial.number === PT.best() ? ", recommended" : trial.number === view.baseline ? ", baseline" : trial.front ? ", on the front" : trial.state === "complete" && !trial.feasible ? ", breaks a bound" : trial.state === "pruned" ? ", stopped early: where it stood" : "";
    const took = trial.inherited.map(([part, source]) => `${part} taken over from trial ${source}`);
    PT.point(trial.number);
    PT.tip(event, PT.h("b", {}, `Trial ${trial.number}${kind}`), trial.state === "complete" ? "" : PT.h("div", { class: "note" }, trial.outcome),
      rows([...metrics, ...ofGpu]), PT.h("hr"), rows(params), took.length ? PT.h("div", { class: "quiet" }, took.join(", ")) : "");
  };
  PT.valueTip = (event, title, pairs) => PT.tip(event, PT.h("b", {}, title), rows(pairs));
})();
