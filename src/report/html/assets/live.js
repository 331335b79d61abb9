"use strict";
// The live page: news from the study as it runs, and what may be asked of it.
(() => {
  const { h, s, at } = PT;
  const SAMPLES = 180;
  const name = PT.view.study.name, of = `study=${encodeURIComponent(name)}`;
  let token = sessionStorage.getItem("peft-tune-token"), samples = [], redrawing = false, now = null;

  // The token comes behind the `#`, which browsers never send anywhere, and leaves the address at once.
  const given = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (given) {
    token = given[1];
    sessionStorage.setItem("peft-tune-token", token);
    history.replaceState(null, "", location.pathname + location.search);
  }

  const link = (state, text) => { const pill = at("link"); pill.dataset.state = state; pill.textContent = text; };

  // Values of trials that changed, put into the view that the page has.
  const merge = (news) => {
    const view = PT.view, byNumber = (list, fresh, key) => {
      const kept = new Map(list.map((one) => [key(one), one]));
      for (const one of fresh) kept.set(key(one), one);
      return [...kept.values()];
    };
    Object.assign(view, news.head);
    view.trials = byNumber(view.trials, news.trials, (one) => one.number).sort((a, b) => a.number - b.number);
    view.curves = byNumber(view.curves.filter((one) => !news.repeated.includes(one.trial)), news.curves, (one) => `${one.trial} ${one.name}`);
    view.phases = byNumber(view.phases, news.phases, (one) => one.trial);
    view.memory = byNumber(view.memory, news.memory, (one) => one.trial);
    at("counts").textContent = `${view.counts_text} · ${PT.seconds(view.study.wall_s)} of trials`;
    recommendation(view);
    if (redrawing || document.hidden) { redrawing = true; return; }
    redrawing = true;
    requestAnimationFrame(() => { redrawing = false; PT.redraw(); });
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && redrawing) { redrawing = false; PT.redraw(); } });

  const recommendation = (view) => {
    const one = view.recommendation, section = at("recommendation");
    section.hidden = !one;
    if (!one || section.dataset.trial === `${one.trial} ${one.reason}`) return;
    section.dataset.trial = `${one.trial} ${one.reason}`;
    const chips = Object.entries(one.settings).map(([key, value]) => h("li", {}, h("span", {}, `${key} `), h("b", {}, PT.param(value))));
    const commands = one.commands.map((command) => h("div", { class: "command" }, h("p", {}, command.purpose), h("pre", { tabindex: "0" }, h("code", {}, PT.flags(command.line)))));
    section.replaceChildren(h("h2", {}, "Recommended so far"), h("div", { class: "card hero" }, h("p", { class: "reason" }, h("span", { class: "star", "aria-hidden": "true" }, "★ "), `${one.reason}.`), h("ul", { class: "chips" }, chips), commands.length ? h("h3", {}, "Use it") : null, commands));
    PT.copyButtons();
  };

  // The trials under way.
  const running = () => {
    const state = now.running ? (now.paused ? "paused" : "running") : "ended";
    const text = { running: "running", paused: "paused", ended: "not running" }[state];
    const trials = PT.view.trials.filter((trial) => trial.state === "running");
    const parts = [h("div", { class: "head" }, h("h3", {}, "Search"), h("span", { class: "pill", "data-state": state }, text))];
    for (const one of now.trials) {
      const trial = trials.find((other) => other.number === one.number);
      const params = trial ? PT.view.params.map((param, index) => [param.name, trial.params[index]]).filter((pair) => pair[1] !== null) : [];
      parts.push(h("div", { class: "row" }, h("span", { class: "big" }, `Trial ${one.number}`), h("span", { class: "quiet" }, `${one.phase || "starting"}, ${one.steps} steps, ${PT.seconds(one.elapsed_s)}`), one.tokens_per_s === null ? null : h("span", {}, `${PT.metric("throughput", one.tokens_per_s)} tokens/s`)));
      parts.push(h("ul", { class: "chips" }, params.map(([key, value]) => h("li", {}, h("span", {}, `${key} `), h("b", {}, PT.param(value))))));
      if (one.curve.length > 1) parts.push(spark(one.curve, "training loss", (value) => value.toFixed(4)));
    }
    if (!now.trials.length) parts.push(h("p", { class: "quiet" }, now.running ? (now.paused ? "Paused: no trial starts until the search resumes." : "Between two trials.") : "No process runs this study. A search on it continues where it stopped."));
    const waits = now.queue.map((one) => h("li", {}, h("b", {}, one.kind), h("span", {}, one.params ? ` ${Object.entries(one.params).map(([key, value]) => `${key} ${PT.param(value)}`).join(", ")}` : "")));
    if (waits.length) parts.push(h("h3", {}, "Queue"), h("ul", { class: "chips" }, waits));
    for (const why of now.refused) parts.push(h("p", { class: "note" }, `Refused: ${why}`));
    at("running").replaceChildren(...parts.filter((part) => part));
    const allowed = { Pause: state === "running", "Resume": state === "paused", "Stop after this trial": state !== "ended" };
    for (const button of at("control").querySelectorAll(".row button")) button.disabled = !allowed[button.textContent];
  };

  // A small line without axes; its last value stands beside it.
  const spark = (points, label, text, from) => {
    const width = 340, height = 84, svg = PT.chart(width, height, label);
    const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
    const x = PT.scale(xs, 0, width - 4, { pad: 0 }), y = PT.scale(from === undefined ? ys : [from, ...ys], height - 4, 22, { pad: 0.04 });
    const d = PT.path(points.map((point) => [x(point[0]), y(point[1])]));
    svg.append(s("path", { class: "area", d: `${d}L${x(xs[xs.length - 1])} ${height}L${x(xs[0])} ${height}Z` }), s("path", { class: "line", d }), s("text", { x: 0, y: 13 }, label), s("text", { class: "name", x: width, y: 13, "text-anchor": "end" }, text(ys[ys.length - 1])));
    return svg;
  };

  const device = () => {
    const host = at("device"), process = samples.filter((one) => one.process_bytes !== null), parts = [h("h3", {}, "Machine")];
    const lines = h("div", { class: "sparks" });
    const line = (list, key, label, text) => { if (list.length > 1) lines.append(spark(list.map((one) => [one.at, one[key]]), label, text, 0)); };
    line(process, "process_cpu", "cores in use by the search", (value) => value.toFixed(1));
    line(process, "process_bytes", "memory of the search", PT.bytes);
    line(samples, "machine_cpu", "whole machine, processor", (value) => `${value.toFixed(0)}%`);
    line(samples, "machine_bytes", "whole machine, memory", PT.bytes);
    host.replaceChildren(...parts, lines);
  };

  // Controls appear only with a token; the server checks it again.
  const ask = async (request, button, note) => {
    button.disabled = true;
    try {
      const answer = await fetch(`/api/request?${of}`, { method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` }, body: JSON.stringify(request) });
      const text = await answer.text();
      note.textContent = answer.ok ? "" : text;
      if (answer.status === 401) { sessionStorage.removeItem("peft-tune-token"); token = null; control(); }
    } catch { note.textContent = "The dashboard does not answer."; }
    button.disabled = false;
  };

  const control = async () => {
    const host = at("control");
    host.hidden = !token;
    if (!token) return;
    const space = await (await fetch(`/api/space?${of}`)).json();
    const note = h("p", { class: "note", role: "alert" });
    const button = (text, request, main) => { const one = h("button", { type: "button", class: main ? "main" : null }, text); one.addEventListener("click", () => ask(typeof request === "function" ? request() : request, one, note)); return one; };
    const fields = space.parameters.map((parameter) => [parameter, field(parameter)]);
    const params = () => Object.fromEntries(fields.filter(([, [, read]]) => read() !== undefined).map(([parameter, [, read]]) => [parameter.name, read()]));
    host.replaceChildren(h("h3", {}, "Control the search"),
      h("div", { class: "row" }, button("Pause", { kind: "pause" }), button("Resume", { kind: "resume" }), button("Stop after this trial", { kind: "stop" })),
      fields.length ? h("details", {}, h("summary", {}, "Try a setting next"), h("div", { class: "fields" }, fields.map(([parameter, [input]]) => h("label", {}, parameter.name, input))), button("Enqueue", () => ({ kind: "enqueue", params: params() }), true)) : "", note);
  };

  // An input for one parameter, and how to read its value.
  const field = ({ distribution, condition }) => {
    if (distribution.kind === "categorical") {
      const choices = distribution.choices, input = h("select", {}, condition ? h("option", { value: "" }, "–") : null, choices.map((choice, index) => h("option", { value: index }, PT.param(choice))));
      return [input, () => (input.value === "" ? undefined : choices[+input.value])];
    }
    const { low, high, step, kind } = distribution, input = h("input", { type: "number", min: low, max: high, step: kind === "int" ? step : step || "any", placeholder: `${PT.number(low)} to ${PT.number(high)}` });
    if (!condition) input.value = kind === "int" ? low : +(distribution.scale === "log" ? Math.sqrt(low * high) : (low + high) / 2).toPrecision(3);
    return [input, () => (input.value === "" ? undefined : Number(input.value))];
  };

  const listen = () => {
    const source = new EventSource(`/api/events?${of}`);
    source.addEventListener("open", () => link("live", "live"));
    source.addEventListener("view", (event) => merge(JSON.parse(event.data)));
    source.addEventListener("now", (event) => {
      now = JSON.parse(event.data);
      samples.push(now.sample);
      if (samples.length > SAMPLES) samples = samples.slice(-SAMPLES);
      if (!document.hidden) { running(); device(); }
    });
    source.addEventListener("fault", (event) => link("lost", event.data));
    // The browser asks again by itself, and then gets everything that changed meanwhile.
    source.addEventListener("error", () => link("lost", "connection lost"));
    addEventListener("pagehide", () => source.close());
  };

  recommendation(PT.view);
  control().catch(() => {});
  listen();
})();
