// Tooltips of the charts and the browser of rollouts. Always true: what comes from the data reaches the page as text
// (textContent) or as a class that the page itself wrote; nothing is parsed as HTML, and nothing is asked of a server.
"use strict";
(() => {
  const tip = document.getElementById("tip");

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // -- tooltips --

  function showTip(event, parts) {
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = event.clientX + 16;
    const left = right + box.width > window.innerWidth - 8 ? event.clientX - box.width - 16 : right;
    tip.style.left = Math.max(8, left) + "px";
    tip.style.top = Math.max(8, Math.min(event.clientY + 14, window.innerHeight - box.height - 8)) + "px";
  }

  function hideTip() {
    tip.hidden = true;
  }

  function rowOf(series, index) {
    const row = element("div", "tip-row");
    const name = element("span", "", "");
    name.append(element("i", "swatch " + series.tone), series.name);
    row.append(name, element("span", "", series.texts[index]));
    return row;
  }

  for (const figure of document.querySelectorAll("figure[data-points]")) {
    const box = figure.querySelector(".plot-box");
    let points = null;
    let cross = null;
    box.addEventListener("pointermove", (event) => {
      points ??= JSON.parse(figure.dataset.points);
      if (points.x.length === 0) return;
      const area = box.getBoundingClientRect();
      const share = (event.clientX - area.left) / area.width;
      let nearest = 0;
      for (let i = 1; i < points.x.length; i++) {
        if (Math.abs(points.x[i] - share) < Math.abs(points.x[nearest] - share)) nearest = i;
      }
      if (cross === null) {
        cross = element("div", "cross");
        box.append(cross);
      }
      cross.hidden = false;
      cross.style.left = points.x[nearest] * 100 + "%";
      const rows = points.series.map((series) => rowOf(series, nearest));
      showTip(event, [element("div", "", points.xTexts[nearest]), ...rows]);
    });
    box.addEventListener("pointerleave", () => {
      if (cross !== null) cross.hidden = true;
      hideTip();
    });
  }

  for (const svg of document.querySelectorAll("svg.timeline")) {
    svg.addEventListener("pointermove", (event) => {
      const text = event.target.dataset ? event.target.dataset.tip : undefined;
      if (text) showTip(event, [element("div", "", text)]);
      else hideTip();
    });
    svg.addEventListener("pointerleave", hideTip);
  }

  // -- rollouts --

  const list = document.getElementById("rollout-list");
  if (list === null) return;
  const rollouts = JSON.parse(document.getElementById("data").textContent).rollouts;
  const detail = document.getElementById("rollout-detail");
  const steps = document.getElementById("rollout-step");
  const search = document.getElementById("rollout-search");
  const count = document.getElementById("rollout-count");
  const buttons = [...document.querySelectorAll("button[data-filter]")];
  let filter = "all";
  let shown = [];
  let selected = 0;

  const FACTS = {
    latency_s: "latency (s)", cost_usd: "cost ($)", attempts: "attempts", cached: "from the journal",
    advantage: "advantage", policy_version: "policy version", staleness: "staleness", num_tokens: "tokens", trained: "trained", why_not: "why not",
  };

  function numberText(value) {
    return typeof value === "number" ? String(Number(value.toPrecision(4))) : String(value);
  }

  function scoreText(rollout) {
    if (rollout.kind) return rollout.kind.replaceAll("_", " ");
    return rollout.score === null ? "see components" : numberText(rollout.score);
  }

  function matches(rollout) {
    if (filter === "failed" && !rollout.kind) return false;
    if ((filter === "lowest" || filter === "highest") && rollout.score === null) return false;
    if (steps.value !== "" && String(rollout.step) !== steps.value) return false;
    const wanted = search.value.toLowerCase();
    if (wanted === "") return true;
    return [rollout.question, rollout.answer, rollout.query, rollout.explanation, rollout.error]
      .some((text) => text.toLowerCase().includes(wanted));
  }

  function refresh() {
    shown = rollouts.filter(matches);
    if (filter === "lowest") shown.sort((a, b) => a.score - b.score);
    if (filter === "highest") shown.sort((a, b) => b.score - a.score);
    count.textContent = shown.length + " of " + rollouts.length;
    list.replaceChildren(...shown.map(item));
    select(0, false);
  }

  function item(rollout, index) {
    const made = element("li");
    made.id = "rollout-" + index;
    made.setAttribute("role", "option");
    const top = element("div", "row-top");
    top.append(element("span", "", "step " + rollout.step + " · " + rollout.group_id + " #" + rollout.index));
    top.append(element("span", rollout.kind ? "score failed" : "score", scoreText(rollout)));
    made.append(top, element("div", "row-text", rollout.answer.slice(0, 160) || "(empty)"));
    made.addEventListener("click", () => select(index, false));
    return made;
  }

  function select(index, scrolls) {
    const items = list.children;
    if (selected < items.length) items[selected].setAttribute("aria-selected", "false");
    selected = Math.max(0, Math.min(index, shown.length - 1));
    if (shown.length === 0) {
      list.removeAttribute("aria-activedescendant");
      detail.replaceChildren(element("p", "facts", "No rollout of the sample is like that."));
      return;
    }
    items[selected].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", items[selected].id);
    if (scrolls) items[selected].scrollIntoView({ block: "nearest" });
    show(shown[selected]);
  }

  function show(rollout) {
    const parts = [element("h3", "", "Step " + rollout.step + ", group " + rollout.group_id + ", rollout " + rollout.index)];
    const facts = Object.entries(rollout.facts).filter(([, value]) => value !== null);
    const texts = facts.map(([name, value]) => (FACTS[name] ?? name) + " " + numberText(value));
    parts.push(element("p", "facts", ["score " + scoreText(rollout), ...texts].join(" · ")));
    const components = Object.entries(rollout.components);
    if (components.length > 0) parts.push(componentTable(components));
    const sections = [
      ["Error", rollout.error, "error"], ["Question", rollout.question, ""], ["Answer", rollout.answer || "(empty)", "answer"],
      ["Reference", rollout.truth, ""], ["What the judge was asked", rollout.query, ""],
      ["What the judge said", rollout.explanation, ""], ["Data source", rollout.source, ""],
    ];
    for (const [title, text, className] of sections) {
      if (text) parts.push(element("h3", "", title), element("pre", className, text));
    }
    detail.replaceChildren(...parts);
    detail.scrollTop = 0;
  }

  function componentTable(components) {
    const body = element("tbody");
    for (const [name, value] of components) {
      const row = element("tr");
      row.append(element("th", "", name), element("td", "", value === null ? "failed" : numberText(value)));
      body.append(row);
    }
    const made = element("table");
    made.append(body);
    const box = element("div", "table-box");
    box.append(made);
    return box;
  }

  const MOVES = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 8, PageUp: -8 };
  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isEnd = event.key === "Home" || event.key === "End";
    if (!(event.key in MOVES) && !isEnd) return;
    event.preventDefault();
    if (isEnd) select(event.key === "Home" ? 0 : shown.length - 1, true);
    else select(selected + MOVES[event.key], true);
  });
  for (const button of buttons) {
    button.addEventListener("click", () => {
      filter = button.dataset.filter;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      refresh();
    });
  }
  steps.append(new Option("all", ""));
  for (const step of [...new Set(rollouts.map((rollout) => rollout.step))].sort((a, b) => a - b)) {
    steps.append(new Option(String(step), String(step)));
  }
  steps.addEventListener("change", refresh);
  search.addEventListener("input", refresh);
  refresh();
})();
