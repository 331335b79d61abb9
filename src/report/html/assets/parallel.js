"use strict";
// Parallel coordinates: one axis a setting or objective, one line a trial.
(() => {
  const { s } = PT;
  const NONE = "–";

  // An axis for params (`p0`, ...) and metrics (`m0`, ...): where a trial passes, and its labels.
  const axisOf = (key, name, values, number, log, top, bottom) => {
    if (number) {
      const scale = PT.scale(values.filter((value) => value !== null), bottom, top, { log, pad: 0.02, name: key[0] === "m" ? name : "" });
      const gap = values.some((value) => value === null);
      return {
        key, name, scale, number: true,
        place: (value) => (value === null ? bottom + 22 : PT.held(scale(value), top, bottom)),
        labels: [...scale.ticks.filter((tick) => scale(tick) >= top - 1 && scale(tick) <= bottom + 1).map((tick) => [scale(tick), scale.text(tick)]), ...(gap ? [[bottom + 22, NONE]] : [])],
      };
    }
    const text = (value) => (value === null ? NONE : PT.param(value));
    const all = [...new Set(values.map(text))].sort((a, b) => (a === NONE) - (b === NONE) || a.localeCompare(b, "en", { numeric: true }));
    const place = (value) => (all.length < 2 ? (top + bottom) / 2 : top + ((bottom - top) * all.indexOf(text(value))) / (all.length - 1));
    return { key, name, place, number: false, labels: all.map((one) => [place(one === NONE ? null : one), one.length > 14 ? `${one.slice(0, 13)}…` : one]) };
  };

  PT.parallel = (host, colour) => {
    let lines = new Map(), svg = null, brushed = null;

    const draw = () => {
      const view = PT.view, top = 44, height = 380, bottom = height - 36;
      const varying = view.params.map((one, index) => [one, index]).filter(([, index]) => new Set(view.trials.map((trial) => JSON.stringify(trial.params[index]))).size > 1);
      const count = varying.length + view.objectives.length;
      const width = Math.max(host.clientWidth || 600, count * 96), step = (width - 120) / Math.max(1, count - 1);
      const axes = [
        ...varying.map(([one, index]) => axisOf(`p${index}`, one.name, view.trials.map((trial) => trial.params[index]), one.number, one.log, top, bottom)),
        ...view.objectives.map((one, index) => axisOf(`m${index}`, one.metric, PT.reach(view.trials.map((trial) => trial.metrics[index]).filter((value) => value !== null), one.maximize), true, false, top, bottom)),
      ].map((axis, index) => Object.assign(axis, { x: 60 + index * step }));
      svg = PT.chart(width, height, `Parallel coordinates of ${view.trials.length} trials over ${count} axes`);
      svg.style.width = `${width}px`;
      drawLines(axes);
      for (const axis of axes) svg.append(drawAxis(axis, top, bottom, Math.min(step, 2 * axis.x, 2 * (width - axis.x))));
      host.replaceChildren(svg);
    };

    const drawLines = (axes) => {
      const view = PT.view, by = +colour.value || 0, objective = view.objectives[by];
      const known = view.trials.map((trial) => trial.metrics[by]).filter((value) => value !== null).sort((a, b) => a - b);
      // The first place of each value: looked up, as a search for each line is quadratic.
      const rank = new Map(known.map((value, index) => [value, index]).reverse());
      const share = (value) => {
        const place = known.length < 2 ? 1 : rank.get(value) / (known.length - 1);
        return objective && objective.maximize ? place : 1 - place;
      };
      lines = new Map();
      const order = { stopped: 0, broken: 0, "": 1, front: 2, best: 3 };
      const places = view.trials.filter(PT.drawn).map((trial) => [trial, axes.map((axis) => { const value = PT.value(trial, axis.key); return axis.key[0] === "m" && value === null ? null : [axis.x, axis.place(value)]; }).filter((one) => one)]);
      places.sort(([a], [b]) => order[PT.kind(a)] - order[PT.kind(b)]);
      for (const [trial, points] of places) {
        const value = trial.metrics[by], line = s("path", { class: `trial ${PT.kind(trial)}${value === null || value === undefined ? " none" : ""}`, d: PT.path(points) });
        if (value !== null && value !== undefined) line.style.stroke = `color-mix(in oklab, var(--high) ${Math.round(share(value) * 100)}%, var(--low))`;
        lines.set(trial.number, { line, points, trial });
        svg.append(line);
      }
      svg.addEventListener("pointermove", (event) => {
        if (brushed) return;
        const found = nearest(PT.place(svg, event));
        if (found) PT.trialTip(event, found.trial); else PT.noTip();
      });
      svg.addEventListener("pointerleave", () => { if (!brushed) PT.noTip(); });
    };

    // The kept line that passes nearest to a place, within eight units.
    const nearest = ([px, py]) => {
      let best = null, least = 8;
      for (const one of lines.values()) {
        if (!PT.kept(one.trial)) continue;
        for (let index = 1; index < one.points.length; index++) {
          const [[ax, ay], [bx, by]] = [one.points[index - 1], one.points[index]];
          if (px < ax || px > bx) continue;
          const distance = Math.abs(ay + ((by - ay) * (px - ax)) / (bx - ax) - py);
          if (distance < least) { least = distance; best = one; }
        }
      }
      return best;
    };

    const drawAxis = (axis, top, bottom, room) => {
      const group = s("g", { "data-axis": axis.name }), short = Math.max(6, Math.floor(room / 7.8));
      const label = PT.label(axis.name), objective = PT.view.objectives.find((one) => axis.key[0] === "m" && one.metric === axis.name);
      group.append(s("text", { class: "name", x: axis.x, y: 16, "text-anchor": "middle" }, s("title", {}, label), label.length > short ? `${label.slice(0, short - 1)}…` : label));
      if (objective) group.append(s("text", { x: axis.x, y: 31, "text-anchor": "middle" }, objective.maximize ? "↑ better" : "↓ better"));
      group.append(s("line", { class: "axis", x1: axis.x, x2: axis.x, y1: top, y2: bottom, "stroke-width": 2 }));
      for (const [place, text] of axis.labels) group.append(s("text", { class: "strong", x: axis.x + 7, y: place + 4, "paint-order": "stroke", stroke: "var(--card)", "stroke-width": 3.5, "stroke-linejoin": "round" }, text));
      const brush = PT.brushes.get(axis.key);
      if (brush && brush.on) group.append(s("rect", { class: "brush", x: axis.x - 9, width: 18, y: brush.on[0], height: brush.on[1] - brush.on[0] }));
      else if (brush && brush.range && axis.scale) { const [a, b] = brush.range.map(axis.scale).sort((p, q) => p - q); group.append(s("rect", { class: "brush", x: axis.x - 9, width: 18, y: Math.max(a, top), height: Math.max(2, Math.min(b, bottom) - Math.max(a, top)) })); }
      const track = s("rect", { class: "track", x: axis.x - 14, width: 28, y: top - 8, height: bottom - top + 36 });
      track.style.touchAction = "none";
      track.addEventListener("pointerdown", (event) => { brushed = PT.place(svg, event)[1]; track.setPointerCapture(event.pointerId); PT.noTip(); });
      track.addEventListener("pointermove", (event) => { if (brushed !== null) keep(axis, brushed, PT.place(svg, event)[1], group); });
      track.addEventListener("pointerup", (event) => {
        const from = brushed;
        brushed = null;
        if (from !== null && Math.abs(PT.place(svg, event)[1] - from) < 4) PT.brushes.delete(axis.key);
        PT.redraw();
      });
      group.append(track);
      return group;
    };

    // Keeps the trials that pass an axis between two heights.
    const keep = (axis, from, to, group) => {
      const on = [Math.min(from, to), Math.max(from, to)];
      const brush = (value) => { const known = !(axis.key[0] === "m" && value === null); return known && axis.place(value) >= on[0] - 1 && axis.place(value) <= on[1] + 1; };
      PT.brushes.set(axis.key, Object.assign(brush, { on }));
      let shape = group.querySelector(".brush");
      if (!shape) group.append((shape = s("rect", { class: "brush", x: axis.x - 9, width: 18, "pointer-events": "none" })));
      shape.setAttribute("y", on[0]);
      shape.setAttribute("height", on[1] - on[0]);
      PT.changed();
    };

    // A click near a line picks its trial.
    const pick = (event) => { const found = svg && event.target.classList.contains("track") ? null : nearest(PT.place(svg, event)); if (found) PT.pick(found.trial.number); };
    host.addEventListener("click", pick);
    const select = (kept) => { for (const [number, one] of lines) one.line.classList.toggle("out", !kept.has(number)); };
    const point = (number) => { for (const [other, one] of lines) one.line.classList.toggle("hot", other === number); };
    return { host, draw, select, point };
  };
})();
