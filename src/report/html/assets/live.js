"use strict";
// The live page: news from the study as it runs, and what may be asked of it.
(() => {
  const { h, s, at } = PT;
  const SAMPLES = 180, AGAIN = 5000;
  const name = PT.view.study.name, of = `study=${encodeURIComponent(name)}`;
  // Drawing takes at most this share of the time: thousands of trials take a second.
  const SHARE = 0.2;
  let samples = [], now = null, stale = false, timer = null, pressed = false, drawn = { at: -Infinity, took: 0 };

  const link = (state, text) => { const pill = at("link"); pill.dataset.state = state; pill.textContent = text; };

  // Values of trials that changed, put into the view that the page has.
  const merge = (news) => {
    const view = PT.view, byNumber = (list, fresh, key) => {
      const kept = new Map(list.map((one) => [key(one), one]));
      for (const one of fresh) kept.set(key(one), one);
      return [...kept.values()];
    };
    Object.assign(view, news.head);
    if (news.whole) for (const list of ["trials", "curves", "phases", "memory"]) view[list] = [];
    view.trials = byNumber(view.trials, news.trials, (one) => one.number).sort((a, b) => a.number - b.number);
    view.curves = byNumber(view.curves.filter((one) => !news.repeated.includes(one.trial)), news.curves, (one) => `${one.trial} ${one.name}`);
    view.phases = byNumber(view.phases, news.phases, (one) => one.trial);
    view.memory = byNumber(view.memory, news.memory, (one) => one.trial);
    at("counts").textContent = `${view.counts_text} · ${PT.seconds(view.study.wall_s)} of trials`;
    recommendation(view);
    stale = true;
    soon();
  };

  // Draws what came, once that is due: not while nobody sees it, and not under a pointer that drags.
  const soon = () => {
    if (!stale || timer !== null || document.hidden || pressed) return;
    timer = setTimeout(() => {
      timer = null;
      if (document.hidden || pressed) return;
      stale = false;
      const began = performance.now();
      PT.redraw();
      requestAnimationFrame(() => setTimeout(() => { drawn = { at: performance.now(), took: performance.now() - began }; soon(); }));
    }, Math.max(0, drawn.at + drawn.took * (1 / SHARE - 1) - performance.now()));
  };
  document.addEventListener("visibilitychange", soon);
  addEventListener("pointerdown", () => { pressed = true; }, true);
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { pressed = false; soon(); }, true);

  const recommendation = (view) => {
    const one = view.recommendation, section = at("recommendation");
    section.hidden = !one;
    const known = JSON.stringify(one);
    if (!one || section.dataset.known === known) return;
    section.dataset.known = known;
    const chips = Object.entries(one.settings).map(([key, value]) => h("li", {}, h("span", {}, `${key} `), h("b", {}, PT.param(value))));
    const commands = one.commands.map((command) => h("div", { class: "command" }, h("p", {}, command.purpose), h("pre", { tabindex: "0" }, h("code", {}, PT.flags(command.line)))));
    section.replaceChildren(h("h2", {}, title()), h("div", { class: "card hero" }, h("p", { class: "reason" }, h("span", { class: "star", "aria-hidden": "true" }, "★ "), `${one.reason}.`), one.gains.length ? h("div", { class: "gains", id: "gains" }) : one.against_baseline ? h("p", { class: "against" }, `${one.against_baseline}.`) : null, h("ul", { class: "chips" }, chips), one.confirmation.length ? [h("h3", {}, "Confirmed by repeats"), h("ul", { class: "chips", id: "confirmation" })] : null, commands.length ? h("h3", {}, "Use it") : null, commands, one.recipe ? h("details", {}, h("summary", {}, "Complete recipe"), h("pre", { tabindex: "0" }, h("code", {}, one.recipe))) : null));
    PT.gains();
    PT.confirmation();
    PT.copyButtons();
  };

  const title = () => (now && now.running ? "Recommended so far" : "Recommended");

  // The trials under way.
  const running = () => {
    const state = now.running ? (now.paused ? "paused" : "running") : "ended";
    const stage = now.outlook ? now.outlook.stage : "trials";
    const text = { running: { confirming: "confirming", measuring_again: "measuring again" }[stage] || "running", paused: "paused", ended: "not running" }[state];
    const trials = PT.view.trials.filter((trial) => trial.state === "running");
    const parts = [h("div", { class: "head" }, h("h3", {}, "Search"), h("span", { class: "pill", "data-state": state }, text))];
    if (now.outlook) parts.push(...budget(now.outlook));
    for (const one of now.trials) {
      const trial = trials.find((other) => other.number === one.number);
      const params = trial ? PT.view.params.map((param, index) => [param.name, trial.params[index]]).filter((pair) => pair[1] !== null) : [];
      parts.push(h("div", { class: "row" }, h("span", { class: "big" }, `Trial ${one.number}`), h("span", { class: "quiet" }, [one.phase || "starting", one.steps ? `${one.steps} steps` : "", PT.seconds(one.elapsed_s)].filter(Boolean).join(", ")), one.tokens_per_s === null ? null : h("span", {}, `${PT.metric("throughput", one.tokens_per_s)} tokens/s`)));
      parts.push(h("ul", { class: "chips" }, params.map(([key, value]) => h("li", {}, h("span", {}, `${key} `), h("b", {}, PT.param(value))))));
      if (one.curve.length > 1) parts.push(spark(one.curve, "training loss", (value) => value.toFixed(4)));
    }
    if (!now.trials.length) parts.push(h("p", { class: "quiet" }, now.running ? (now.paused ? "Paused: no trial starts until the search resumes." : stage === "trials" ? "Between two trials." : "") : "No process runs this study. A search on it continues where it stopped."));
    const waits = now.queue.map((one) => h("li", {}, h("b", {}, one.kind), h("span", {}, one.params ? ` ${Object.entries(one.params).map(([key, value]) => `${key} ${PT.param(value)}`).join(", ")}` : "")));
    if (waits.length) parts.push(h("h3", {}, "Queue"), h("ul", { class: "chips" }, waits));
    for (const why of now.refused) parts.push(h("p", { class: "note" }, `Refused: ${why}`));
    at("running").replaceChildren(...parts.filter((part) => part));
    const heading = at("recommendation").querySelector("h2");
    if (heading) heading.textContent = title();
    const allowed = { Pause: state === "running", "Resume": state === "paused", "Stop after this trial": state !== "ended" };
    for (const button of at("control").querySelectorAll(".row button")) button.disabled = !allowed[button.textContent];
  };

  // What of the budget is spent, and how long the rest takes.
  const budget = (outlook) => [
    outlook.share === null ? null : h("progress", { max: 1, value: outlook.share, "aria-label": "Share of the budget that is spent" }),
    h("p", { class: "quiet" }, `${now.spent}${outlook.left ? `; ${outlook.left}` : ""}${outlook.paused && outlook.left_s ? " once it goes on" : ""}`),
  ];

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
    host.replaceChildren(...parts, lines.childElementCount ? lines : h("p", { class: "quiet" }, "waiting for a second look"));
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
    // The browser asks again by itself, and then gets everything; where it was refused it gives up, and is asked again here.
    source.addEventListener("error", () => {
      link("lost", "connection lost");
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN);
    });
    addEventListener("pagehide", () => source.close(), { once: true });
  };

  recommendation(PT.view);
  PT.control().catch(() => {});
  listen();
})();
