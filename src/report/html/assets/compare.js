"use strict";
// What the recommended trial wins against the baseline, and any two trials side by side.
(() => {
  const { s, h } = PT;

  // A change between two numbers: a percentage, or how many times as much where that is clearer.
  const change = (from, to) => {
    if (typeof from !== "number" || typeof to !== "number" || !(from > 0) || !(to > 0)) return "";
    const ratio = to / from;
    if (Math.abs(ratio - 1) < 0.0005) return "same";
    return ratio >= 2 || ratio <= 0.5 ? `${PT.number(+ratio.toPrecision(3))} times` : `${ratio > 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(1)}%`;
  };

  // Two bars with the intervals of repeats.
  const bars = (gain) => {
    const width = 300, left = 92, right = 214, svg = PT.chart(width, 52, `${PT.label(gain.metric)}: ${PT.metric(gain.metric, gain.recommended)}, baseline ${PT.metric(gain.metric, gain.baseline)}`);
    const rows = [["recommended", gain.recommended, gain.recommended_interval, "--best"], ["baseline", gain.baseline, gain.baseline_interval, "--other"]];
    const most = Math.max(...rows.map(([, value, share]) => Math.abs(value) * (1 + (share || 0)))) || 1, x = (value) => left + (Math.abs(value) / most) * (right - left);
    rows.forEach(([name, value, share, colour], index) => {
      const y = 4 + index * 25, bar = s("rect", { x: left, y, width: Math.max(1, x(value) - left), height: 17, rx: 3 });
      bar.style.fill = `var(${colour})`;
      svg.append(s("text", { x: 0, y: y + 13 }, name), bar);
      if (share) svg.append(s("path", { class: "whisker", d: `M${x(value * (1 - share))} ${y + 8.5}H${x(value * (1 + share))}M${x(value * (1 - share))} ${y + 4}v9M${x(value * (1 + share))} ${y + 4}v9` }));
      svg.append(s("text", { class: "strong", x: right + 8, y: y + 13 }, PT.metric(gain.metric, value)));
    });
    return svg;
  };

  PT.gains = () => {
    const host = PT.at("gains"), gains = PT.view.recommendation ? PT.view.recommendation.gains : [];
    if (!host || !gains.length) return;
    const verdict = (gain) => (gain.better === null ? "same" : gain.better ? "better" : "worse");
    const note = (gain) => {
      const known = [gain.recommended_interval, gain.baseline_interval].map((one) => one !== null && one !== undefined);
      return known.every(Boolean) ? "± is the 95% interval of repeats" : known[0] ? "± is that of repeats; the baseline was measured once" : known[1] ? "± is that of repeats of the baseline" : "measured once: no interval";
    };
    host.replaceChildren(...gains.map((gain) => h("div", { class: "gain" }, h("div", { class: "quiet" }, PT.label(gain.metric)), h("b", { class: verdict(gain) }, gain.text), bars(gain), h("div", { class: "quiet small" }, note(gain)))));
  };

  // Two trials side by side: the last two that were clicked; at first the baseline and the recommended one.
  PT.compare = (host) => {
    const inputs = [0, 1].map((index) => h("input", { type: "number", min: 0, step: 1, "aria-label": index ? "Second trial" : "First trial" }));
    const stage = PT.card(host, "Two trials side by side", h("span", { class: "row screen" }, ...inputs, h("span", { class: "quiet" }, "or click two marks")));
    inputs.forEach((input, index) => input.addEventListener("change", () => { PT.picked[index] = input.value === "" ? null : +input.value; draw(); PT.changed(); }));
    PT.pick = (number) => { if (PT.picked.includes(number)) return; PT.picked = [PT.picked[1], number]; draw(); PT.changed(); };

    const first = () => {
      const best = PT.best(), finished = PT.view.trials.filter((trial) => trial.state === "complete"), base = PT.view.baseline;
      if (best === null || finished.length < 2) return;
      const other = base !== null && base !== best ? base : (finished.find((trial) => trial.front && trial.number !== best) || finished.find((trial) => trial.number !== best)).number;
      PT.picked = [other, best];
    };
    const rowsOf = (pair) => {
      const view = PT.view, ofTrial = (list, trial) => list.find((one) => one.trial === trial.number);
      const metric = (one, index) => [one.label, ...pair.map((trial) => PT.metricWithInterval(trial, index)), change(pair[0].metrics[index], pair[1].metrics[index])];
      const params = view.params.map((one, index) => [one.name, ...pair.map((trial) => PT.param(trial.params[index]))]);
      const differ = params.filter(([, a, b]) => a !== b).map((row) => [...row, ""]);
      const same = params.filter(([, a, b]) => a === b && a !== "–").map(([name, value]) => `${name} ${value}`);
      const parts = (list, name, text) => {
        const known = pair.map((trial) => ofTrial(list, trial));
        if (known.some((one) => !one || one.parts.length < 2)) return [];
        const names = [...new Set(known.flatMap((one) => one.parts.map((part) => part[0])))];
        const value = (one, part) => (one.parts.find((other) => other[0] === part) || [part, 0])[1];
        return names.map((part) => [`${name}: ${part}`, ...known.map((one) => text(value(one, part))), change(...known.map((one) => value(one, part)))]);
      };
      return { rows: [...view.objectives.map(metric), null, ...differ, null, ...parts(view.phases, "step", PT.seconds), ...parts(view.memory, "memory", PT.bytes)], same };
    };

    const draw = () => {
      if (PT.picked.every((one) => one === null)) first();
      const pair = PT.picked.map((number) => PT.view.trials.find((trial) => trial.number === number));
      inputs.forEach((input, index) => { if (document.activeElement !== input) input.value = PT.picked[index] ?? ""; });
      if (pair.some((one) => !one)) { stage.replaceChildren(h("p", { class: "quiet" }, "Give two numbers of trials, or click two marks above.")); return; }
      const { rows, same } = rowsOf(pair);
      const head = (trial) => h("th", { class: "n", scope: "col" }, `${trial.number === PT.best() ? "★ " : ""}trial ${trial.number}${trial.number === PT.view.baseline ? ", baseline" : ""}`);
      const copy = PT.copyOf ? h("tr", { class: "screen" }, h("td", {}), ...pair.map((trial) => h("td", { class: "n" }, h("button", { type: "button", onclick: () => PT.copyOf(trial.number) }, "Copy with changes"))), h("td", {})) : null;
      const body = rows.map((row) => (row ? h("tr", {}, row.map((cell, index) => (index ? h("td", { class: "n" }, cell) : h("th", { scope: "row" }, cell)))) : h("tr", { class: "gap" }, h("td", { colspan: 4 }))));
      stage.replaceChildren(h("div", { class: "scroll", tabindex: 0 }, h("table", { class: "sides" }, h("thead", {}, h("tr", {}, h("td", {}), ...pair.map(head), h("th", { class: "n", scope: "col" }, "change"))), h("tbody", {}, copy, body))), h("p", { class: "quiet small" }, same.length ? `The same in both: ${same.join(", ")}.` : ""));
    };
    return { host, draw };
  };
})();
