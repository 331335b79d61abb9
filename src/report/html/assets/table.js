"use strict";
// Every trial: sorted, filtered, and linked with the charts.
(() => {
  const { h } = PT;
  const FIRST = 50, MANY = 15;
  // A name may go on in a second line behind each underscore.
  const broken = (name) => name.split(/(?<=_)/).flatMap((part, index) => (index ? [h("wbr"), part] : [part]));

  // `rank=8 loss<2.1 failed`: every word must hold; words that compare nothing are looked for in the row.
  PT.parseFilter = (text, columns) => {
    const words = text.trim().split(/\s+/).filter((word) => word);
    const tests = words.map((word) => {
      const match = /^([^<>=!]+)(<=|>=|!=|<|>|=)(.+)$/.exec(word);
      const column = match && columns.find((one) => one.name.toLowerCase() === match[1].toLowerCase() || one.label.toLowerCase() === match[1].toLowerCase());
      if (!column) {
        const wanted = word.toLowerCase();
        return (trial) => columns.some((one) => one.text(trial).toLowerCase().includes(wanted));
      }
      const [, , sign, right] = match, number = Number(right);
      return (trial) => {
        const left = column.value(trial);
        if (left === null || left === undefined) return false;
        const [a, b] = typeof left === "number" && !Number.isNaN(number) ? [left, number] : [String(left).toLowerCase(), right.toLowerCase()];
        return { "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b, "=": a === b, "!=": a !== b }[sign];
      };
    });
    return (trial) => tests.every((test) => test(trial));
  };

  const columnsOf = (view) => {
    const number = (label, name, value, text) => ({ label, name, value, text, number: true });
    const size = (trial, index) => PT.metricWithInterval(trial, index);
    return [
      number("trial", "trial", (trial) => trial.number, (trial) => (trial.number === PT.best() ? `★ ${trial.number}` : String(trial.number))),
      { label: "outcome", name: "state", value: (trial) => trial.outcome, text: (trial) => trial.outcome, state: true },
      ...view.objectives.map((one, index) => number(one.label, one.metric, (trial) => trial.metrics[index], (trial) => size(trial, index))),
      ...view.params.map((one, index) => ({ label: one.name, name: one.name, number: one.number, value: (trial) => trial.params[index], text: (trial) => PT.param(trial.params[index]) })),
      ...PT.gpuMetrics(view).map((one) => number(one.label, one.name, (trial) => trial.metrics[one.index], (trial) => PT.metric(one.name, trial.metrics[one.index]))),
      number("time", "wall_s", (trial) => trial.wall_s, (trial) => (trial.wall_s ? PT.seconds(trial.wall_s) : "–")),
    ];
  };

  PT.table = (host, input, shown) => {
    let sort = { name: "trial", down: false }, all = false, rows = new Map();

    const compare = (column) => (a, b) => {
      const [left, right] = [column.value(a), column.value(b)];
      const missing = (value) => value === null || value === undefined;
      if (missing(left) || missing(right)) return missing(left) - missing(right);
      const order = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
      return (sort.down ? -order : order) || a.number - b.number;
    };

    const draw = () => {
      const view = PT.view, columns = columnsOf(view), column = columns.find((one) => one.name === sort.name) || columns[0];
      PT.filter = input.value.trim() ? PT.parseFilter(input.value, columns) : () => true;
      const kept = view.trials.filter(PT.kept).sort(compare(column)), some = all ? kept : kept.slice(0, FIRST);
      const heads = columns.map((one) => {
        const on = one === column;
        const turn = () => { sort = { name: one.name, down: on ? !sort.down : one.number && one.name !== "trial" && view.objectives.some((objective) => objective.metric === one.name && objective.maximize) }; draw(); };
        return h("th", { class: one.number ? "n" : null, scope: "col", "aria-sort": on ? (sort.down ? "descending" : "ascending") : null }, h("button", { type: "button", onclick: turn }, ...broken(one.label), on ? (sort.down ? " ↓" : " ↑") : ""));
      });
      rows = new Map();
      const body = some.map((trial) => {
        const cells = columns.map((one) => h("td", { class: one.state ? `state ${trial.state}` : one.number ? "n" : null, title: one.state ? trial.detail : null }, one.text(trial)));
        const row = h("tr", { class: trial.number === PT.best() ? "best" : trial.front ? "front" : null, onclick: () => PT.pick(trial.number), onpointerenter: () => PT.point(trial.number), onpointerleave: () => PT.point(null) }, cells);
        rows.set(trial.number, row);
        return row;
      });
      const table = h("table", { class: columns.length > MANY ? "dense" : null }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body));
      const more = kept.length > some.length ? h("button", { type: "button", class: "more", onclick: () => { all = true; draw(); } }, `Show all ${kept.length}`) : null;
      // A live page draws again and again: who reads or sorts it stays where they are.
      const left = host.scrollLeft, button = [...host.querySelectorAll("th button")].indexOf(document.activeElement);
      host.replaceChildren(table, ...(more ? [more] : []));
      host.scrollLeft = left;
      if (button >= 0) table.querySelectorAll("th button")[button]?.focus({ preventScroll: true });
      shown.textContent = kept.length === view.trials.length ? `${kept.length} trials` : `${kept.length} of ${view.trials.length} trials`;
    };
    input.addEventListener("input", () => { draw(); PT.changed(); });
    const point = (number) => { for (const [other, row] of rows) row.classList.toggle("hot", other === number); };
    return { host, draw, select: draw, point };
  };
})();
