"use strict";
// What may be asked of a search. The controls appear only with a token, and the server checks it again.
(() => {
  const { h, at } = PT;
  const of = `study=${encodeURIComponent(PT.view.study.name)}`, KEY = "peft-tune-token";
  let token = sessionStorage.getItem(KEY), fields = [], source = null;

  // The token comes behind the `#`, which browsers never send anywhere, and leaves the address at once.
  const given = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (given) {
    token = given[1];
    sessionStorage.setItem(KEY, token);
    history.replaceState(null, "", location.pathname + location.search);
  }

  const ask = async (request, button, note) => {
    button.disabled = true;
    try {
      const answer = await fetch(`/api/request?${of}`, { method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` }, body: JSON.stringify(request) });
      const text = await answer.text();
      note.textContent = answer.ok ? "" : text;
      if (answer.status === 401) { sessionStorage.removeItem(KEY); token = null; PT.control(); }
    } catch { note.textContent = "The dashboard does not answer."; }
    button.disabled = false;
  };

  PT.control = async () => {
    const host = at("control");
    host.hidden = !token;
    if (!token) return;
    const space = await (await fetch(`/api/space?${of}`)).json();
    const note = h("p", { class: "note", role: "alert" });
    const button = (text, request, main) => { const one = h("button", { type: "button", class: main ? "main" : null }, text); one.addEventListener("click", () => ask(typeof request === "function" ? request() : request, one, note)); return one; };
    host.replaceChildren(h("h3", {}, "Control the search"),
      h("div", { class: "row" }, button("Pause", { kind: "pause" }), button("Resume", { kind: "resume" }), button("Stop after this trial", { kind: "stop" })),
      space.parameters.length ? settingForm(space, button) : "", note);
    PT.copyOf = (number) => { host.querySelector("details").open = true; fill(number); host.scrollIntoView({ block: "center" }); };
  };

  // A setting that starts from a trial: from the recommended one at first, and from the middle of each range before there is any.
  const settingForm = (space, button) => {
    fields = space.parameters.map(fieldOf);
    source = h("input", { type: "number", min: 0, step: 1, id: "source", "aria-label": "Number of the trial to copy" });
    source.addEventListener("change", () => fill(source.value === "" ? null : +source.value));
    const details = h("details", {}, h("summary", {}, "Try a setting next: a copy of a trial with changes"),
      h("div", { class: "row" }, h("label", { class: "quiet" }, "Start from trial ", source), h("span", { class: "quiet" }, "What you leave as it is stays exact.")),
      h("div", { class: "fields" }, fields.map((one) => one.label)), button("Enqueue", request, true));
    details.addEventListener("toggle", () => { if (details.open && !fields.some((one) => one.touched)) fill(PT.best()); });
    fill(PT.best());
    return details;
  };

  // Only what a person changed is sent: the page has values rounded, the server has them whole.
  const request = () => {
    const shown = fields.filter((one) => !one.label.hidden && one.input.value !== "");
    const trial = source.value === "" ? null : +source.value;
    if (trial === null) return { kind: "enqueue", params: Object.fromEntries(shown.map((one) => [one.name, one.read()])) };
    return { kind: "clone", trial, changes: Object.fromEntries(shown.filter((one) => one.input.value !== one.was).map((one) => [one.name, one.read()])) };
  };

  const fill = (number) => {
    const trial = PT.view.trials.find((one) => one.number === number);
    source.value = trial ? number : "";
    for (const one of fields) {
      const index = PT.view.params.findIndex((param) => param.name === one.name), value = trial && index >= 0 ? trial.params[index] : null;
      const known = value !== null && value !== undefined;
      one.input.value = known ? one.written(value) : "";
      one.was = known ? one.input.value : "";
      one.touched = false;
    }
    settle();
  };

  // Fields of parameters that do not exist beside the others' values go; those that come get a value to start from.
  const settle = () => {
    for (const one of fields) {
      const on = one.condition && fields.find((other) => other.name === one.condition.parameter);
      one.label.hidden = Boolean(on) && (on.label.hidden || !one.condition.values.some((value) => PT.param(value) === PT.param(on.read())));
      if (!one.label.hidden && one.input.value === "" && !one.touched) one.input.value = one.start;
      one.label.classList.toggle("changed", !one.label.hidden && source.value !== "" && one.input.value !== one.was);
    }
  };

  // An input for one parameter: how it writes a value, and how it reads one.
  const fieldOf = ({ name, distribution, condition }) => {
    const { low, high, step, kind, choices } = distribution;
    const one = kind === "categorical"
      ? { input: h("select", {}, choices.map((choice, index) => h("option", { value: index }, PT.param(choice)))), start: "0", written: (value) => String(choices.findIndex((choice) => PT.param(choice) === PT.param(value))) }
      : { input: h("input", { type: "number", min: low, max: high, step: kind === "int" ? step : step || "any", placeholder: `${PT.number(low)} to ${PT.number(high)}` }), start: String(kind === "int" ? low : +(distribution.scale === "log" ? Math.sqrt(low * high) : (low + high) / 2).toPrecision(3)), written: String };
    one.read = () => (one.input.value === "" ? undefined : kind === "categorical" ? choices[+one.input.value] : Number(one.input.value));
    Object.assign(one, { name, condition, was: "", touched: false, label: h("label", {}, name, one.input) });
    one.input.addEventListener("input", () => { one.touched = true; settle(); });
    return one;
  };
})();
