"use strict";
// Courses: how the front grew, and how trials learned.
(() => {
  const { s, h } = PT;
  const HEIGHT = 300;

  // Head and stage of a card; the stage is drawn again and again.
  PT.card = (host, title, ...tools) => {
    const stage = h("div", { class: "stage" });
    host.replaceChildren(h("div", { class: "head" }, h("h3", {}, title), ...tools), stage);
    return stage;
  };

  PT.growth = (host) => {
    const over = h("select", { "aria-label": "Horizontal axis" }, h("option", { value: "time" }, "over time"), h("option", { value: "trials" }, "over trials"));
    const stage = PT.card(host, "How the front grew", over);
    const draw = () => {
      const growth = PT.view.growth;
      host.hidden = !growth || growth.points.length < 2;
      if (host.hidden) return;
      const at = over.value === "time" ? (point) => point.elapsed_s : (point) => point.trial + 1;
      const width = PT.width(stage), box = { left: 48, right: width - 12, top: 26, bottom: HEIGHT - 42 };
      const svg = PT.chart(width, HEIGHT, "Hypervolume of the front during the search");
      const x = PT.scale([0, ...growth.points.map(at)], box.left, box.right, { pad: 0.01, zero: true, time: over.value === "time" }), y = PT.scale([0, 1], box.bottom, box.top, { pad: 0, zero: true });
      y.text = (tick) => `${Math.round(tick * 100)}%`;
      PT.frame(svg, box, x, y, { x: over.value === "time" ? "time in trials" : "trials", y: "hypervolume, % of now" });
      const points = [[x(0), y(0)]];
      for (const point of growth.points) points.push([x(at(point)), points[points.length - 1][1]], [x(at(point)), y(point.share)]);
      const d = PT.path(points);
      svg.append(s("path", { class: "area", d: `${d}L${points[points.length - 1][0]} ${y(0)}Z` }), s("path", { class: "line", d }));
      svg.addEventListener("pointermove", (event) => {
        const value = x.invert(PT.place(svg, event)[0]), point = [...growth.points].reverse().find((one) => at(one) <= value) || growth.points[0];
        PT.valueTip(event, `After trial ${point.trial}`, [["hypervolume", `${point.volume.toExponential(4)}, ${(point.share * 100).toFixed(1)}% of now`], ["time in trials", PT.seconds(point.elapsed_s)]]);
      });
      svg.addEventListener("pointerleave", PT.noTip);
      stage.replaceChildren(svg);
    };
    over.addEventListener("change", draw);
    return { host, draw };
  };

  // An objective trial by trial, and the best so far among those that keep every bound.
  PT.history = (host) => {
    const which = h("select", { "aria-label": "Objective" });
    const stage = PT.card(host, "Trial by trial, and the best so far", which);
    let marks = new Map();
    const draw = () => {
      const view = PT.view, wanted = Math.min(+which.value || 0, view.objectives.length - 1), one = view.objectives[wanted];
      const trials = view.trials.filter((trial) => trial.state === "complete" && trial.metrics[wanted] !== null);
      host.hidden = !one || trials.length < 2;
      if (host.hidden) return;
      which.replaceChildren(...view.objectives.map((other, index) => h("option", { value: index, selected: index === wanted }, other.label)));
      const width = PT.width(stage), svg = PT.chart(width, HEIGHT, `${one.label} of ${trials.length} trials and the best so far`);
      const y = PT.scale(PT.reach(trials.map((trial) => trial.metrics[wanted]), one.maximize), HEIGHT - 42, 26, { name: one.metric });
      const box = { left: 14 + Math.max(...y.ticks.map((tick) => y.text(tick).length)) * 6.6, right: width - 12, top: 26, bottom: HEIGHT - 42 };
      const x = PT.scale([0, ...trials.map((trial) => trial.number)], box.left, box.right, { pad: 0.01, zero: true });
      PT.frame(svg, box, x, y, { x: "trial", y: `${one.label} ${one.maximize ? "↑" : "↓"} better` });
      const at = (trial) => [x(trial.number), PT.held(y(trial.metrics[wanted]), box.top, box.bottom)], steps = [];
      let best = null;
      for (const trial of trials.filter((other) => other.feasible)) {
        const value = trial.metrics[wanted];
        if (best !== null && (one.maximize ? value <= best : value >= best)) continue;
        if (best !== null) steps.push([x(trial.number), PT.held(y(best), box.top, box.bottom)]);
        steps.push(at(trial));
        best = value;
      }
      if (steps.length) steps.push([box.right, steps[steps.length - 1][1]]);
      marks = new Map(trials.filter(PT.drawn).map((trial) => [trial.number, { mark: PT.mark(PT.kind(trial), ...at(trial)), place: at(trial), trial }]));
      svg.append(...[...marks.values()].map((known) => known.mark), s("path", { class: "line", d: PT.path(steps) }));
      svg.addEventListener("pointermove", (event) => {
        const [px, py] = PT.place(svg, event), near = [...marks.values()].map((known) => [Math.hypot(known.place[0] - px, known.place[1] - py), known.trial]).reduce((a, b) => (b[0] < a[0] ? b : a), [16, null]);
        if (near[1]) PT.trialTip(event, near[1]); else PT.noTip();
      });
      svg.addEventListener("pointerleave", PT.noTip);
      stage.replaceChildren(svg);
    };
    which.addEventListener("change", () => { draw(); PT.changed(); });
    const each = (name, holds) => { for (const [number, known] of marks) known.mark.classList.toggle(name, holds(number)); };
    return { host, draw, select: (kept) => each("out", (number) => !kept.has(number)), point: (number) => each("hot", (other) => other === number) };
  };

  PT.curves = (host) => {
    const which = h("select", { "aria-label": "Which curves" });
    const stage = PT.card(host, "How trials learned", which);
    let paths = new Map();

    const draw = () => {
      const all = PT.view.curves, names = [...new Set(all.map((curve) => curve.name))].sort();
      host.hidden = names.length === 0;
      if (host.hidden) return;
      const wanted = names.includes(which.value) ? which.value : names.includes("training loss") ? "training loss" : names[0];
      which.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === wanted }, name)));
      const trials = new Map(PT.view.trials.map((trial) => [trial.number, trial]));
      const order = { stopped: 0, broken: 0, "": 1, front: 2, best: 3 };
      const curves = all.filter((curve) => curve.name === wanted && trials.has(curve.trial)).map((curve) => ({ ...curve, kind: PT.kind(trials.get(curve.trial)) })).sort((a, b) => order[a.kind] - order[b.kind]);
      const width = PT.width(stage), svg = PT.chart(width, HEIGHT, `${wanted} of ${curves.length} trials`);
      const xs = curves.flatMap((curve) => curve.points.map((point) => point[0])), ys = curves.flatMap((curve) => curve.points.map((point) => point[1]));
      // A few exploding losses must not flatten all the others.
      const sorted = [...ys].sort((a, b) => a - b), cut = sorted[Math.floor(sorted.length * 0.995)], high = Math.min(sorted[sorted.length - 1], cut + (cut - sorted[0]) * 0.3);
      const box = { left: 48, right: width - 12, top: 26, bottom: HEIGHT - 42 };
      const x = PT.scale([0, ...xs], box.left, box.right, { pad: 0.01, zero: true }), y = PT.scale(ys.filter((value) => value <= high), box.bottom, box.top);
      PT.frame(svg, box, x, y, { x: curves[0] ? curves[0].over : "", y: `${wanted} (nats)`.replace(/^(?!.*loss)(.*) \(nats\)$/, "$1") });
      paths = new Map();
      for (const curve of curves) {
        const points = curve.points.filter((point) => point[1] <= high * 1.5).map((point) => [x(point[0]), Math.max(box.top, y(point[1]))]);
        const shape = points.length === 1 ? s("circle", { class: `curve ${curve.kind}`, cx: points[0][0], cy: points[0][1], r: 3 }) : s("path", { class: `curve ${curve.kind}`, d: PT.path(points) });
        if (!paths.has(curve.trial)) paths.set(curve.trial, []);
        paths.get(curve.trial).push({ shape, points, trial: trials.get(curve.trial) });
        svg.append(shape);
      }
      svg.addEventListener("pointermove", (event) => {
        const [px, py] = PT.place(svg, event);
        let best = null, least = 14;
        for (const one of [...paths.values()].flat()) {
          if (!PT.kept(one.trial)) continue;
          for (const [ax, ay] of one.points) { const distance = Math.hypot(ax - px, ay - py); if (distance < least) { least = distance; best = one; } }
        }
        if (best) PT.trialTip(event, best.trial); else PT.noTip();
      });
      svg.addEventListener("pointerleave", PT.noTip);
      stage.replaceChildren(svg);
    };
    which.addEventListener("change", () => { draw(); PT.changed(); });
    const each = (name, holds) => { for (const [number, shapes] of paths) for (const one of shapes) one.shape.classList.toggle(name, holds(number)); };
    return { host, draw, select: (kept) => each("out", (number) => !kept.has(number)), point: (number) => each("hot", (other) => other === number) };
  };

  // Predicted against measured values, with the line on which they are equal.
  PT.predicted = (host) => {
    const draw = () => {
      const all = PT.view.predictions.filter((one) => one.points.length > 0);
      PT.at("predictions").hidden = all.length === 0;
      host.replaceChildren(...all.map((one) => {
        const card = h("div", { class: "card" }), stage = PT.card(card, PT.label(one.metric));
        card.style.maxWidth = "600px";
        const width = PT.width(host.parentNode) > 800 ? 560 : PT.width(host.parentNode), height = 300, values = one.points.flatMap((point) => [point[1], point[2]]);
        const svg = PT.chart(width, height, `Predicted and measured ${PT.label(one.metric)}`), box = { left: 76, right: width - 10, top: 26, bottom: height - 42 };
        const log = values.every((value) => value > 0) && Math.max(...values) / Math.min(...values) > 20;
        const x = PT.scale(values, box.left, box.right, { name: one.metric, log, ticks: 4 }), y = PT.scale(values, box.bottom, box.top, { name: one.metric, log });
        PT.frame(svg, box, x, y, { x: "predicted", y: "measured" });
        svg.append(s("line", { class: "stairs", x1: box.left, y1: box.bottom, x2: box.right, y2: box.top }));
        for (const [trial, predicted, measured] of one.points) {
          const mark = s("circle", { class: "dot", cx: x(predicted), cy: y(measured), r: 3.4 });
          mark.addEventListener("pointermove", (event) => PT.valueTip(event, `Trial ${trial}`, [["predicted", PT.metric(one.metric, predicted)], ["measured", PT.metric(one.metric, measured)], ["off by", `${(100 * (predicted / measured - 1)).toFixed(1)}%`]]));
          mark.addEventListener("pointerleave", PT.noTip);
          svg.append(mark);
        }
        stage.append(svg);
        return card;
      }));
    };
    return { host, draw };
  };
})();
