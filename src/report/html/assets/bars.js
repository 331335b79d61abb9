"use strict";
// Bars: what decides, and what time and memory consist of.
(() => {
  const { s, h } = PT;
  const COLOURS = ["--s1", "--s2", "--s3", "--s4", "--s5"];
  const MOST = 12;

  PT.importance = (host) => {
    const draw = () => {
      const all = PT.view.importance.filter((one) => one.shares.length > 0);
      PT.at("importance").hidden = all.length === 0;
      host.replaceChildren(...all.map((one) => {
        const card = h("div", { class: "card" });
        card.style.maxWidth = "600px";
        const stage = PT.card(card, PT.label(one.metric)), shares = one.shares.slice(0, MOST);
        const width = 380, row = 26, left = 150, svg = PT.chart(width, shares.length * row + 6, `Importance for ${PT.label(one.metric)}`);
        const x = (share) => left + Math.min(1, Math.max(0, share)) * (width - left - 48);
        shares.forEach((share, index) => {
          // Estimated by themselves, the two may cross by the estimates' error.
          const whole = Math.max(share.total, share.first), y = index * row + 4, name = share.param.length > 20 ? `${share.param.slice(0, 19)}…` : share.param;
          const total = s("rect", { x: left, y, width: x(whole) - left, height: 16, rx: 3 }), alone = s("rect", { x: left, y, width: x(share.first) - left, height: 16, rx: 3 });
          total.style.fill = "var(--low)";
          alone.style.fill = "var(--front)";
          svg.append(s("text", { class: "strong", x: left - 9, y: y + 12.5, "text-anchor": "end" }, s("title", {}, share.param), name), total, alone, s("text", { x: x(whole) + 6, y: y + 12.5 }, `${Math.round(whole * 100)}%`));
        });
        stage.append(svg);
        return card;
      }));
    };
    return { host, draw };
  };

  // As many parts as there are colours: the largest of all rows together keep their names.
  const grouped = (rows) => {
    const sums = new Map();
    for (const [name, value] of rows.flatMap((row) => row.parts)) sums.set(name, (sums.get(name) || 0) + value);
    if (sums.size <= COLOURS.length) return rows;
    const kept = [...sums].sort((a, b) => b[1] - a[1]).slice(0, COLOURS.length - 1).map((one) => one[0]);
    return rows.map((row) => {
      const parts = kept.map((name) => [name, row.parts.filter((part) => part[0] === name).reduce((sum, part) => sum + part[1], 0)]);
      const rest = row.parts.filter((part) => !kept.includes(part[0])).reduce((sum, part) => sum + part[1], 0);
      return { ...row, parts: [...parts, ["others", rest]].filter((part) => part[1] > 0) };
    });
  };

  // Stacked bars, one a trial: the front, or what is selected.
  const stacked = (host, title, rowsOf, text) => {
    const legend = h("div", { class: "legend" }), stage = PT.card(host, title);
    host.insertBefore(legend, stage);
    let kept = null;
    const draw = () => {
      const rows = rowsOf(), trials = new Map(PT.view.trials.map((trial) => [trial.number, trial]));
      host.hidden = rows.length === 0;
      if (host.hidden) return;
      const wanted = (row) => (kept ? kept.has(row.trial) : trials.get(row.trial)?.front);
      let shown = rows.filter(wanted);
      if (!shown.length) shown = rows;
      const best = PT.best(), first = shown.find((row) => row.trial === best);
      shown = [...(first ? [first] : []), ...shown.filter((row) => row !== first)].slice(0, MOST);
      shown = grouped(shown);
      const names = [...new Set(shown.flatMap((row) => row.parts.map((part) => part[0])))];
      const colour = (name) => `var(${COLOURS[Math.min(names.indexOf(name), COLOURS.length - 1)]})`;
      legend.replaceChildren(...names.map((name) => { const box = h("i"); box.style.background = colour(name); return h("span", {}, box, name); }));
      const width = PT.width(stage), line = 24, left = 62, svg = PT.chart(width, shown.length * line + 4, title);
      const most = Math.max(...shown.map((row) => row.whole)), x = (value) => (value / most) * (width - left - 84);
      shown.forEach((row, index) => {
        const y = index * line + 3, trial = trials.get(row.trial);
        svg.append(s("text", { class: row.trial === best ? "name" : "strong", x: left - 8, y: y + 13, "text-anchor": "end" }, row.trial === best ? `★ ${row.trial}` : String(row.trial)));
        let from = left;
        for (const [name, value] of row.parts) {
          const bar = s("rect", { x: from, y, width: Math.max(0, x(value) - 0.8), height: 17, rx: 1.5 });
          bar.style.fill = colour(name);
          from += x(value);
          svg.append(bar);
        }
        svg.append(s("text", { x: from + 6, y: y + 13 }, text(row.whole)));
        const field = s("rect", { x: 0, y: y - 3, width, height: line, fill: "transparent" });
        field.addEventListener("pointermove", (event) => { PT.point(trial.number); PT.valueTip(event, `Trial ${row.trial}`, row.parts.map(([name, value]) => [name, `${text(value)} (${((100 * value) / row.whole).toFixed(0)}%)`])); });
        field.addEventListener("pointerleave", PT.noTip);
        svg.append(field);
      });
      stage.replaceChildren(svg);
    };
    // Follows a selection; without one it shows the front.
    const select = (now) => { const next = PT.brushes.size ? now : null; if (next || kept) { kept = next; draw(); } };
    return { host, draw, select };
  };

  // What profiles found: a row each.
  PT.findings = (host) => {
    const gain = (one, value) => (value === null ? "–" : one.metric === "peak_memory" ? `${PT.bytes(value)} saved` : `${value >= 0 ? "+" : ""}${(100 * value).toFixed(1)}%`);
    const draw = () => {
      const all = PT.view.findings;
      PT.at("diagnosis").hidden = all.length === 0;
      const heads = ["trial", "found", "evidence", "what would help", "predicted", "measured"].map((name, index) => h("th", { class: index === 0 || index > 3 ? "n" : "" }, name));
      const row = (one) => h("tr", {}, h("td", { class: "n" }, String(one.trial)), h("td", {}, h("b", {}, one.rule)), h("td", { class: "wide" }, one.evidence), h("td", { class: "wide" }, PT.flags(one.change)), h("td", { class: "n" }, gain(one, one.predicted_gain)), h("td", { class: "n" }, gain(one, one.measured_gain)));
      host.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, all.map(row))));
    };
    return { host, draw };
  };

  // Rows of one part each show nothing that the table does not: trials of a user's own program are such.
  const divided = (rows) => (rows.some((row) => row.parts.filter((part) => part[1] > 0).length > 1) ? rows : []);

  PT.phases = (host) => stacked(host, "Time of a step", () => divided(PT.view.phases.map((one) => ({ trial: one.trial, parts: one.parts, whole: one.parts.reduce((sum, part) => sum + part[1], 0) })).filter((row) => row.whole > 0)), PT.seconds);
  PT.memory = (host) => stacked(host, "Peak memory", () => divided(PT.view.memory.map((one) => ({ trial: one.trial, parts: one.parts.length ? one.parts : [["in use", one.peak]], whole: one.peak })).filter((row) => row.whole > 0)), PT.bytes);
})();
