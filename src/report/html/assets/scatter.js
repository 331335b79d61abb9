"use strict";
// Two objectives against each other.
(() => {
  const { s } = PT;

  // The mark of a trial, the same in every chart: a disc on the front, a star for the recommended, a ring elsewhere.
  PT.star = (x, y, r) => {
    const points = [];
    for (let corner = 0; corner < 10; corner++) {
      const angle = (Math.PI * corner) / 5 - Math.PI / 2, length = corner % 2 ? r * 0.45 : r;
      points.push([x + length * Math.cos(angle), y + length * Math.sin(angle)]);
    }
    return PT.path(points) + "Z";
  };
  PT.mark = (kind, x, y) => {
    if (kind === "best") return s("path", { class: "dot best", d: PT.star(x, y, 10) });
    if (kind === "stopped") return s("path", { class: "dot stopped", d: `M${x - 3} ${y - 3}L${x + 3} ${y + 3}M${x - 3} ${y + 3}L${x + 3} ${y - 3}` });
    return s("circle", { class: `dot ${kind}`, cx: x.toFixed(1), cy: y.toFixed(1), r: (kind === "front" ? 5 : 3.2) * (PT.view.trials.length > 300 ? 0.78 : 1) });
  };
  // Around the mark of the baseline.
  PT.square = (x, y) => s("rect", { class: "base", x: x - 7, y: y - 7, width: 14, height: 14 });
  PT.legend = () => {
    const one = (kind, text) => PT.h("span", {}, fill(kind), text);
    const fill = (kind) => {
      const svg = s("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" });
      svg.append(kind === "best" ? s("path", { class: "dot best", d: PT.star(8, 8, 8) }) : PT.mark(kind, 8, 8));
      return svg;
    };
    const view = PT.view, parts = [];
    if (view.recommendation) parts.push(one("best", "recommended"));
    parts.push(one("front", "on the front"), one("", "beaten by another"));
    if (view.trials.some((trial) => trial.number === view.baseline)) parts.push(PT.h("span", {}, (() => { const svg = s("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }); svg.append(PT.square(8, 8)); return svg; })(), "baseline"));
    if (view.trials.some((trial) => trial.intervals)) parts.push(PT.h("span", {}, "bars: 95% intervals of repeats"));
    if (view.trials.some((trial) => trial.state === "complete" && !trial.feasible)) parts.push(one("broken", "breaks a bound"));
    if (view.trials.some((trial) => trial.state === "pruned")) parts.push(one("stopped", "stopped early, where it stood; on the edge where that lies beyond"));
    return parts;
  };

  // The corner line of the points that no other beats in these two.
  const stairs = (points, x, y, xMax, yMax) => {
    const sorted = [...points].sort((a, b) => (xMax ? b[0] - a[0] : a[0] - b[0]) || (yMax ? b[1] - a[1] : a[1] - b[1]));
    const corners = [];
    let best = yMax ? -Infinity : Infinity;
    for (const [vx, vy] of sorted) {
      if (yMax ? vy <= best : vy >= best) continue;
      if (corners.length) corners.push([x(vx), y(best)]);
      corners.push([x(vx), y(vy)]);
      best = vy;
    }
    return corners;
  };

  // A chart of metrics `xi` and `yi` in `host`.
  PT.scatter = (host, xi, yi) => {
    let marks = new Map(), svg = null, started = null, shape = null;
    const keys = [`m${xi}`, `m${yi}`];

    const draw = () => {
      const view = PT.view, trials = view.trials.filter((trial) => trial.metrics[xi] !== null && trial.metrics[yi] !== null && trial.state === "complete" && PT.drawn(trial));
      // What was stopped early may stand anywhere: it does not decide the axes.
      const stopped = view.trials.filter((trial) => trial.metrics[xi] !== null && trial.metrics[yi] !== null && trial.state === "pruned" && PT.drawn(trial));
      const [xo, yo] = [view.objectives[xi], view.objectives[yi]];
      const width = PT.width(host), height = Math.round(Math.min(width * 0.78, 400));
      svg = PT.chart(width, height, `${yo.label} against ${xo.label}, ${trials.length} trials`);
      const values = (index) => PT.reach(trials.map((trial) => trial.metrics[index]), view.objectives[index].maximize);
      const y0 = PT.scale(values(yi), height - 44, 30, { name: yo.metric });
      const margin = 14 + Math.max(...y0.ticks.map((tick) => y0.text(tick).length), 2) * 6.6;
      const box = { left: margin, right: width - 10, top: 30, bottom: height - 44 };
      const x = PT.scale(values(xi), box.left, box.right, { name: xo.metric, ticks: width < 420 ? 4 : 6 }), y = y0;
      PT.frame(svg, box, x, y, { x: `${xo.label} ${xo.maximize ? "→" : "←"} better`, y: `${yo.label} ${yo.maximize ? "↑" : "↓"} better` });
      const feasible = trials.filter((trial) => trial.feasible).map((trial) => [trial.metrics[xi], trial.metrics[yi]]);
      const beyond = trials.length - trials.filter((trial) => [[x, xi, box.left, box.right], [y, yi, box.top, box.bottom]].every(([scale, index, a, b]) => PT.held(scale(trial.metrics[index]), a, b) === scale(trial.metrics[index]))).length;
      if (beyond) svg.append(s("text", { x: box.right, y: 12, "text-anchor": "end" }, `${beyond} beyond, on the edge`));
      svg.append(s("path", { class: "stairs", d: PT.path(stairs(feasible, x, y, xo.maximize, yo.maximize).map(([px, py]) => [PT.held(px, box.left, box.right), PT.held(py, box.top, box.bottom)])) }));
      const field = s("rect", { class: "field", x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top });
      svg.append(field);
      marks = new Map();
      const order = { stopped: -1, broken: 0, "": 1, front: 2, best: 3 };
      for (const trial of [...stopped, ...trials].sort((a, b) => order[PT.kind(a)] - order[PT.kind(b)])) {
        const [px, py] = [PT.held(x(trial.metrics[xi]), box.left, box.right), PT.held(y(trial.metrics[yi]), box.top, box.bottom)], mark = PT.mark(PT.kind(trial), px, py);
        mark.style.pointerEvents = "none";
        marks.set(trial.number, { mark, px, py, trial });
        svg.append(whiskers(trial, x, y, box, px, py), mark);
        if (trial.number === view.baseline) svg.append(PT.square(px, py));
      }
      const brush = PT.brushes.get(keys[0]);
      if (brush && brush.range && PT.brushes.get(keys[1])?.range) {
        const other = PT.brushes.get(keys[1]).range, at = (scale, range) => [scale(range[0]), scale(range[1])].sort((a, b) => a - b);
        const [l, r] = at(x, brush.range), [t, b] = at(y, other);
        svg.append(s("rect", { class: "brush", x: l, y: t, width: r - l, height: b - t, "pointer-events": "none" }));
      }
      watch(x, y, box);
      host.replaceChildren(svg);
    };

    // The intervals of what repeats measured.
    const whiskers = (trial, x, y, box, px, py) => {
      const along = (index, scale, a, b, path) => { const known = PT.interval(trial, index); return known ? path(...known.map((value) => PT.held(scale(value), a, b))) : ""; };
      const d = along(xi, x, box.left, box.right, (a, b) => `M${a} ${py}H${b}`) + along(yi, y, box.top, box.bottom, (a, b) => `M${px} ${a}V${b}`);
      return d ? s("path", { class: `whisker ${PT.kind(trial)}`, d }) : "";
    };

    const nearest = (event, within) => {
      const [px, py] = PT.place(svg, event);
      let best = null, least = within * within;
      for (const one of marks.values()) {
        const distance = (one.px - px) ** 2 + (one.py - py) ** 2;
        // Of marks at one place, the one on top.
        if (distance <= least) { least = distance; best = one; }
      }
      return best;
    };
    const hold = (value, [low, high]) => value !== null && value >= low && value <= high;
    const brushOf = (range) => Object.assign((value) => hold(value, range), { range });

    const watch = (x, y, box) => {
      const clamp = ([px, py]) => [Math.min(Math.max(px, box.left), box.right), Math.min(Math.max(py, box.top), box.bottom)];
      svg.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "touch" || event.button !== 0) return;
        started = clamp(PT.place(svg, event));
        svg.setPointerCapture(event.pointerId);
      });
      svg.addEventListener("pointermove", (event) => {
        if (!started) {
          const found = nearest(event, 22);
          if (found) PT.trialTip(event, found.trial); else PT.noTip();
          return;
        }
        const now = clamp(PT.place(svg, event));
        if (!shape) svg.append((shape = s("rect", { class: "brush", "pointer-events": "none" })));
        for (const [name, value] of Object.entries({ x: Math.min(started[0], now[0]), y: Math.min(started[1], now[1]), width: Math.abs(now[0] - started[0]), height: Math.abs(now[1] - started[1]) })) shape.setAttribute(name, value);
      });
      svg.addEventListener("pointerup", (event) => {
        if (!started) { const found = nearest(event, 30); if (found) { PT.trialTip(event, found.trial); PT.pick(found.trial.number); } return; }
        const from = started, now = clamp(PT.place(svg, event));
        started = shape = null;
        if (Math.abs(now[0] - from[0]) < 5 || Math.abs(now[1] - from[1]) < 5) {
          const found = nearest(event, 14);
          if (found) { PT.pick(found.trial.number); return; }
          for (const key of keys) PT.brushes.delete(key);
        } else {
          const range = (scale, a, b) => [scale.invert(a), scale.invert(b)].sort((p, q) => p - q);
          PT.brushes.set(keys[0], brushOf(range(x, from[0], now[0])));
          PT.brushes.set(keys[1], brushOf(range(y, from[1], now[1])));
        }
        PT.redraw();
      });
      svg.addEventListener("pointerleave", () => { if (!started) PT.noTip(); });
    };

    const select = (kept) => { for (const [number, one] of marks) { one.mark.classList.toggle("out", !kept.has(number)); one.mark.classList.toggle("picked", PT.picked.includes(number)); } };
    const point = (number) => { for (const [other, one] of marks) one.mark.classList.toggle("hot", other === number); };
    return { host, draw, select, point };
  };
})();
