"use strict";
// Three objectives in a box that turns with the pointer or the arrow keys.
(() => {
  const { s } = PT;

  PT.cube = (host) => {
    let turn = 0.62, tilt = 0.42, marks = new Map(), svg = null, dragged = null;

    const draw = () => {
      const view = PT.view, axes = view.objectives.slice(0, 3);
      const trials = view.trials.filter((trial) => trial.state === "complete" && axes.every((_, index) => trial.metrics[index] !== null));
      const width = PT.width(host, 300), height = Math.round(Math.min(width * 0.76, 400)), size = Math.min(width * 0.26, height * 0.36);
      // Each axis runs from its worst to its best value, so that the best corner is far, right and up.
      const scales = axes.map((one, index) => {
        const scale = PT.scale(PT.reach(trials.map((trial) => trial.metrics[index]), one.maximize), one.maximize ? -1 : 1, one.maximize ? 1 : -1, { name: one.metric, ticks: 4 });
        return scale;
      });
      const [ct, st, ci, si] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
      const project = ([a, b, c]) => {
        const x = a * ct - b * st, depth = a * st + b * ct;
        return [width / 2 + x * size * 1.25, height * 0.46 - (c * ci + depth * si * 0.9) * size, depth * ci - c * si];
      };
      svg = PT.chart(width, height, `${axes.map((one) => one.label).join(", ")} in three dimensions`);
      svg.classList.add("spin");
      const line = (from, to, name) => { const [a, b] = [project(from), project(to)]; return s("line", { class: name, x1: a[0], y1: a[1], x2: b[0], y2: b[1] }); };
      const signs = [-1, 1];
      for (let axis = 0; axis < 3; axis++) for (const p of signs) for (const q of signs) {
        const corner = (value) => { const point = [p, q]; point.splice(axis, 0, value); return point; };
        svg.append(line(corner(-1), corner(1), "edge"));
      }
      // Names and ticks stand at the edges of the floor that are near, and at the outermost upright one.
      const near = (axis) => signs.flatMap((p) => signs.map((q) => { const point = [p, q]; point.splice(axis, 0, 0); return point; }));
      axes.forEach((one, axis) => {
        const upright = axis === 2;
        const edge = near(axis).filter((point) => upright || point[2] === -1).sort((a, b) => (upright ? project(a)[0] - project(b)[0] : project(a)[2] - project(b)[2]))[0];
        const out = (point) => { const [x, y] = project(point), [cx, cy] = [width / 2, height * 0.46], length = Math.hypot(x - cx, y - cy) || 1; return (by) => [x + ((x - cx) / length) * by, y + ((y - cy) / length) * by * (upright ? 0 : 1) + (upright ? 4 : 5)]; };
        for (const tick of scales[axis].ticks) {
          const place = [...edge]; place[axis] = scales[axis](tick);
          // The corners belong to two axes: a tick there would stand on another.
          if (Math.abs(place[axis]) > 0.8) continue;
          const [x, y] = out(place)(16);
          svg.append(s("text", { x, y, "text-anchor": upright ? "end" : "middle" }, scales[axis].text(tick)));
        }
        const [x, y] = upright ? [project([edge[0], edge[1], 1])[0], project([edge[0], edge[1], 1])[1] - 12] : out(edge)(38);
        const anchor = upright ? "middle" : x < width * 0.4 ? "end" : x > width * 0.6 ? "start" : "middle";
        const half = one.label.length * 3.7, free = { start: [4, width - 2 * half], end: [2 * half, width - 4], middle: [half, width - half] }[anchor];
        svg.append(s("text", { class: "name", x: Math.min(Math.max(x, free[0]), free[1]), y, "text-anchor": anchor }, one.label));
      });
      const placed = trials.map((trial) => { const at = axes.map((_, index) => PT.held(scales[index](trial.metrics[index]), -1, 1)); return { trial, at, on: project(at) }; });
      const last = (one) => (PT.kind(one.trial) === "best" ? 1 : 0);
      placed.sort((a, b) => last(a) - last(b) || b.on[2] - a.on[2]);
      marks = new Map();
      for (const { trial, at, on } of placed) {
        const kind = PT.kind(trial);
        if (kind === "front" || kind === "best") svg.append(line(at, [at[0], at[1], -1], "drop"));
        const mark = PT.mark(kind, on[0], on[1]);
        marks.set(trial.number, { mark, px: on[0], py: on[1], trial });
        svg.append(mark);
      }
      svg.setAttribute("tabindex", "0");
      watch();
      const had = document.activeElement && document.activeElement.parentNode === host.querySelector(".stage");
      host.querySelector(".stage").replaceChildren(svg);
      if (had) svg.focus();
      mark();
    };

    const mark = () => { const kept = new Set(PT.view.trials.filter(PT.kept).map((trial) => trial.number)); select(kept); };
    const watch = () => {
      svg.addEventListener("pointerdown", (event) => { dragged = [event.clientX, event.clientY, turn, tilt]; PT.noTip(); });
      svg.addEventListener("pointermove", (event) => {
        if (dragged) return;
        const [px, py] = PT.place(svg, event);
        let best = null, least = 400;
        for (const one of marks.values()) { const distance = (one.px - px) ** 2 + (one.py - py) ** 2; if (distance < least) { least = distance; best = one; } }
        if (best) PT.trialTip(event, best.trial); else PT.noTip();
      });
      svg.addEventListener("pointerleave", PT.noTip);
      svg.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: [-0.12, 0], ArrowRight: [0.12, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
        if (!by) return;
        event.preventDefault();
        turn += by[0]; tilt = Math.min(1.4, Math.max(-0.2, tilt + by[1]));
        draw();
      });
    };
    addEventListener("pointermove", (event) => {
      if (!dragged) return;
      turn = dragged[2] - (event.clientX - dragged[0]) / 180;
      if (event.pointerType !== "touch") tilt = Math.min(1.4, Math.max(-0.2, dragged[3] + (event.clientY - dragged[1]) / 220));
      requestAnimationFrame(draw);
    });
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { dragged = null; });

    const select = (kept) => { for (const [number, one] of marks) one.mark.classList.toggle("out", !kept.has(number)); };
    const point = (number) => { for (const [other, one] of marks) one.mark.classList.toggle("hot", other === number); };
    host.replaceChildren(PT.h("div", { class: "head" }, PT.h("h3", {}, "All three at once"), PT.h("span", { class: "quiet screen" }, "drag to turn")), PT.h("div", { class: "stage" }));
    return { host, draw, select, point };
  };
})();
