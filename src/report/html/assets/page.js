"use strict";
// Puts the page together from the study's values, and draws it again when they or the window change.
(() => {
  const { h, at } = PT;

  const tiles = () => {
    const view = PT.view, front = view.trials.filter((trial) => trial.front);
    const tile = (text, note) => h("div", { class: "tile" }, h("b", {}, text), h("span", {}, note));
    const best = view.objectives.map((one, index) => {
      const known = view.trials.filter((trial) => trial.feasible && trial.metrics[index] !== null);
      if (!known.length) return tile("–", `best ${one.label}`);
      const found = known.reduce((a, b) => ((one.maximize ? b.metrics[index] > a.metrics[index] : b.metrics[index] < a.metrics[index]) ? b : a));
      return tile(PT.metric(one.metric, found.metrics[index]), `best ${one.label}, trial ${found.number}`);
    });
    at("tiles").replaceChildren(tile(String(view.trials.length), view.counts.variants ? `trials, ${view.counts.variants} of them variants` : `trials, ${view.counts.complete} complete`), tile(String(front.length), "on the front"), ...best);
  };

  PT.copyButtons = () => {
    for (const box of document.querySelectorAll(".command")) {
      if (box.querySelector("button") || !navigator.clipboard) continue;
      const button = h("button", { type: "button" }, "Copy");
      button.addEventListener("click", async () => {
        try { await navigator.clipboard.writeText(box.querySelector("code").textContent); button.textContent = "Copied"; } catch { button.textContent = "Select it"; }
        setTimeout(() => { button.textContent = "Copy"; }, 1600);
      });
      box.append(button);
    }
  };

  PT.confirmation = () => {
    const list = at("confirmation"), known = PT.view.recommendation && PT.view.recommendation.confirmation;
    if (!list || !known) return;
    const text = (one) => `${PT.metric(one.metric, one.confirmed)} (${PT.metric(one.metric, one.low)} to ${PT.metric(one.metric, one.high)}), searched ${PT.metric(one.metric, one.searched)}`;
    list.replaceChildren(...known.map((one) => h("li", {}, h("span", {}, `${PT.label(one.metric)} `), h("b", {}, text(one)))));
  };

  const theme = () => {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
    at("theme").addEventListener("click", () => {
      const now = root.dataset.theme || (dark.matches ? "dark" : "light");
      root.dataset.theme = now === "dark" ? "light" : "dark";
    });
  };

  const build = () => {
    const view = PT.view, count = Math.min(view.objectives.length, 4), pairs = at("pairs");
    PT.charts = [];
    for (let yi = 1; yi < count; yi++) for (let xi = 0; xi < yi; xi++) {
      const host = h("div", { class: "card" });
      pairs.append(host);
      PT.charts.push(PT.scatter(host, xi, yi));
    }
    if (count >= 3) {
      const host = h("div", { class: "card" });
      pairs.append(host);
      PT.charts.push(PT.cube(host));
    }
    at("beaten").addEventListener("change", () => { PT.beaten = at("beaten").checked; PT.redraw(); });
    const colour = at("colour");
    colour.replaceChildren(...view.objectives.map((one, index) => h("option", { value: index, selected: index === view.objectives.length - 1 }, one.label)));
    const parallel = PT.parallel(at("axes"), colour);
    colour.addEventListener("change", () => { parallel.draw(); PT.changed(); });
    PT.charts.push(PT.compare(at("compare")), parallel, PT.history(at("history")), PT.growth(at("growth")), PT.curves(at("curves")), PT.importance(at("shares")), PT.predicted(at("predicted")), PT.phases(at("phases")), PT.memory(at("memory")), PT.findings(at("found")), PT.table(at("rows"), at("filter"), at("shown")));
  };

  PT.redraw = () => {
    const view = PT.view, some = view.trials.length > 0, known = view.trials.some((trial) => trial.state === "complete");
    tiles();
    PT.gains();
    at("legend").replaceChildren(...PT.legend());
    at("front").hidden = !known || view.objectives.length < 2;
    at("parallel").hidden = at("table").hidden = !some;
    at("course").hidden = !view.curves.length && !view.growth;
    for (const chart of PT.charts) chart.draw();
    at("costs").hidden = at("phases").hidden && at("memory").hidden;
    PT.changed();
  };

  PT.show = (view) => {
    PT.view = view;
    if (!PT.charts.length) build();
    PT.redraw();
    PT.copyButtons();
    PT.confirmation();
  };

  theme();
  PT.show(JSON.parse(at("view").textContent));
  let width = innerWidth, timer = null;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(PT.redraw, 120);
  });
})();
