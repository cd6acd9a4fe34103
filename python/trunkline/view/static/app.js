// The page of a run. Everything that models, tools and servers wrote reaches it as text nodes alone.

const SVG = "http://www.w3.org/2000/svg";
const COLUMNS = [
  ["task", "task", ""], ["question", "", "question"], ["reward", "reward", "num"], ["rollouts", "tries", "num wide"],
  ["failed", "broken", "num wide"], ["turns", "turns", "num wide"], ["generated", "tokens out", "num wide"],
  ["seconds", "seconds", "num wide"],
];
const SORTED = new Set(["task", "reward", "rollouts", "failed", "turns", "generated", "seconds"]);
const OUTCOMES = ["solved", "unsolved", "mixed", "broken", "empty", "unscored", "unfinished"];
const FAILED = new Set(["bad_request", "llm_error", "tool_error", "unknown_effect", "lost"]);
const MOST_NODES = 3000;
const words = (ended) => (ended === "retried" ? "asked again" : ended.replaceAll("_", " "));
const $ = (id) => document.getElementById(id);

function h(name, given = {}, ...children) {
  const made = document.createElement(name);
  fill(made, given, children);
  return made;
}

function s(name, given = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  fill(made, given, children);
  return made;
}

function fill(made, given, children) {
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  made.append(...shown(children));
}

const shown = (children) => children.flat().filter((one) => one !== null && one !== undefined && one !== false);
const put = (place, ...children) => place.replaceChildren(...shown(children));

// As put does, but elements that did not change stay, and with them the focus, the scrolling and a press that has begun.
function update(place, ...children) {
  const old = [...place.childNodes];
  const made = shown(children);
  made.forEach((one, nth) => {
    const was = old[nth];
    if (!was) place.append(one);
    else if (was.isEqualNode(one)) return;
    else if (was instanceof Element && was.cloneNode().isEqualNode(one.cloneNode())) update(was, ...one.childNodes);
    else was.replaceWith(one);
  });
  old.slice(made.length).forEach((one) => one.remove());
}

const known = (value) => value !== null && value !== undefined;
const count = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : "–");
const counted = (value, one) => `${count(value)} ${one}${value === 1 ? "" : "s"}`;
const fixed = (value, digits = 2) => (known(value) ? value.toFixed(digits) : "–");
const share = (value) => (known(value) ? `${(value * 100).toFixed(1)} %` : "–");
const duration = (value) => (!known(value) ? "–" : value >= 90 ? `${count(value / 60)} min` : `${fixed(value, 1)} s`);
const big = (value) => (!known(value) ? "–" : value >= 1e6 ? `${fixed(value / 1e6, 1)} M` : count(value));
const ends = (low, high, shown) => (known(low) && known(high) ? ` [${shown(low)}, ${shown(high)}]` : "");
const percent = (value) => (value * 100).toFixed(1);
const range = (found) => (found ? share(found.value) + ends(found.low, found.high, percent) : "–");
const broke = (rollout) => FAILED.has(rollout.termination);
function retries(known, causes) {
  const by = Object.entries(causes ?? {}).sort((a, b) => b[1] - a[1]);
  // Requests for several draws that were given up are in no rollout.
  const all = Math.max(known, by.reduce((sum, [, times]) => sum + times, 0));
  return all ? [count(all), by.map(([cause, times]) => `${count(times)} × ${cause}`).join(", ")].filter(Boolean).join(": ") : "";
}
// At least four digits that count, and at least cents; null where no call has a price.
function money(spent) {
  if (!spent || !(spent.priced > 0 || !spent.unpriced)) return null;
  const digits = spent.money <= 0 ? 2 : Math.min(Math.max(2, 3 - Math.floor(Math.log10(spent.money))), 12);
  return spent.money.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
const tone = (rollout) => (broke(rollout) ? "bad" : known(rollout.reward) ? sign(rollout.reward) : "soft");
const sign = (reward) => (!known(reward) ? "" : reward >= 1 ? "good" : reward <= 0 ? "bad" : "warn");

// Where the data comes from: the server, or the file itself.

class Server {
  constructor() {
    const given = location.hash.slice(1);
    if (given) {
      sessionStorage.setItem("token", given);
      history.replaceState(null, "", location.pathname);
    }
    this.headers = { "X-Trunkline-Token": sessionStorage.getItem("token") ?? "" };
  }
  async fetch(address, init) {
    try {
      return await fetch(address, { headers: this.headers, ...init });
    } catch {
      throw new Error("trunkline view does not answer: start it again, and open the address that it prints");
    }
  }
  async ask(path, query = {}, init = {}) {
    const said = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== false && known(value)));
    const response = await this.fetch(`/api/${path}?${said}`, init);
    const found = await response.json();
    if (!response.ok) throw new Error(found.error ?? `the server answered ${response.status}`);
    return found;
  }
  runs() { return this.ask("runs"); }
  summary(run) { return this.ask(`runs/${run}/summary`); }
  tasks(run, query) { return this.ask(`runs/${run}/tasks`, query); }
  values(run, field) { return this.ask(`runs/${run}/values`, { field }); }
  async categories(run, field) { return (await this.ask(`runs/${run}/categories`, { field }))[field]; }
  task(run, id) { return this.ask(`runs/${run}/task`, { id }); }
  compare(selected) { return this.ask("compare", { selected }); }
  control(run, action) { return this.ask(`runs/${run}/control`, {}, { method: "POST", body: JSON.stringify({ action }) }); }
  async follow(run, onState) {
    const response = await this.fetch(`/api/runs/${run}/live`);
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (lines.length) onState(JSON.parse(lines.at(-1)));
    }
  }
}

class Embedded {
  constructor(data) { this.data = data; }
  async runs() { return this.data.runs.map((run) => run.overview); }
  async summary(run) { return this.data.runs[run].summary; }
  async values(run, field) {
    const counts = new Map();
    for (const { metadata } of this.data.runs[run].rows) {
      const value = JSON.stringify(metadata[field]);
      if (value !== undefined) counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    return [...counts].sort((a, b) => b[1] - a[1]).slice(0, 50);
  }
  async categories(run, field) { return this.data.runs[run].categories[field]; }
  async tasks(run, query) {
    const { rows, trees } = this.data.runs[run];
    const text = query.text.toLowerCase();
    const texts = (row) => [row.id, row.question, ...(query.turns ? trees[row.id].nodes.flatMap(spoken) : [])];
    const found = rows.filter((row) =>
      (!query.outcome || OUTCOME[query.outcome]?.(row) || row.ends.includes(query.outcome))
      && (query.least === "" || (known(row.reward) && row.reward >= Number(query.least)))
      && (query.most === "" || (known(row.reward) && row.reward <= Number(query.most)))
      && (!query.field || !query.value || JSON.stringify(row.metadata[query.field]) === query.value)
      && (!text || texts(row).some((one) => one?.toLowerCase().includes(text))));
    const way = query.descending ? -1 : 1;
    const less = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    found.sort((a, b) => {
      const x = a[query.sort], y = b[query.sort];
      return known(x) && known(y) ? way * less(x, y) || a.task - b.task : Number(known(y)) - Number(known(x));
    });
    return { total: found.length, rows: found.slice(query.page * query.size, (query.page + 1) * query.size) };
  }
  async task(run, id) {
    const found = Object.hasOwn(this.data.runs[run].trees, id) ? this.data.runs[run].trees[id] : null;
    if (!found) throw new Error("this file does not hold that task: make it with more --tasks");
    return found;
  }
  async compare() {
    if (!this.data.compare || this.data.compare.error) throw new Error(this.data.compare?.error ?? "one run alone");
    return this.data.compare;
  }
}

// Whether a text holds what is searched for in turns.
const sought = (text) => Boolean(text && state.query.turns && state.query.text && text.toLowerCase().includes(state.query.text.toLowerCase()));
const spoken = (node) => [node.text, node.reasoning, node.report, ...node.calls.flatMap((call) => [call.name, call.arguments, pretty(call.arguments, leaves)])];
const leaves = (value) => (typeof value === "string" ? value : value && typeof value === "object" ? Object.entries(value).flat().map(leaves).join("\n") : "");

const OUTCOME = {
  solved: (row) => known(row.best) && row.best >= 1,
  unsolved: (row) => row.scored > 0 && row.best < 1,
  mixed: (row) => known(row.least) && row.least < row.best,
  broken: (row) => row.failed > 0 || known(row.error),
  empty: (row) => row.empty > 0,
  unscored: (row) => known(row.ended) && row.scored === 0,
  unfinished: (row) => !known(row.ended),
};

const inside = $("data");
const source = inside ? new Embedded(JSON.parse(inside.textContent)) : new Server();
const state = {
  runs: [], run: 0, tab: "tasks", open: null, rollout: 0, rows: [], total: 0, summaries: [],
  query: { page: 0, size: 100, sort: "task", descending: false, outcome: "", least: "", most: "", field: "", value: "", where: "", text: "", turns: false },
};

function tell(problem) {
  $("problem").textContent = problem ? problem.message : "";
  $("problem").hidden = !problem;
}

const guarded = (work) => async (...given) => {
  try {
    tell(null);
    return await work(...given);
  } catch (problem) {
    return tell(problem);
  }
};

// The head of the page.

function head() {
  update($("head"), state.runs.map((run, number) => {
    const done = run.progress ?? {};
    const again = retries(Math.max(run.retries, done.retries ?? 0), done.retry_causes ?? run.retry_causes);
    const figures = [
      h("span", { class: "soft" }, run.live ? "running" : run.state === "running" ? "stopped without an end" : run.state),
      run.model ? h("span", { class: "soft" }, run.model) : null,
      figure(`${count(run.finished)} of ${count(run.tasks)}`, "tasks"),
      figure(count(run.rollouts), "tries"),
      figure(accuracy(number), "right"),
      run.broken ? h("span", { class: "bad" }, `${counted(run.broken, "task")} broke`) : null,
      run.empty ? h("span", { class: "warn" }, counted(run.empty, "empty answer")) : null,
      run.retried ? h("span", { class: "soft" }, `${count(run.retried)} asked again`) : null,
      again ? h("span", { class: "warn" }, `retries ${again}`) : null,
      state.summaries[number] && money(state.summaries[number].spent) ? figure(money(state.summaries[number].spent), "spent") : null,
      known(done.latency) ? figure(duration(done.latency), "a call") : null,
      run.loss ? h("span", { class: "bad" }, run.loss) : null,
    ];
    const buttons = run.controls && source.control ? ["drain", "stop"].map((action) => h("button", {
      title: action === "drain" ? "Begin nothing new; requests in flight may return" : "Do not wait for requests in flight",
      "data-action": action, onclick: guarded(() => press(number, action)),
    }, run.asked === action ? `${action} asked` : action)) : [];
    const name = state.runs.length > 1 ? `${"AB"[number]}  ${run.name}` : run.name;
    return h("div", { class: "run" }, h("h1", {}, name), h("div", { class: "group" }, figures), h("div", { class: "group" }, buttons));
  }));
  document.title = `${state.runs.map((run) => run.name).join(" | ")} – Trunkline`;
}

const figure = (value, what) => h("span", { class: "figure" }, h("b", {}, value), ` ${what}`);

function accuracy(number) {
  const found = state.summaries[number]?.accuracy;
  return found ? range(found) : share(state.runs[number].reward);
}

async function press(run, action) {
  if (action === "stop" && !confirm("Stop the run now? Requests in flight are lost.")) return;
  await source.control(run, action);
  state.runs[run].asked = action;
  head();
}

function tabs() {
  const names = ["tasks", "summary", ...(state.runs.length > 1 ? ["compare"] : [])];
  put($("tabs"), 
    ...names.map((name) => h("button", {
      "data-tab": name, "aria-current": state.tab === name ? "page" : null, onclick: guarded(() => show(name)),
    }, name[0].toUpperCase() + name.slice(1))),
    state.runs.length > 1 && state.tab !== "compare"
      ? h("select", { "aria-label": "Run", id: "run", onchange: guarded((event) => choose(Number(event.target.value))) },
        state.runs.map((run, number) => h("option", { value: number, selected: number === state.run }, `${"AB"[number]} ${run.name}`)))
      : null,
  );
}

async function choose(run) {
  state.run = run;
  state.open = null;
  state.query = { ...state.query, page: 0, field: "", value: "" };
  await show(state.tab);
}

async function show(tab) {
  state.tab = tab;
  tabs();
  if (tab === "tasks") await tasks();
  else if (tab === "summary") await summary();
  else await comparison();
}

// The table of tasks.

async function tasks() {
  const list = h("section", { class: "list panel" }, filters(), h("div", { id: "rows" }));
  put($("main"), h("div", { class: "split", id: "split" }, list));
  await load();
  if (state.open) await openTask(state.open.id);
}

function filters() {
  const run = state.runs[state.run];
  const query = state.query;
  const set = (name, read = (target) => target.value) => guarded((event) => {
    query[name] = read(event.target);
    query.page = 0;
    return load();
  });
  const values = h("select", { id: "value", "aria-label": "Value", hidden: true, onchange: set("value") });
  const listed = async () => {
    values.hidden = !query.field;
    if (!query.field) return;
    const found = await source.values(state.run, query.field);
    values.replaceChildren(h("option", { value: "" }, "any value"), ...found.map(([value, tasks]) =>
      h("option", { value, selected: value === query.value }, `${value.slice(0, 60)} (${count(tasks)})`)));
  };
  const chosen = guarded(async (event) => {
    const before = query.value;
    query.field = event.target.value;
    query.value = "";
    await listed();
    if (before) await set("value")({ target: { value: "" } });
  });
  listed().catch(tell);
  const ends = [...new Set([...OUTCOMES, ...run.ends.map(([word]) => word), query.outcome])].filter((word) => word && word !== "growing");
  let waiting = 0;
  const typed = (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(set("text"), 200, event);
  };
  return h("div", { class: "filters" },
    h("input", { type: "search", id: "text", placeholder: "Search questions  ( / )", "aria-label": "Search", value: query.text, oninput: typed }),
    h("label", {}, h("input", { type: "checkbox", id: "turns", checked: query.turns, onchange: set("turns", (box) => box.checked) }), "turns too"),
    h("select", { id: "outcome", "aria-label": "Outcome", onchange: set("outcome") },
      h("option", { value: "" }, "any outcome"),
      ends.map((word) => h("option", { value: word, selected: word === query.outcome }, words(word)))),
    h("label", { class: "wide" }, "reward", h("input", { type: "number", step: "any", id: "least", placeholder: "from", value: query.least, onchange: set("least") }),
      h("input", { type: "number", step: "any", id: "most", "aria-label": "Reward up to", placeholder: "to", value: query.most, onchange: set("most") })),
    run.fields.length ? h("select", { id: "field", "aria-label": "Category", onchange: chosen },
      h("option", { value: "" }, "any category"), run.fields.map((name) => h("option", { value: name, selected: name === query.field }, name))) : null,
    values,
    source instanceof Server ? h("input", { id: "where", class: "where", "aria-label": "Expression over tries", placeholder: "where: outcome == 'max_turns' and turns > 5", value: query.where, onchange: set("where") }) : null,
  );
}

// One request at a time: what is asked for meanwhile is read after it, the latest alone.
let loading = null, changed = false;
function load() {
  changed = true;
  loading ??= (async () => {
    try {
      while (changed) {
        changed = false;
        await page().catch((problem) => { if (!changed) throw problem; });
      }
    } finally {
      loading = null;
    }
  })();
  return loading;
}

async function page() {
  const run = state.run;
  const found = await source.tasks(run, { ...state.query, value: state.query.value, field: state.query.value ? state.query.field : "" });
  if (changed || run !== state.run || !$("rows")) return;
  state.rows = found.rows;
  state.total = found.total;
  rows();
}

function rows() {
  const query = state.query;
  const heads = COLUMNS.map(([name, title, kind]) => {
    const way = query.sort === name ? (query.descending ? "descending" : "ascending") : null;
    const label = title || name;
    return h("th", { class: kind, scope: "col", "aria-sort": way }, SORTED.has(name) ? h("button", {
      "data-sort": name,
      onclick: guarded(() => {
        query.descending = query.sort === name && !query.descending;
        query.sort = name;
        query.page = 0;
        return load();
      }),
    }, label) : label);
  });
  const last = Math.max(1, Math.ceil(state.total / query.size));
  const turn = (by) => guarded(() => {
    query.page += by;
    return load();
  });
  update($("rows"),
    h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, state.rows.map(row)))),
    state.rows.length ? null : h("p", { class: "soft" }, "No task is like that."),
    h("div", { class: "pages" },
      h("button", { id: "before", disabled: query.page === 0, onclick: turn(-1) }, "‹ before"),
      h("span", { class: "soft", id: "total" }, `${counted(state.total, "task")}, page ${query.page + 1} of ${count(last)}`),
      h("button", { id: "after", disabled: query.page + 1 >= last, onclick: turn(1) }, "next ›")),
  );
}

function row(task) {
  const open = guarded(() => openTask(task.id));
  const wrong = known(task.error) || task.failed > 0;
  return h("tr", {
    class: "pick", tabindex: 0, "data-id": task.id, "aria-selected": state.open?.id === task.id, onclick: open,
    onkeydown: (event) => { if (event.key === "Enter") open(); },
  },
  h("td", { class: "id" }, h("div", {}, task.id)),
  h("td", { class: "question" }, h("div", {}, task.question), h("div", { class: "tags" },
    known(task.ended) ? null : h("span", { class: "tag" }, "unfinished"),
    task.empty ? h("span", { class: "tag" }, `${task.empty} empty`) : null,
    task.ends.filter((word) => word !== "answer").map((word) =>
      h("span", { class: FAILED.has(word) ? "tag bad" : "tag" }, words(word))))),
  h("td", { class: "num" }, known(task.reward) ? bar(task.reward) : null, h("span", { class: sign(task.reward) }, fixed(task.reward))),
  h("td", { class: "num wide" }, count(task.rollouts)),
  h("td", { class: `num wide ${wrong ? "bad" : ""}` }, count(task.failed)),
  h("td", { class: "num wide" }, fixed(task.turns, 1)),
  h("td", { class: "num wide" }, count(task.generated)),
  h("td", { class: "num wide" }, fixed(task.seconds, 1)));
}

function bar(value) {
  const inner = h("i");
  inner.style.width = `${Math.min(1, Math.max(0, value)) * 100}%`;
  return h("span", { class: "bar wide", "aria-hidden": "true" }, inner);
}

let opened = 0;
async function openTask(id) {
  const mine = ++opened;
  const tree = await source.task(state.run, id);
  if (mine !== opened) return;
  const again = state.open?.id === id;
  state.open = tree;
  let node = null;
  if (!again || state.rollout >= tree.rollouts.length) {
    // The try that was searched for, else one to look at.
    const hits = new Set(tree.nodes.filter((one) => one.kind !== "prompt" && spoken(one).some(sought)).map((one) => one.id));
    const hit = tree.rollouts.find((one) => one.nodes.some((id) => hits.has(id)));
    const wrong = tree.rollouts.find((one) => broke(one) || (known(one.reward) && one.reward < 1));
    state.rollout = (hit ?? wrong ?? tree.rollouts[0])?.id ?? 0;
    node = hit?.nodes.find((id) => hits.has(id)) ?? null;
  }
  $("split")?.classList.add("open");
  document.querySelectorAll("tr.pick").forEach((one) => one.setAttribute("aria-selected", String(one.dataset.id === id)));
  $("detail")?.remove();
  $("split")?.append(detail(tree, state, { id: "detail", close: closeTask, node }));
}

function closeTask() {
  opened++;
  const id = state.open?.id;
  state.open = null;
  $("detail")?.remove();
  $("split")?.classList.remove("open");
  document.querySelectorAll("tr.pick").forEach((one) => {
    one.setAttribute("aria-selected", "false");
    if (one.dataset.id === id) one.focus();
  });
}

// One task: its tree, its rollouts, a transcript.

function detail(tree, chosen, { id = null, close = null, node: first = null } = {}) {
  const made = h("section", { class: "panel detail", id, "aria-label": "Task" });
  const draw = (node = null) => {
    const rollout = tree.rollouts[chosen.rollout];
    const pick = (number, at = null) => {
      chosen.rollout = number;
      draw(at);
    };
    put(made, 
      h("div", { class: "top" }, h("h2", {}, h("span", { class: "id" }, tree.id)),
        close && !tree.ended && state.runs[state.run].live ? h("button", { id: "again", onclick: guarded(() => openTask(tree.id)) }, "read again") : null,
        close ? h("button", { id: "close", onclick: close, title: "Esc" }, "close") : null),
      h("div", { class: "run" }, tree.reference.length ? h("span", { class: "soft" }, "reference: ", h("b", {}, tree.reference.join(" | "))) : null),
      picture(tree, rollout, pick),
      h("div", { class: "rollouts", role: "group", "aria-label": "Tries" }, tree.rollouts.slice(0, 200).map((one) => h("button", {
        "aria-pressed": one.id === chosen.rollout, "data-rollout": one.id, class: tone(one), onclick: () => pick(one.id),
      }, label(one))), tree.rollouts.length > 200 ? h("span", { class: "soft" }, `${count(tree.rollouts.length - 200)} more in the tree`) : null),
      ...(rollout ? [outcome(rollout), transcript(tree, rollout, node)] : [h("p", { class: "soft" }, "Nothing has grown yet.")]),
    );
    made.querySelector(".said.here")?.scrollIntoView({ block: "nearest" });
  };
  draw(first);
  if (first) requestAnimationFrame(() => made.querySelector(".said.here")?.scrollIntoView({ block: "nearest" }));
  return made;
}

function label(rollout) {
  const ended = rollout.termination ?? "growing";
  const mark = rollout.retried ? "↻" : broke(rollout) ? "✕" : known(rollout.reward) ? (rollout.reward >= 1 ? "✓" : "·") : "–";
  return `${mark} ${rollout.id}  ${known(rollout.reward) ? fixed(rollout.reward) : ""}${ended === "answer" ? "" : `  ${words(ended)}`}`;
}

function picture(tree, rollout, pick) {
  const nodes = tree.nodes.slice(0, MOST_NODES);
  const byId = new Map(nodes.map((node) => [node.id, { ...node, children: [], depth: 0, y: 0 }]));
  const roots = [];
  for (const node of byId.values()) {
    const parent = byId.get(node.parent);
    node.depth = parent ? parent.depth + 1 : 0;
    (parent ? parent.children : roots).push(node);
  }
  const ends = new Map();
  for (const one of tree.rollouts) ends.set(one.nodes.at(-1), [...(ends.get(one.nodes.at(-1)) ?? []), one]);
  const forks = new Set(tree.rollouts.map((one) => one.point).filter((id) => ["turn", "observation", "message"].includes(byId.get(id)?.kind)));
  let line = 0;
  // Children come behind their parents, so leaves are placed first, in the order of a walk.
  const stack = [...roots].reverse();
  while (stack.length) {
    const node = stack.pop();
    const own = ends.get(node.id)?.length ?? 0;
    node.y = line;
    if (own || !node.children.length) line += Math.max(1, own);
    stack.push(...[...node.children].reverse());
  }
  for (const node of [...byId.values()].reverse()) {
    if (node.children.length && !ends.has(node.id)) node.y = (node.children[0].y + node.children.at(-1).y) / 2;
  }
  const depth = Math.max(0, ...[...byId.values()].map((node) => node.depth));
  const step = depth > 30 ? 16 : depth > 14 ? 26 : 40;
  const at = (node) => [14 + node.depth * step, 16 + node.y * 20];
  const on = new Set(rollout?.nodes ?? []);
  const most = Math.max(1, ...nodes.map((node) => node.visits));
  const edges = [], marks = [], texts = [];
  for (const node of byId.values()) {
    const [x, y] = at(node);
    const parent = byId.get(node.parent);
    if (parent) {
      const [px, py] = at(parent);
      const line = s("path", { class: on.has(node.id) ? "edge on" : "edge", d: `M${px},${py}C${px + step / 2},${py} ${x - step / 2},${y} ${x},${y}`, "stroke-width": 1.2 + 3 * node.visits / most });
      if (known(node.value) && !on.has(node.id)) line.style.stroke = `hsl(${Math.round(Math.min(1, Math.max(0, node.value)) * 130)} 45% 55%)`;
      edges.push(line);
      if (parent.children.length > 1 && node.visits > 1) texts.push(s("text", { x: x - 4, y: y - 7, "text-anchor": "middle" }, `${node.visits}·${fixed(node.value)}`));
    }
    const through = () => pick((tree.rollouts.find((one) => one.id === rollout?.id && on.has(node.id)) ?? tree.rollouts.find((one) => one.nodes.includes(node.id)) ?? tree.rollouts[0])?.id ?? 0, node.id);
    const kind = `node ${node.kind} ${node.failed ? "failed" : ""} ${on.has(node.id) ? "on" : ""} ${forks.has(node.id) ? "fork" : ""}`;
    const title = s("title", {}, `${node.kind} ${node.agent ?? ""} ${forks.has(node.id) ? "· the strategy forked here " : ""}${node.failed ? "· the tool call failed " : ""}· ${node.visits} tries, value ${fixed(node.value)}`);
    marks.push(forks.has(node.id)
      ? s("rect", { class: kind, x: x - 5, y: y - 5, width: 10, height: 10, transform: `rotate(45 ${x} ${y})`, onclick: through }, title)
      : s("circle", { class: kind, cx: x, cy: y, r: node.kind === "turn" || node.failed ? 4.5 : 3, onclick: through }, title));
    (ends.get(node.id) ?? []).forEach((one, nth) => texts.push(s("text", {
      class: `leaf ${tone(one)} ${one.id === rollout?.id ? "on" : ""}`, x: x + 10, y: y + 4 + nth * 20, onclick: () => pick(one.id),
    }, label(one))));
  }
  const left = tree.nodes.length - nodes.length;
  return h("div", { class: "tree" }, s("svg", { width: 14 + depth * step + 190, height: Math.max(1, line) * 20 + 14, role: "img", "aria-label": "Tree of the task" }, ...edges, ...marks, ...texts),
    left > 0 ? h("p", { class: "soft" }, `${count(left)} more nodes are not drawn`) : null);
}

function outcome(rollout) {
  const usage = rollout.usage;
  const made = [
    ["ended", words(rollout.termination ?? "growing")], ...again(rollout.retried), ["answer", rollout.answer === "" ? "(empty)" : rollout.answer ?? "–"],
    ["reward", fixed(rollout.reward, 3)],
    ...rollout.parts.map((part) => [`  ${part.reward}`, `${fixed(part.value, 3)}${known(part.weight) ? ` × ${part.weight}` : " (earlier)"}${part.why ? `  ${part.why}` : ""}`]),
    ...rollout.verdicts.map((one) => [`filter ${one.filter}`, `${one.action}${one.amount ? ` ${one.amount}` : ""}${one.reason ? `: ${one.reason}` : ""}`]),
    ["cost", `${count(usage.calls)} calls, ${count(usage.prompt)} tokens in, ${count(usage.generated)} out${usage.retries ? `, ${usage.retries} retries` : ""}; models ${duration(rollout.seconds[0])}, tools ${duration(rollout.seconds[1])}`],
  ];
  const error = rollout.error;
  return h("div", {}, h("table", { class: "figures" }, h("tbody", {}, made.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", {}, value))))),
    error ? h("pre", { class: broke(rollout) ? "error" : "error soft" }, [`${error.kind ?? ""} ${error.message}`, error.blame, ...(error.tries ?? []), error.evidence].filter(Boolean).join("\n")) : null);
}

function again(retried) {
  if (!retried) return [];
  const reward = known(retried.reward) ? `, reward ${fixed(retried.reward, 3)}` : "";
  const why = retried.chosen ? "; chosen by its result" : "";
  return [["before that", `${words(retried.was)}${reward}; try ${retried.by} stands in its place${why}`]];
}

function transcript(tree, rollout, here) {
  const byId = new Map(tree.nodes.map((node) => [node.id, node]));
  return h("div", { class: "turns" }, rollout.nodes.map((id) => byId.get(id)).filter(Boolean).map((node) => said(node, node.id === here)));
}

function said(node, here) {
  const about = [
    node.agent, node.tool, node.weights && `weights ${node.weights}`, known(node.generated) && counted(node.generated, "token"),
    known(node.entropy) && `entropy ${fixed(node.entropy)}`, node.finish && node.finish !== "stop" && node.finish !== "tool_calls" && node.finish,
  ].filter(Boolean).join(" · ");
  const thought = /^\s*<think>([^]*?)<\/think>\s*/.exec(node.kind === "turn" ? node.text : "");
  const text = thought ? node.text.slice(thought[0].length) : node.text;
  const reasoning = [node.reasoning, thought?.[1].trim()].filter(Boolean).join("\n\n");
  const long = node.kind === "observation" || node.role === "system" || text.length > 4000;
  return h("article", { class: `said ${node.kind} ${node.failed ? "failed" : ""} ${here ? "here" : ""}`, "data-node": node.id },
    h("div", {}, h("span", { class: "role" }, node.role || node.kind), node.failed ? h("span", { class: "bad" }, "failed") : null, h("span", { class: "soft" }, about)),
    reasoning ? folded("reasoning", `reasoning: ${first(reasoning)}`, reasoning) : null,
    !text.trim() ? null : long ? folded("text", first(text), text) : h("pre", {}, text),
    node.calls.map((call) => folded("call", `→ ${call.name}  ${first(call.arguments)}`, pretty(call.arguments))),
    node.report ? folded("report", "report on the path to here", node.report) : null,
    node.logprobs ? shaded(node) : null);
}

const first = (text) => (text.length > 90 ? `${text.slice(0, 90).replaceAll(/\s+/g, " ")}…` : text.replaceAll(/\s+/g, " "));

function pretty(text, show = (value) => JSON.stringify(value, null, 2)) {
  try {
    return show(JSON.parse(text));
  } catch {
    return text;
  }
}

function folded(kind, title, text) {
  return h("details", { class: kind, open: sought(text) }, h("summary", {}, title), h("pre", {}, text));
}

function shaded(node) {
  const cells = node.logprobs.map((value, nth) => {
    const cell = h("span", { class: known(value) ? "" : "none", title: `token ${nth + 1}, id ${node.ids[nth]}: ${known(value) ? `log-prob ${value.toFixed(3)}` : "not sampled"}` });
    if (known(value)) cell.style.opacity = String(Math.min(1, 0.06 - value / 4));
    return cell;
  });
  const sampled = node.logprobs.filter(known);
  const mean = sampled.length ? sampled.reduce((a, b) => a + b, 0) / sampled.length : null;
  return h("details", { class: "shading" }, h("summary", {}, `tokens by log-prob, mean ${fixed(mean, 3)}; the redder, the less likely`), h("div", { class: "tokens" }, cells), node.more ? h("p", { class: "soft" }, `${count(node.more)} more tokens`) : null);
}

// Totals; where time and tokens went.

async function summary() {
  put($("main"), h("p", { class: "soft" }, "reading all rows …"));
  const run = state.run;
  const found = state.summaries[run] ??= await source.summary(run);
  if (state.tab !== "summary" || state.run !== run) return;
  head();
  totals(found);
}

function totals(found) {
  const chosen = $("by")?.closest("section");
  const time = found.time;
  const spent = (rows) => h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["", "calls", "failed", "time", "share"].map((name, nth) => h("th", { class: nth ? "num" : "" }, name)))),
    h("tbody", {}, rows.map((one) => h("tr", {}, h("td", {}, one.name), h("td", { class: "num" }, count(one.calls)), h("td", { class: one.failed ? "num bad" : "num" }, count(one.failed)), h("td", { class: "num" }, duration(one.seconds)), h("td", { class: "num" }, share(one.share)))))));
  const usage = found.usage;
  put($("main"), h("div", { class: "grid" },
    block("Results", [
      ["accuracy", range(found.accuracy)], [`best of ${found.tries}`, range(found.best_of_n)], ["majority", range(found.majority)],
      ["tasks solved", `${count(found.solved)} of ${count(found.finished)}`],
      ...Object.entries(found.terminations).map(([word, n]) => [words(word), word === "answer" && found.empty ? `${count(n)}, ${count(found.empty)} of them empty` : count(n)]),
      ...(found.first_try ? [["first tries", `${range(found.first_try)}, as ${count(found.chosen)} were chosen by their result`]] : []),
      ...found.failures.map(([why, n]) => [`${count(n)} broke`, why]),
      ...found.filters.map((one) => [`filter ${one.filter}`, `${one.masked} masked, ${one.dropped} dropped, ${one.penalised} penalised`]),
    ]),
    block("Tokens", [
      ["in", big(usage.prompt)], ["of these cached", known(found.cached) && usage.prompt ? share(usage.cached / usage.prompt) : "–"],
      ["out", big(usage.generated)], ["as chains", big(found.tokens.flat)], ["as trees", big(found.tokens.tree)],
      ["saved by sharing", share(found.shared.reuse)], ["spent", found.spent ? `${money(found.spent) ?? "not known"}${found.spent.unpriced ? `, ${counted(found.spent.unpriced, "call")} unpriced` : ""}` : "no price given"],
    ]),
    block("Work", [
      ["wall time", duration(found.seconds)], ["rate", known(found.rate) ? `${fixed(found.rate, 1)} tries/s` : "–"],
      ["model turns", count(usage.calls)], ["retries", retries(usage.retries, found.retry_causes) || "0"], ["tool calls", `${count(usage.tools)}, ${count(usage.tool_errors)} failed`],
      ...Object.entries(state.runs[state.run].settings).filter(([, value]) => known(value) && value.length !== 0).map(([name, value]) => [name, described(value)]),
    ]),
    h("section", { class: "panel" }, h("h2", {}, "Time by agent"), spent(time.agents), h("h3", {}, "Time by tool"), time.tools.length ? spent(time.tools) : h("p", { class: "soft" }, "no tool calls")),
    chosen ?? (state.runs[state.run].fields.length ? categories() : null),
  ));
}

// Accuracy by the values of a field of the tasks' metadata.

function categories() {
  const run = state.run;
  const place = h("div", { id: "categories" });
  const open = (field, value) => guarded(async () => {
    const same = ([json]) => json === value || JSON.parse(json) === value;
    Object.assign(state.query, { field, value: (await source.values(run, field)).find(same)?.[0] ?? "", page: 0 });
    state.open = null;
    await show("tasks");
  });
  const draw = guarded(async (field) => {
    put(place, h("p", { class: "soft" }, "reading all rows …"));
    const found = await source.categories(run, field);
    put(place, h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, [field, "tries", "accuracy"].map((name, nth) => h("th", { class: nth ? "num" : "" }, name)))),
      h("tbody", {}, found.map((one) => h("tr", {
        class: "pick", tabindex: 0, onclick: open(field, one.value), onkeydown: (event) => { if (event.key === "Enter") open(field, one.value)(); },
      }, h("td", {}, one.value), h("td", { class: "num" }, count(one.rollouts)), h("td", { class: "num" }, range(one.accuracy)))))),
    ));
  });
  return h("section", { class: "panel" }, h("h2", {}, "Accuracy by category"), h("p", {}, h("select", {
    id: "by", "aria-label": "Category", onchange: (event) => event.target.value && draw(event.target.value),
  }, h("option", { value: "" }, "choose a category"), state.runs[run].fields.map((name) => h("option", { value: name }, name)))), place);
}

function described(value) {
  if (Array.isArray(value)) return value.map(described).join(", ");
  if (typeof value !== "object" || !value) return String(value);
  if (value.roles) return `of ${Object.keys(value.roles).join(", ")}`;
  if (typeof value.kind !== "string") return JSON.stringify(value);
  const options = Object.entries(value.options ?? {}).filter(([, one]) => known(one) && one !== false && one.length !== 0);
  return value.kind + (options.length ? ` (${options.map(([name, one]) => `${name} ${typeof one === "object" ? JSON.stringify(one) : one}`).join(", ")})` : "");
}

function block(title, rows) {
  return h("section", { class: "panel" }, h("h2", {}, title), h("table", { class: "figures" }, h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", {}, value))))));
}

// Two runs side by side.

async function comparison(selected = false) {
  put($("main"), h("p", { class: "soft" }, "comparing …"));
  let found;
  try {
    found = await source.compare(selected);
  } catch (problem) {
    const more = source instanceof Server && !selected && problem.message.includes("--allow-selected");
    put($("main"), h("p", { class: "bad" }, problem.message), more ? h("button", { id: "selected", onclick: guarded(() => comparison(true)) }, "compare them with these tries") : null);
    return;
  }
  if (state.tab !== "compare") return;
  const paired = found.paired;
  const points = (value) => `${value > 0 ? "+" : ""}${(value * 100).toFixed(1)}`;
  const open = (id) => guarded(async () => {
    const trees = await Promise.all([0, 1].map((run) => source.task(run, id)));
    $("pair").replaceChildren(...trees.map((tree) => detail(tree, { rollout: tree.rollouts[0]?.id ?? 0 })));
    $("pair").scrollIntoView({ block: "start" });
  });
  put($("main"), h("div", { class: "grid" },
    block("What changed", [
      [`${found.metric} of A`, range(found.a.estimate)], [`${found.metric} of B`, range(found.b.estimate)],
      ["B less A", `${points(paired.difference)}${ends(paired.low, paired.high, points)} points, p = ${fixed(paired.p, 4)}`],
      ["tasks", `${count(paired.tasks)}: ${count(paired.better)} better, ${count(paired.worse)} worse, ${count(paired.same)} the same`],
      ["tokens out, A and B", `${count(found.a.usage.generated)}, ${count(found.b.usage.generated)}`],
      ...[["A", found.a], ["B", found.b]].filter(([, side]) => side.chosen).map(([name, side]) => [
        `asked again in ${name}`, `${side.chosen === 1 ? "1 try" : `${count(side.chosen)} tries`} because of their result; first tries ${range(side.first_try)}`]),
      ["only in A, only in B", `${count(found.only_a.length)}, ${count(found.only_b.length)}`],
      ["other content, left out", count(found.different.length)],
    ]),
    h("section", { class: "panel" }, h("h2", {}, "Tasks that changed"), h("div", { class: "scroll" }, h("table", { id: "changed" },
      h("thead", {}, h("tr", {}, ["task", "A", "B", "B less A"].map((name, nth) => h("th", { class: nth ? "num" : "" }, name)))),
      h("tbody", {}, found.changed.slice(0, 200).map((one) => h("tr", {
        class: "pick", tabindex: 0, "data-id": one.task, onclick: open(one.task), onkeydown: (event) => { if (event.key === "Enter") open(one.task)(); },
      }, h("td", { class: "id" }, one.task), h("td", { class: "num" }, fixed(one.a)), h("td", { class: "num" }, fixed(one.b)),
      h("td", { class: `num ${one.difference > 0 ? "good" : "bad"}` }, (one.difference > 0 ? "+" : "") + fixed(one.difference)))))),
    found.changed.length > 200 ? h("p", { class: "soft" }, `${count(found.changed.length - 200)} more: trunkline compare`) : null)),
  ), h("div", { class: "pair", id: "pair" }));
}

// Keys, and a run that grows.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && state.open) closeTask();
  else if (typing) return;
  else if (event.key === "/" && $("text")) {
    event.preventDefault();
    $("text").focus();
  } else if ((event.key === "j" || event.key === "k") && state.rows.length && state.tab === "tasks") {
    const all = [...document.querySelectorAll("#rows tr.pick")];
    const now = all.findIndex((one) => one === document.activeElement || one.dataset.id === state.open?.id);
    const next = all[Math.min(all.length - 1, Math.max(0, now + (event.key === "j" ? 1 : -1)))];
    next.focus();
    if (state.open) next.click();
  } else if ((event.key === "[" || event.key === "]") && state.open) {
    const next = state.rollout + (event.key === "]" ? 1 : -1);
    document.querySelector(`#detail [data-rollout="${next}"]`)?.click();
  }
});

// Work that is done when it is asked for, and then rests so many times as long as it took; the run's end does not wait.
function paced(work, rest) {
  let resting = false, asked = false;
  const run = async () => {
    const begun = performance.now();
    resting = true;
    asked = false;
    try {
      await work();
    } finally {
      setTimeout(() => {
        resting = false;
        if (asked) run().catch(tell);
      }, rest * (performance.now() - begun));
    }
  };
  return async (live) => {
    asked = true;
    if (!resting || !live) await run();
  };
}

async function followed(number) {
  let latest = 0;
  const measure = paced(async () => {
    const mine = ++latest;
    const found = await source.summary(number);
    if (mine !== latest) return;
    state.summaries[number] = found;
    head();
    if (state.tab === "summary" && state.run === number) totals(found);
  }, 10);
  const refresh = paced(async () => {
    if (state.run === number && state.tab === "tasks") await guarded(load)();
  }, 5);
  await source.follow(number, (run) => {
    state.runs[number] = { ...run, asked: run.progress?.asked || state.runs[number].asked };
    head();
    if (run.rollouts) measure(run.live).catch(tell);
    refresh(run.live).catch(tell);
  });
}

guarded(async () => {
  state.runs = await source.runs();
  head();
  await show("tasks");
  state.runs.forEach((run, number) => {
    if (run.live && source.follow) followed(number).catch(tell);
    else if (source instanceof Embedded || run.rollouts) source.summary(number).then((found) => { state.summaries[number] = found; head(); }, tell);
  });
  document.body.dataset.ready = "true";
})();
