// Tooltips of the charts, the browser of rollouts, and, on a served page, keeping it current. Always true: what comes
// from the data reaches the page as text (textContent) or as a class that the page itself wrote. A page from a file asks
// nothing of a server; a served page asks its own server, and takes from it only whole pages made as this one was.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
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

  function bindChart(figure) {
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

  function bindTimeline(svg) {
    svg.addEventListener("pointermove", (event) => {
      const text = event.target.dataset ? event.target.dataset.tip : undefined;
      if (text) showTip(event, [element("div", "", text)]);
      else hideTip();
    });
    svg.addEventListener("pointerleave", hideTip);
  }

  function bindPart(part) {
    part.querySelectorAll("figure[data-points]").forEach(bindChart);
    part.querySelectorAll("svg.timeline").forEach(bindTimeline);
  }

  // -- rollouts --

  let rollouts = data.rollouts;
  let found = null; // what the server found for the text in the search box; null without a search there
  let list, detail, steps, search, count;
  let buttons = [];
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
    if (wanted === "" || found !== null) return true;
    return [rollout.question, rollout.answer, rollout.query, rollout.explanation, rollout.error]
      .some((text) => text.toLowerCase().includes(wanted));
  }

  function refresh() {
    shown = (found ?? rollouts).filter(matches);
    if (filter === "lowest") shown.sort((a, b) => a.score - b.score);
    if (filter === "highest") shown.sort((a, b) => b.score - a.score);
    count.textContent = shown.length + " of " + (found ?? rollouts).length;
    list.replaceChildren(...shown.map(item));
    select(0, false);
  }

  const sameRollout = (a, b) => a.step === b.step && a.group_id === b.group_id && a.index === b.index;

  // Shows newer rollouts without moving what somebody reads: the list stays where it is, with the same one selected.
  function refreshInPlace() {
    const reading = shown[selected];
    const [listTop, detailTop] = [list.scrollTop, detail.scrollTop];
    fillSteps();
    refresh();
    const place = reading === undefined ? -1 : shown.findIndex((one) => sameRollout(one, reading));
    if (place > 0) select(place, false);
    list.scrollTop = listTop;
    if (place >= 0) detail.scrollTop = detailTop;
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

  function fillSteps() {
    const chosen = steps.value;
    steps.replaceChildren(new Option("all", ""));
    for (const step of [...new Set(rollouts.map((rollout) => rollout.step))].sort((a, b) => a - b)) {
      steps.append(new Option(String(step), String(step)));
    }
    if ([...steps.options].some((option) => option.value === chosen)) steps.value = chosen;
  }

  const MOVES = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 8, PageUp: -8 };

  function moveBy(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isEnd = event.key === "Home" || event.key === "End";
    if (!(event.key in MOVES) && !isEnd) return;
    event.preventDefault();
    if (isEnd) select(event.key === "Home" ? 0 : shown.length - 1, true);
    else select(selected + MOVES[event.key], true);
  }

  function bindRollouts() {
    list = document.getElementById("rollout-list");
    if (list === null) return;
    detail = document.getElementById("rollout-detail");
    steps = document.getElementById("rollout-step");
    search = document.getElementById("rollout-search");
    count = document.getElementById("rollout-count");
    buttons = [...document.querySelectorAll("button[data-filter]")];
    list.addEventListener("keydown", moveBy);
    for (const button of buttons) {
      button.addEventListener("click", () => {
        filter = button.dataset.filter;
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        refresh();
      });
    }
    steps.addEventListener("change", refresh);
    search.addEventListener("input", data.live?.search ? searchOnServer : refresh);
    fillSteps();
    refresh();
  }

  let searchTimer;
  function searchOnServer() {
    clearTimeout(searchTimer);
    const text = search.value;
    if (text === "") found = null;
    refresh();
    if (text === "") return;
    searchTimer = setTimeout(async () => {
      const answer = await fetch(data.live.search + "&text=" + encodeURIComponent(text)).catch(() => null);
      if (answer === null || !answer.ok || search.value !== text) return;
      found = (await answer.json()).rollouts;
      refresh();
    }, 300);
  }

  // -- all runs --

  const compared = new Set();

  function bindRuns(part) {
    const button = part.querySelector("#compare");
    const boxes = [...part.querySelectorAll("input[data-run]")];
    for (const box of boxes) {
      box.checked = compared.has(box.dataset.run);
      box.addEventListener("change", () => {
        if (box.checked) compared.add(box.dataset.run);
        else compared.delete(box.dataset.run);
        if (button !== null) button.disabled = compared.size !== 2;
      });
    }
    if (button === null) return;
    button.disabled = compared.size !== 2;
    button.addEventListener("click", () => {
      const [one, other] = [...compared].map(encodeURIComponent);
      location.href = "compare?one=" + one + "&other=" + other;
    });
  }

  // -- keeping a served page current --

  const received = new Map(); // what the server sent for each part; the parts themselves change when they are used
  const partsOf = (page) => [...page.querySelectorAll("main > [id]")];

  function takeOver(page) {
    const wanted = partsOf(page);
    const main = document.querySelector("main");
    const names = new Set(wanted.map((part) => part.id));
    for (const part of partsOf(document)) if (!names.has(part.id)) part.remove();
    wanted.forEach((part, place) => {
      const now = document.getElementById(part.id);
      const html = part.outerHTML;
      const isBrowser = part.id === "rollouts" && part.querySelector("#rollout-list") && now?.querySelector("#rollout-list");
      if (isBrowser) now.querySelector(".lead").textContent = part.querySelector(".lead").textContent;
      else if (now === null || received.get(part.id) !== html) {
        const fresh = document.importNode(part, true);
        const open = now === null ? [] : [...now.querySelectorAll("details")].map((one) => one.open);
        fresh.querySelectorAll("details").forEach((one, index) => (one.open = open[index] ?? one.open));
        if (now === null) main.insertBefore(fresh, main.children[place] ?? null);
        else now.replaceWith(fresh);
        bindPart(fresh);
        bindRuns(fresh);
        if (fresh.id === "rollouts") bindRollouts();
      }
      received.set(part.id, html);
    });
    document.title = page.title;
    const subtitle = document.importNode(page.getElementById("subtitle"), true);
    document.getElementById("subtitle").replaceWith(subtitle);
  }

  async function update(status) {
    const answer = await fetch(location.href, { cache: "no-cache" }).catch(() => null);
    if (answer === null || !answer.ok) {
      status.textContent = answer === null ? "The server does not answer; this page shows the last state." : await answer.text();
      return;
    }
    status.textContent = "";
    const text = await answer.text();
    if (text === update.last) return;
    update.last = text;
    const page = new DOMParser().parseFromString(text, "text/html");
    rollouts = JSON.parse(page.getElementById("data").textContent).rollouts;
    takeOver(page);
    if (list && found === null) refreshInPlace();
  }

  function keepCurrent(everyMs) {
    const status = document.getElementById("live");
    for (const part of partsOf(document)) received.set(part.id, part.outerHTML);
    const again = async () => {
      if (document.visibilityState === "visible") await update(status);
      setTimeout(again, everyMs);
    };
    setTimeout(again, everyMs);
  }

  if (data.live !== null) keepCurrent(1000 * data.live.every_s); // first: it notes the parts as they were sent
  bindPart(document);
  bindRuns(document);
  bindRollouts();
})();
