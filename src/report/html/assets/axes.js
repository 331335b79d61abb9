"use strict";
// Scales and axes.
(() => {
  const { s } = PT;

  // Round places between two numbers: multiples of 1, 2, 2.5 or 5 times a power of ten.
  const linear = (low, high, count) => {
    const span = high - low || Math.abs(high) || 1;
    const rough = span / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.75);
    const ticks = [];
    for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
    return ticks;
  };
  const logarithmic = (low, high, count) => {
    const decades = Math.log10(high / low);
    const digits = decades > count ? [1] : decades > 1.3 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const digit of digits) {
        const tick = +`${digit}e${power}`;
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    const every = Math.ceil(ticks.length / (count + 1));
    return ticks.filter((_, index) => index % every === 0);
  };
  const powersOfTwo = (values) => values.every((value) => value >= 1 && Number.isInteger(Math.log2(value)));

  // A scale from values to [from, to]; `pad` leaves a share of the span free at both ends.
  PT.scale = (values, from, to, options) => {
    const { log = false, pad = 0.05, name = "", ticks: count = 5, zero = false, time = false } = options || {};
    const known = values.filter((value) => Number.isFinite(value));
    let low = known.length ? known.reduce((a, b) => Math.min(a, b)) : 0, high = known.length ? known.reduce((a, b) => Math.max(a, b)) : 1;
    const useLog = log && low > 0;
    const to1 = useLog ? Math.log : (value) => value, from1 = useLog ? Math.exp : (value) => value;
    if (zero) low = Math.min(0, low);
    if (low === high) { const by = Math.abs(low) * 0.05 || 1; [low, high] = useLog ? [low / 1.5, high * 1.5] : [low - by, high + by]; }
    const room = (to1(high) - to1(low)) * pad;
    const a = to1(low) - (zero && low === 0 ? 0 : room), b = to1(high) + room;
    const scale = (value) => from + ((to1(value) - a) / (b - a)) * (to - from);
    scale.invert = (place) => from1(a + ((place - from) / (to - from)) * (b - a));
    const first = from1(a), last = from1(b);
    if (useLog && powersOfTwo(known)) {
      scale.ticks = [...new Set(known)].sort((x, y) => x - y);
    } else if (useLog) {
      scale.ticks = logarithmic(first, last, count);
    } else if (time) {
      const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].find((one) => (last - first) / one <= count) || 86400 * Math.ceil((last - first) / 86400 / count);
      scale.ticks = Array.from({ length: Math.floor(last / step) + 1 }, (_, index) => index * step);
      scale.text = (tick) => (tick === 0 ? "0" : tick < 60 ? `${tick} s` : tick < 3600 ? (tick % 60 ? `${Math.floor(tick / 60)}m ${tick % 60}s` : `${tick / 60} min`) : tick % 3600 ? `${Math.floor(tick / 3600)}h ${Math.round(tick / 60) % 60}m` : `${tick / 3600} h`);
    } else if (PT.isBytes(name)) {
      const unit = [2 ** 40, 2 ** 30, 2 ** 20, 1024, 1].find((size) => last >= size) || 1;
      scale.ticks = linear(first / unit, last / unit, count).map((tick) => tick * unit);
      const text = ["TiB", "GiB", "MiB", "KiB", "B"][[2 ** 40, 2 ** 30, 2 ** 20, 1024, 1].indexOf(unit)];
      scale.text = (tick) => `${+(tick / unit).toPrecision(6)} ${text}`;
    } else {
      scale.ticks = linear(first, last, count);
    }
    scale.text = scale.text || ((tick) => (Math.abs(tick) >= 1000 && Math.abs(tick) < 1e9 ? Math.abs(tick) >= 1e6 ? `${+(tick / 1e6).toPrecision(4)}M` : Math.abs(tick) >= 1e4 ? `${+(tick / 1e3).toPrecision(4)}k` : tick.toLocaleString("en") : Math.abs(tick) < 1e-3 && tick !== 0 ? PT.number(tick) : String(+tick.toPrecision(6))));
    return scale;
  };

  // The values that decide where an objective's axis ends. On the bad side it ends at Tukey's fence, 1.5 times the middle half
  // beyond it: what lies there did not learn, and would squash all others. `PT.held` draws it on the edge.
  PT.reach = (values, maximize) => {
    const sorted = values.filter((value) => Number.isFinite(value)).sort((a, b) => a - b);
    const at = (share) => sorted[Math.round(share * (sorted.length - 1))], room = 1.5 * (at(0.75) - at(0.25));
    if (sorted.length < 8 || !(room > 0)) return values;
    return sorted.filter((value) => (maximize ? value >= at(0.25) - room : value <= at(0.75) + room));
  };
  PT.held = (place, a, b) => Math.min(Math.max(place, Math.min(a, b)), Math.max(a, b));

  // Grid, tick labels and names of both axes inside a box.
  PT.frame = (svg, box, x, y, names) => {
    const group = s("g", {});
    for (const tick of y.ticks) {
      const place = y(tick);
      if (place < box.top - 1 || place > box.bottom + 1) continue;
      group.append(s("line", { class: "grid-line", x1: box.left, x2: box.right, y1: place, y2: place }), s("text", { x: box.left - 7, y: place + 4, "text-anchor": "end" }, y.text(tick)));
    }
    let free = -Infinity;
    for (const tick of x.ticks) {
      const place = x(tick), text = x.text(tick), half = text.length * 3.3;
      if (place < box.left - 1 || place > box.right + 1) continue;
      group.append(s("line", { class: "grid-line", x1: place, x2: place, y1: box.top, y2: box.bottom }));
      if (place - half < free) continue;
      free = place + half + 6;
      group.append(s("text", { x: place, y: box.bottom + 17, "text-anchor": "middle" }, text));
    }
    group.append(s("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }), s("line", { class: "axis", x1: box.left, x2: box.left, y1: box.top, y2: box.bottom }));
    if (names.x) group.append(s("text", { class: "name", x: box.right, y: box.bottom + 36, "text-anchor": "end" }, names.x));
    if (names.y) group.append(s("text", { class: "name", x: 0, y: 12 }, names.y));
    svg.append(group);
  };

  PT.path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
  // Where the pointer is, in the chart's own units.
  PT.place = (svg, event) => {
    const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
    return [((event.clientX - box.left) / box.width) * view.width, ((event.clientY - box.top) / box.height) * view.height];
  };
})();
