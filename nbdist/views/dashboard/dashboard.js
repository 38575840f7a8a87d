// The dashboard under a cell: a store for each model, a view for each place where it is shown.
//
// One module, since anywidget loads one file and there is no build step; hence its length. From top to bottom:
// texts, numbers, the store, the page's elements, the sections (heading, bars, failures, ranks, charts, log),
// the view. What a picture holds is told in picture.py. Every text of it goes into the page through `say` or
// `fillLine`, as text; only a log entry of the kind `html` is markup, made by the user's own code.

// ---- texts ----

const CSI = /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)/g;
// Controls, marks that turn text round or cannot be seen, halves of characters, tags.
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;
const LONGEST_LINE = 20_000; // characters that a line shows; all of it is in the files

function escaped(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u2039U+${code.toString(16).toUpperCase().padStart(4, "0")}\u203a`;
}

function visible(text) {
  return String(text ?? "").replace(HIDDEN, escaped);
}

function plain(text) {
  return visible(String(text ?? "").replace(CSI, ""));
}

// A text with a terminal's colours, as pieces of one style each.
function ansiPieces(text) {
  const cut = text.length > LONGEST_LINE;
  const kept = cut ? text.slice(0, LONGEST_LINE) : text;
  const pieces = [];
  let style = {};
  let start = 0;
  const add = (part) => part && pieces.push({ text: visible(part), style });
  for (const match of kept.matchAll(CSI)) {
    add(kept.slice(start, match.index));
    start = match.index + match[0].length;
    if (match[1] !== undefined) style = styleAfter(style, match[1].split(/[;:]/).map(Number));
  }
  add(kept.slice(start));
  if (cut) pieces.push({ text: ` \u2026 ${text.length - LONGEST_LINE} more characters`, style: { dim: true } });
  return pieces;
}

const FLAGS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
const FLAG_ENDS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

function styleAfter(style, codes) {
  let after = { ...style };
  const queue = codes.length ? [...codes] : [0];
  while (queue.length) {
    const code = queue.shift();
    if (code === 0) after = {};
    else if (FLAGS[code]) after[FLAGS[code]] = true;
    else if (FLAG_ENDS[code]) FLAG_ENDS[code].forEach((flag) => delete after[flag]);
    else if (code === 38 || code === 48) after[code === 38 ? "ink" : "paper"] = extendedColour(queue);
    else if (code === 39) delete after.ink;
    else if (code === 49) delete after.paper;
    else if (code >= 30 && code <= 37) after.ink = ansiColour(code - 30);
    else if (code >= 90 && code <= 97) after.ink = ansiColour(code - 82);
    else if (code >= 40 && code <= 47) after.paper = ansiColour(code - 40);
    else if (code >= 100 && code <= 107) after.paper = ansiColour(code - 92);
  }
  return after;
}

const ansiColour = (number) => `var(--nbd-ansi-${number})`;

function extendedColour(queue) {
  const kind = queue.shift();
  if (kind === 2) return `rgb(${[0, 0, 0].map(() => Math.min(queue.shift() || 0, 255)).join(",")})`;
  const number = kind === 5 ? Math.min(queue.shift() || 0, 255) : 0;
  if (number < 16) return ansiColour(number);
  if (number >= 232) return `rgb(${[0, 0, 0].fill(8 + 10 * (number - 232)).join(",")})`;
  const steps = [Math.floor((number - 16) / 36), Math.floor((number - 16) / 6) % 6, (number - 16) % 6];
  return `rgb(${steps.map((step) => (step ? 55 + 40 * step : 0)).join(",")})`;
}

// The ranks that a text such as `0-3,7` means; null where it means none or all.
function ranksIn(text) {
  const found = new Set();
  for (const [, low, high] of String(text).matchAll(/(\d+)(?:\s*[-\u2013]\s*(\d+))?/g)) {
    const last = Math.min(Number(high ?? low), Number(low) + 100_000);
    for (let rank = Number(low); rank <= last; rank += 1) found.add(rank);
  }
  return found.size ? found : null;
}

// ---- numbers ----

const NOTHING = "\u2013";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const isWord = (value) => typeof value === "string"; // for a number that is not finite: `nan`, `inf`, `-inf`

// As `words.py` writes them, and by the same arithmetic: the page and what is kept of it say the same.

function numberText(value) {
  if (!isNumber(value)) return value === null || value === undefined ? NOTHING : plain(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return grouped(value || 0); // there is no -0
  if (size >= 1e6 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(size >= 1000 ? 6 : 4)));
}

function grouped(number, decimals = 0) {
  return number.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

const tenthsText = (number) => grouped(Math.floor(number * 10 + 0.5) / 10, 1);

function bytesText(bytes) {
  if (!isNumber(bytes)) return NOTHING;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let [size, unit] = [bytes, 0];
  while (size >= 1024 && unit < units.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${unit && size < 100 ? tenthsText(size) : grouped(Math.floor(size + 0.5))} ${units[unit]}`;
}

// `61.0 of 139 GiB`
function partText(part, total) {
  if (!isNumber(part) || !total) return bytesText(part);
  const [own, all] = [bytesText(part).split(" "), bytesText(total).split(" ")];
  return `${own[1] === all[1] ? own[0] : own.join(" ")} of ${all.join(" ")}`;
}

const percentText = (share) => (isNumber(share) ? `${Math.floor(share * 100 + 0.5)}%` : NOTHING);
const coresText = (cores) => (isNumber(cores) ? `${tenthsText(cores)} cores` : NOTHING);

function elapsedText(ms) {
  const seconds = Math.max(ms, 0) / 1000;
  if (seconds < 10) return `${tenthsText(seconds)} s`;
  const whole = Math.floor(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (number) => String(number).padStart(2, "0");
  if (hours) return `${grouped(hours)} h ${two(minutes)} min`;
  return minutes ? `${minutes} min ${two(rest)} s` : `${whole} s`;
}

function ceilingOf(values, least) {
  const most = Math.max(least, ...values.filter(isNumber));
  return 2 ** Math.ceil(Math.log2(most));
}

// ---- the store: one picture, kept up to date ----

const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// JSON Merge Patch; what did not change stays the same object, so that who shows it can tell.
function merged(target, patch) {
  if (!isTable(patch)) return patch;
  const result = isTable(target) ? { ...target } : {};
  for (const key of Object.keys(patch)) {
    if (patch[key] === null) delete result[key];
    else put(result, key, merged(Object.hasOwn(result, key) ? result[key] : undefined, patch[key]));
  }
  return result;
}

function put(table, key, value) {
  if (key !== "__proto__") table[key] = value;
  else Object.defineProperty(table, key, { value, enumerable: true, configurable: true, writable: true }); // a metric's name, too
}

function withoutOldLines(picture) {
  const log = picture.log;
  if (!isTable(log) || !isTable(log.lines)) return picture;
  const old = Object.keys(log.lines).filter((number) => Number(number) < (log.first ?? 0));
  if (!old.length) return picture;
  const lines = { ...log.lines };
  for (const number of old) delete lines[number];
  return { ...picture, log: { ...log, lines } };
}

const SILENT_MS = 15_000; // three times as long as a kernel that lives is silent

class Store {
  constructor(model) {
    this.model = model;
    this.picture = null;
    this.number = -1;
    this.offsetMs = Infinity; // page's clock minus kernel's; the smallest seen is the least delayed
    this.isAsking = false;
    this.wasGreeted = false;
    this.watchers = new Set();
    this.onKeyframe = () => this.takeKeyframe(model.get("keyframe"));
    this.onMessage = (message) => message?.kind === "patch" && this.takePatch(message);
    // Said of a model that is cut off from its kernel, as JupyterLab does at a restart. What comes later tells otherwise.
    this.onCut = () => this.cut();
    model.on("change:keyframe", this.onKeyframe);
    model.on("msg:custom", this.onMessage);
    model.on("comm_live_update", this.onCut);
    this.onKeyframe();
  }

  takeKeyframe(keyframe) {
    this.hear();
    if (!isTable(keyframe?.picture) || keyframe.number < this.number) return;
    this.isAsking = false;
    this.take(keyframe, merged(null, keyframe.picture));
  }

  takePatch(message) {
    this.hear();
    if (message.number <= this.number) return;
    if (this.picture && message.number === this.number + 1) {
      this.take(message, merged(this.picture, message.patch));
    } else if (!this.isAsking) {
      this.isAsking = true;
      this.send("picture");
    }
  }

  take({ number, now_ms }, picture) {
    this.number = number;
    this.picture = withoutOldLines(picture);
    if (isNumber(now_ms)) this.offsetMs = Math.min(this.offsetMs, this.heardMs - now_ms);
    this.tellWatchers();
  }

  hear() {
    this.heardMs = Date.now();
    this.isCut = false;
  }

  cut() {
    this.isCut = true;
    this.tellWatchers();
  }

  tellWatchers() {
    for (const watcher of this.watchers) watcher();
  }

  nowMs() {
    return this.kernelMs(Date.now());
  }

  kernelMs(pageMs) {
    return pageMs - (Number.isFinite(this.offsetMs) ? this.offsetMs : 0);
  }

  silentMs() {
    return Date.now() - this.heardMs;
  }

  greet() {
    if (!this.wasGreeted) this.send("hello");
    this.wasGreeted = true;
  }

  send(kind) {
    this.model.send({ kind });
  }

  close() {
    this.model.off("change:keyframe", this.onKeyframe);
    this.model.off("msg:custom", this.onMessage);
    this.model.off("comm_live_update", this.onCut);
    this.watchers.clear();
  }
}

// ---- the page's elements ----

let elementCount = 0;
const newId = () => `nbd-${(elementCount += 1)}-${Math.random().toString(36).slice(2, 8)}`;

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function say(node, text) {
  const shown = plain(text);
  if (node.textContent !== shown) node.textContent = shown;
}

// Texts side by side, each kept from turning the others round.
function sayParts(node, texts) {
  const shown = texts.map(plain).filter(Boolean);
  const signature = shown.join("\n");
  if (node.dataset.parts === signature) return;
  node.dataset.parts = signature;
  node.replaceChildren(...shown.flatMap((text, index) => [index ? " \u00b7 " : "", make("bdi", "nbd-part", text)]));
}

function hint(node, text) {
  const shown = plain(text);
  if ((node.getAttribute("title") ?? "") === shown) return;
  if (shown) node.setAttribute("title", shown);
  else node.removeAttribute("title");
}

function mark(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}

function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

function button(className, text, onClick) {
  const node = make("button", `nbd-button ${className}`, text);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

function toggle(text, title, onChange) {
  const node = button("nbd-toggle", text, () => {
    const isOn = node.getAttribute("aria-pressed") !== "true";
    node.setAttribute("aria-pressed", String(isOn));
    onChange(isOn);
  });
  node.setAttribute("aria-pressed", "false");
  node.title = title;
  return node;
}

function choose(select, options) {
  const signature = JSON.stringify(options);
  if (select.dataset.options === signature) return;
  const chosen = select.value;
  select.dataset.options = signature;
  select.replaceChildren(...options.map(([value, text]) => new Option(plain(text), value)));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

// Children by key: made once, updated where they stand, in the order of the entries.
class Keyed {
  constructor(node, create) {
    this.node = node;
    this.create = create;
    this.items = new Map();
  }

  show(entries) {
    const left = new Set(this.items.keys());
    let place = this.node.firstChild;
    for (const [key, ...values] of entries) {
      left.delete(key);
      let item = this.items.get(key);
      if (!item) this.items.set(key, (item = this.create(key)));
      if (item.node === place) place = place.nextSibling;
      else this.node.insertBefore(item.node, place);
      item.update(...values);
    }
    for (const key of left) {
      this.items.get(key).node.remove();
      this.items.get(key).close?.();
      this.items.delete(key);
    }
  }
}

class Meter {
  constructor(label) {
    this.label = make("span", "nbd-meter-label", label);
    this.fill = make("span", "nbd-fill");
    this.value = make("span", "nbd-meter-value");
    this.node = make("div", "nbd-meter", this.label, make("span", "nbd-track", this.fill), this.value);
  }

  update(share, text, title) {
    const width = isNumber(share) ? Math.max(0, Math.min(1, share)) : 0;
    this.fill.style.transform = `scaleX(${width.toFixed(3)})`;
    say(this.value, text);
    hint(this.node, title);
  }
}

// A part of the panel that folds; whoever opened or closed it is obeyed from then on.
class Section {
  constructor(title, className, onToggle) {
    this.body = make("div", `nbd-body ${className}`);
    this.body.id = newId();
    this.title = make("span", "nbd-section-title", title);
    this.note = make("span", "nbd-note");
    this.fold = button("nbd-fold", "", () => this.setOpen(!this.isOpen, true));
    this.fold.append(make("span", "nbd-chevron"), this.title);
    this.fold.setAttribute("aria-controls", this.body.id);
    const heading = make("div", "nbd-section-heading", this.fold);
    heading.setAttribute("role", "heading");
    heading.setAttribute("aria-level", "3");
    this.tools = make("div", "nbd-tools");
    const head = make("div", "nbd-section-head", heading, this.note, this.tools);
    this.node = make("section", "nbd-section", head, this.body);
    this.onToggle = onToggle;
    this.wasChosen = false;
    this.setOpen(true, false);
  }

  setOpen(isOpen, byUser) {
    if (byUser) this.wasChosen = true;
    else if (this.wasChosen) return;
    if (this.isOpen === isOpen) return;
    this.isOpen = isOpen;
    this.fold.setAttribute("aria-expanded", String(isOpen));
    show(this.body, isOpen);
    show(this.tools, isOpen);
    if (byUser) this.onToggle();
  }
}

// ---- states ----

const STATES = ["failed", "dead", "asking", "waiting", "starting", "running", "finishing", "interrupted", "finished", "idle"];
const OVER = new Set(["finished", "failed", "interrupted", "dead", "stopped", "idle"]);

// The state as a word, and what it is about where that says more.
class StateMark {
  constructor() {
    this.dot = make("span", "nbd-dot");
    this.word = make("span", "nbd-word");
    this.told = make("span", "nbd-told");
    this.node = make("span", "nbd-state", this.dot, this.word, this.told);
  }

  update(state, told) {
    const more = plain(told);
    const tellsBoth = more.slice(0, 4) === state.slice(0, 4); // `waits in all_reduce` says that it is waiting
    mark(this.node, "state", state);
    say(this.word, tellsBoth ? more : state);
    say(this.told, tellsBoth ? "" : more);
    hint(this.node, tellsBoth || !more ? more : `${state}: ${more}`);
  }
}

// ---- heading ----

const BUTTON_TITLES = {
  interrupt: "Interrupt the run; what it has changed is kept",
  stop: "End the ranks at once; what they changed is discarded",
};

const UNHEARD_MS = 5_000;

class HeadingBar {
  constructor(view) {
    this.view = view;
    this.state = new StateMark();
    this.title = make("span", "nbd-title");
    this.elapsed = make("span", "nbd-elapsed");
    this.elapsed.title = "Elapsed";
    this.facts = make("span", "nbd-facts");
    this.hint = make("span", "nbd-hint");
    this.button = button("nbd-end", "", () => this.click());
    this.spoken = make("span", "nbd-spoken");
    this.spoken.setAttribute("aria-live", "polite");
    const names = make("div", "nbd-names", this.title, this.state.node);
    const numbers = make("div", "nbd-numbers", this.elapsed, this.facts);
    this.node = make("header", "nbd-header", names, numbers, this.hint, this.button, this.spoken);
    this.clicked = null; // what was sent and not heard yet
    this.loss = "";
  }

  // Until the picture says that the first click was heard, all further ones are the same click: a second interrupt
  // discards what the ranks have changed, and who clicks again because a busy kernel does nothing does not mean that.
  click() {
    if (!this.clicked) [this.clicked, this.clickedMs] = [{ kind: this.wanted, click: newId() }, Date.now()];
    this.send(this.clicked, 20);
    this.showButton(this.wanted);
  }

  // JupyterLab may send to a subshell that the kernel does not know, and the message is lost: it is sent again until
  // the picture says that it was heard.
  send(message, times) {
    this.view.store.model.send(message);
    clearTimeout(this.again);
    if (times) this.again = setTimeout(() => this.clicked === message && this.send(message, times - 1), 1500);
  }

  showButton(wanted) {
    if (wanted !== this.wanted) this.clicked = null;
    this.wanted = wanted;
    show(this.button, Boolean(wanted));
    if (!wanted) return;
    this.button.disabled = Boolean(this.loss);
    const [word, goesOn] = wanted === "stop" ? ["Stop", "Stopping\u2026"] : ["Interrupt", "Interrupting\u2026"];
    say(this.button, this.clicked ? goesOn : word);
    this.button.title = this.clicked ? "The kernel has not heard it yet: while it runs a cell, it hears no click" : BUTTON_TITLES[wanted];
  }

  update(heading) {
    const { title = "", state = "starting", told = "", world_size: size = 0, devices = "" } = heading;
    say(this.title, title);
    this.title.style.minWidth = `${0.7 * Math.min(plain(title).length, 12)}ch`; // the state is what one looks for
    hint(this.title, title);
    this.loss = this.view.loss();
    if (this.loss === "gone") this.state.update("lost", "the kernel has gone");
    else this.state.update(state, told);
    sayParts(this.facts, [`${numberText(size)} ${size === 1 ? "rank" : "ranks"}`, devices]);
    hint(this.facts, devices);
    this.showButton(this.loss === "gone" ? null : (heading.button ?? null));
    this.showHint(heading);
    if (this.loss && this.loss !== this.spokenLoss) say(this.spoken, `${plain(title)}: no word from the kernel`);
    this.spokenLoss = this.loss;
    if (state !== this.spokenState) say(this.spoken, `${plain(title)}: ${plain(told || state)}`);
    this.spokenState = state;
    this.tick(heading);
  }

  // What to do about a click that a kernel which is not busy should have heard by now.
  unheard(heading) {
    if (!this.clicked || Date.now() - this.clickedMs < UNHEARD_MS) return "";
    const title = plain(heading.title);
    const code = /^[A-Za-z_]\w*$/.test(title) ? `${title}.${this.clicked.kind}()` : `%distributed stop --name ${title}`;
    return `Not heard yet: the kernel hears no click while it runs a cell. If it runs none: ${code} in a cell.`;
  }

  showHint(heading) {
    const silent = `No word from the kernel for ${elapsedText(this.view.store.silentMs())}`;
    const unheard = this.unheard(heading);
    const text = this.loss === "gone" ? "This is the last that was heard of it." : this.loss ? silent : unheard || (heading.hint ?? "");
    say(this.hint, text);
    hint(this.hint, text);
    const isWarning = Boolean(this.loss || unheard);
    mark(this.hint, "lost", String(isWarning));
    show(this.hint, Boolean(text) && (isWarning || !heading.button));
  }

  tick(heading) {
    if (!isNumber(heading?.begun_ms)) return say(this.elapsed, NOTHING);
    if (this.loss || this.clicked) this.showHint(heading);
    say(this.elapsed, elapsedText((heading.ended_ms ?? this.view.nowMs()) - heading.begun_ms));
  }

  close() {
    clearTimeout(this.again);
  }
}

// ---- progress bars ----

class ProgressBar {
  constructor() {
    this.label = make("span", "nbd-bar-label");
    this.ranks = make("span", "nbd-bar-ranks");
    this.fill = make("span", "nbd-fill");
    this.marks = make("span", "nbd-marks");
    this.count = make("span", "nbd-bar-count");
    this.track = make("div", "nbd-track nbd-bar-track", this.fill, this.marks);
    this.track.setAttribute("role", "progressbar");
    const names = make("div", "nbd-bar-names", this.label, this.ranks);
    this.node = make("div", "nbd-bar", names, this.track, this.count);
  }

  update(bar) {
    if (bar === this.shown) return;
    this.shown = bar;
    const share = isNumber(bar.total) && bar.total > 0 ? Math.max(0, Math.min(1, bar.done / bar.total)) : null;
    say(this.label, bar.label || "progress");
    hint(this.node, bar.text);
    say(this.ranks, bar.ranks ? `ranks ${bar.ranks}` : "");
    mark(this.track, "known", String(share !== null));
    this.fill.style.transform = `scaleX(${(share ?? 0).toFixed(4)})`;
    this.track.setAttribute("aria-label", plain(bar.label || "progress"));
    if (share === null) this.track.removeAttribute("aria-valuenow");
    else this.track.setAttribute("aria-valuenow", String(Math.round(share * 100)));
    sayParts(this.count, this.counts(bar, share));
    this.showMarks(bar);
  }

  counts(bar, share) {
    const steps = isNumber(bar.total) ? `${numberText(bar.done)} of ${numberText(bar.total)}` : numberText(bar.done);
    const left = isNumber(bar.left_s) && share !== 1 ? `${elapsedText(bar.left_s * 1000)} left` : "";
    return [share === null ? "" : percentText(share), steps, bar.rate, left];
  }

  showMarks(bar) {
    const steps = Object.entries(bar.by_rank ?? {});
    const isSpread = bar.total > 0 && new Set(steps.map(([, done]) => done)).size > 1;
    show(this.marks, isSpread);
    if (!isSpread) return;
    const places = new Map(); // ranks that stand together are one mark
    for (const [rank, done] of steps) {
      const place = Math.round((Math.min(done, bar.total) / bar.total) * 500) / 5;
      places.set(place, [...(places.get(place) ?? []), rank]);
    }
    this.keyed ??= new Keyed(this.marks, (place) => new BarMark(place));
    this.keyed.show([...places].map(([place, ranks]) => [place, ranks]));
  }
}

class BarMark {
  constructor(place) {
    this.node = make("span", "nbd-mark");
    this.node.style.left = `${place}%`;
  }

  update(ranks) {
    hint(this.node, `rank ${ranks.join(", ")}`);
  }
}

// ---- failures ----

class Failure {
  constructor() {
    this.title = make("span", "nbd-failure-title");
    this.ranks = make("span", "nbd-failure-ranks");
    this.trace = make("pre", "nbd-trace");
    this.trace.tabIndex = 0;
    this.node = make("details", "nbd-failure", make("summary", "nbd-summary", this.ranks, this.title), this.trace);
  }

  update(failure, isFirst) {
    const { ranks, line, title, traceback } = failure;
    const signature = JSON.stringify([ranks, line, title, traceback]);
    if (signature === this.signature) return;
    if (this.signature === undefined) this.node.open = isFirst;
    this.signature = signature;
    this.rankSet = ranksIn(ranks);
    const whose = ranks ? `${this.rankSet?.size > 1 ? "ranks" : "rank"} ${ranks}` : "";
    say(this.ranks, [whose, isNumber(line) ? `line ${line}` : ""].filter(Boolean).join(", "));
    say(this.title, title);
    hint(this.title, title);
    this.trace.replaceChildren();
    for (const line of String(traceback ?? "").split("\n")) {
      const row = make("div", "nbd-trace-line");
      fillLine(row, ansiPieces(line), []);
      this.trace.append(row);
    }
  }
}

class Failures {
  constructor(view) {
    this.section = new Section("Failure", "nbd-failures", () => view.schedule());
    this.causes = make("div");
    this.count = make("summary", "nbd-summary");
    this.others = make("div");
    this.consequences = make("details", "nbd-consequences", this.count, this.others);
    this.section.body.append(this.causes, this.consequences);
    this.keyedCauses = new Keyed(this.causes, () => new Failure());
    this.keyedOthers = new Keyed(this.others, () => new Failure());
  }

  // Open where tracebacks are seen here alone: under a cell that is waited for its own error stands, too.
  update(failures, isOpen) {
    show(this.section.node, failures.length > 0);
    if (failures === this.shown) return;
    this.shown = failures;
    const entries = failures.map((failure, index) => [`${index}`, failure, isOpen && index === 0]);
    const others = entries.filter(([, failure]) => failure.consequence);
    const causes = entries.filter(([, failure]) => !failure.consequence);
    this.keyedCauses.show(causes.length ? causes : others);
    this.keyedOthers.show(causes.length ? others : []);
    show(this.consequences, causes.length > 0 && others.length > 0);
    const ranks = new Set(others.flatMap(([, { ranks: of }]) => [...(ranksIn(of) ?? [])]));
    say(this.count, ranks.size === 1 ? "1 rank failed because of this" : `${ranks.size} ranks failed because of this`);
    say(this.section.title, causes.length > 1 ? `Failures (${causes.length})` : "Failure");
  }

  of(rank) {
    const all = [...this.keyedCauses.items.values(), ...this.keyedOthers.items.values()];
    return all.find((failure) => failure.rankSet?.has(Number(rank)));
  }

  reveal(rank) {
    const failure = this.of(rank);
    if (!failure) return;
    this.section.setOpen(true, true);
    if (this.others.contains(failure.node)) this.consequences.open = true;
    failure.node.open = true;
    failure.node.scrollIntoView({ block: "nearest" });
    failure.trace.focus({ preventScroll: true });
  }
}

// ---- ranks ----

function gpuOf(rank) {
  return isTable(rank.gpu) ? rank.gpu : null;
}

function useOf(rank, scales) {
  const gpu = gpuOf(rank);
  if (gpu) return [gpu.use, percentText(gpu.use), "GPU", "share of the time that the GPU was at work"];
  return [isNumber(rank.cpu) ? rank.cpu / scales.cpu : null, coresText(rank.cpu), "CPU", `of ${scales.cpu} cores`];
}

function memoryOf(rank, scales) {
  const gpu = gpuOf(rank);
  if (!gpu) {
    const share = isNumber(rank.memory_bytes) ? rank.memory_bytes / scales.memory : null;
    return [share, bytesText(rank.memory_bytes), `memory of the process, of ${bytesText(scales.memory)}`];
  }
  const used = gpu.used_bytes ?? gpu.memory_bytes;
  const title = `GPU memory: ${bytesText(gpu.memory_bytes)} of this process, ${bytesText(gpu.used_bytes)} in all; main memory ${bytesText(rank.memory_bytes)}`;
  return [isNumber(used) && gpu.total_bytes ? used / gpu.total_bytes : null, partText(used, gpu.total_bytes), title];
}

class CodeLine {
  constructor() {
    this.number = make("span", "nbd-code-number");
    this.text = make("span", "nbd-code-text");
    this.node = make("div", "nbd-code", this.number, this.text);
  }

  update(rank) {
    say(this.number, isNumber(rank.line) ? String(rank.line) : "");
    say(this.text, rank.text ? plain(rank.text).trim() : "");
    const place = rank.function ? `  (in ${plain(rank.function)})` : "";
    hint(this.node, rank.text ? `line ${rank.line ?? "?"}: ${plain(rank.text).trim()}${place}` : "");
    if (rank.text) this.node.tabIndex = 0; // so that focus shows the whole line
    else this.node.removeAttribute("tabindex");
  }
}

class RankCard {
  constructor(view, key) {
    this.view = view;
    this.key = key;
    this.swatch = make("span", "nbd-swatch");
    this.swatch.style.background = `var(--nbd-rank-${Number(key) % 8})`;
    this.device = make("span", "nbd-device");
    this.straggler = make("span", "nbd-straggler", "straggler");
    this.straggler.tabIndex = 0;
    const name = make("span", "nbd-rank-name", `Rank ${key}`);
    this.toLog = button("nbd-link", "Log", () => view.log.showRank(key));
    this.toTrace = button("nbd-link", "Traceback", () => view.failures.reveal(key));
    this.toLog.setAttribute("aria-label", `Log of rank ${key}`);
    this.toTrace.setAttribute("aria-label", `Traceback of rank ${key}`);
    const head = make("div", "nbd-card-head", this.swatch, name, this.device, this.straggler, this.toTrace, this.toLog);
    this.state = new StateMark();
    this.since = make("span", "nbd-since");
    this.since.title = "how long at this line, since its last step";
    this.code = new CodeLine();
    this.use = new Meter("CPU");
    this.memory = new Meter("Memory");
    this.metrics = make("div", "nbd-metrics");
    this.keyedMetrics = new Keyed(this.metrics, (metric) => new MetricValue(metric));
    this.rate = make("span", "nbd-rate");
    this.more = make("span", "nbd-more");
    this.done = make("span", "nbd-fill");
    this.doneTrack = make("div", "nbd-track nbd-done", this.done);
    this.node = make("article", "nbd-card", head,
      make("div", "nbd-card-state", this.state.node, this.since), this.code.node,
      this.use.node, this.memory.node, this.metrics,
      make("div", "nbd-card-foot", this.rate, this.more), this.doneTrack);
    this.node.setAttribute("aria-label", `rank ${key}`);
  }

  update(rank, scales) {
    const isFailed = rank.state === "failed" || rank.state === "dead";
    show(this.toTrace, isFailed && Boolean(this.view.failures.of(this.key)));
    if (rank === this.shown && scales.signature === this.scaleSignature) return this.tick();
    this.shown = rank;
    this.scaleSignature = scales.signature;
    mark(this.node, "state", rank.state);
    mark(this.node, "gpu", String(Boolean(gpuOf(rank))));
    say(this.device, rank.device);
    hint(this.device, rank.pid ? `${plain(rank.device)}, process ${rank.pid}` : rank.device);
    show(this.straggler, Boolean(rank.straggler));
    hint(this.straggler, rank.straggler);
    this.state.update(rank.state ?? "starting", rank.told);
    this.code.update(rank);
    this.showMeters(rank, scales);
    this.showMetrics(rank);
    this.tick();
  }

  showMeters(rank, scales) {
    const [share, text, label, title] = useOf(rank, scales);
    const gpu = gpuOf(rank);
    const heat = [isNumber(gpu?.power_w) ? `${Math.round(gpu.power_w)} W` : "", isNumber(gpu?.temperature_c) ? `${Math.round(gpu.temperature_c)} \u00b0C` : ""];
    const extra = heat.filter(Boolean).join(", ");
    say(this.use.label, label);
    this.use.update(share, text, extra ? `${title}; ${extra}` : title);
    this.memory.update(...memoryOf(rank, scales));
  }

  showMetrics(rank) {
    const all = Object.entries(rank.metrics ?? {});
    const [shown, rest] = [all.slice(0, 4), all.slice(4)];
    this.keyedMetrics.show(shown);
    this.metrics.style.setProperty("--nbd-metric-width", `${METRIC_EM * (8 + Math.max(0, ...shown.map(([name]) => plain(name).length)))}em`);
    say(this.more, rest.length ? `+${rest.length} more` : isNumber(rank.share) ? `${percentText(rank.share)} done` : "");
    hint(this.more, rest.map(([name, value]) => `${plain(name)} ${numberText(value)}`).join("\n"));
    say(this.rate, rank.rate);
    this.doneTrack.style.visibility = isNumber(rank.share) ? "visible" : "hidden";
    this.done.style.transform = `scaleX(${Math.max(0, Math.min(1, rank.share ?? 0))})`;
  }

  tick() {
    const rank = this.shown;
    const counts = rank && isNumber(rank.since_ms) && !OVER.has(rank.state) && !this.view.hasEnded();
    const ms = counts ? this.view.nowMs() - rank.since_ms : 0;
    say(this.since, ms < 1000 ? "" : elapsedText(ms)); // less is not worth a word
  }
}

const METRIC_EM = 0.58; // a letter's width, often; a number with the space before it has eight

class MetricValue {
  constructor(name) {
    this.value = make("span", "nbd-metric-value");
    // Of `train/loss` the end is seen where there is little room: it is what tells metrics apart.
    const [, group, own] = plain(name).match(/^(.*?)(\/[^/]{1,24})?$/s);
    const label = make("span", "nbd-metric-name", ...[group, own].filter(Boolean).map((part) => make("bdi", "", part)));
    hint(label, name);
    this.node = make("div", "nbd-metric", label, this.value);
  }

  update(value) {
    say(this.value, numberText(value));
    mark(this.value, "finite", String(!isWord(value)));
  }
}

class RankTile {
  constructor(grid, key) {
    this.state = new StateMark();
    this.use = new Meter("");
    this.code = make("span", "nbd-tile-code");
    const head = make("span", "nbd-tile-head", make("span", "nbd-tile-rank", key), this.state.node);
    this.node = button("nbd-tile", "", () => grid.select(key));
    this.node.append(head, this.code, this.use.node);
    this.node.dataset.rank = key;
    this.grid = grid;
    this.key = key;
  }

  update(rank, scales) {
    const isSelected = this.grid.selected === this.key;
    this.node.setAttribute("aria-pressed", String(isSelected));
    this.node.tabIndex = this.grid.focused === this.key ? 0 : -1;
    if (rank === this.shown && scales.signature === this.scaleSignature) return;
    this.shown = rank;
    this.scaleSignature = scales.signature;
    const [share, text, label] = useOf(rank, scales);
    mark(this.node, "straggler", String(Boolean(rank.straggler)));
    this.state.update(rank.state ?? "starting", rank.straggler ? "slow" : "");
    say(this.use.label, label);
    this.use.update(share, text, "");
    say(this.code, rank.text ? `${rank.line ?? ""}  ${plain(rank.text).trim()}` : "");
    hint(this.node, [`rank ${this.key}: ${plain(rank.told || rank.state)}`, plain(rank.straggler), plain(rank.text).trim()].filter(Boolean).join("\n"));
  }
}

// Many ranks as small squares on a canvas: what colours them is chosen, one of them is looked at.
class HeatStrip {
  constructor(ranks) {
    this.ranks = ranks;
    this.by = make("select", "nbd-select");
    this.by.setAttribute("aria-label", "colour ranks by");
    this.by.addEventListener("change", () => this.redraw());
    this.canvas = make("canvas", "nbd-heat");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-label", "rank");
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => say(this.tip, ""));
    this.canvas.addEventListener("click", (event) => this.point(event, true));
    this.canvas.addEventListener("keydown", (event) => this.press(event));
    this.tip = make("span", "nbd-heat-tip");
    this.legend = make("div", "nbd-legend");
    this.keyedLegend = new Keyed(this.legend, (key) => new LegendItem(key));
    this.scale = make("div", "nbd-scale", make("span", "nbd-scale-text"), make("span", "nbd-scale-ramp"), make("span", "nbd-scale-text"));
    this.node = make("div", "nbd-heat-box", make("div", "nbd-heat-head", make("label", "nbd-label", "Colour by ", this.by), this.legend, this.scale), this.canvas, this.tip);
  }

  update(entries) {
    this.entries = entries;
    this.all = new Map(entries);
    const metrics = namesOf(entries.map(([, rank]) => rank));
    const hasGpu = entries.some(([, rank]) => gpuOf(rank));
    choose(this.by, [["state", "state"], ["use", hasGpu ? "GPU use" : "CPU use"], ["memory", hasGpu ? "GPU memory" : "memory"], ...[...metrics].map((name) => [`metric ${name}`, name])]);
    this.canvas.setAttribute("aria-valuemin", "0");
    this.canvas.setAttribute("aria-valuemax", String(entries.length - 1));
    this.redraw();
  }

  valueOf(rank) {
    const by = this.by.value;
    const gpu = gpuOf(rank);
    if (by === "use") return gpu ? gpu.use : rank.cpu;
    if (by === "memory") return gpu ? gpu.used_bytes ?? gpu.memory_bytes : rank.memory_bytes;
    return rank.metrics?.[by.slice(7)];
  }

  valueText(value) {
    if (this.by.value === "memory") return bytesText(value);
    if (this.by.value !== "use") return numberText(value);
    return this.entries.some(([, rank]) => gpuOf(rank)) ? percentText(value) : coresText(value);
  }

  layout() {
    const width = this.ranks.view.width - 24;
    const size = this.entries.length > 512 ? 11 : 16;
    const columns = Math.max(8, Math.floor((width - 44) / (size * 8 + 4)) * 8); // eights: a machine each, often
    const rows = Math.ceil(this.entries.length / columns);
    const left = (column) => 40 + column * size + Math.floor(column / 8) * 4;
    return { size, columns, rows, left, width: left(columns), height: rows * size };
  }

  redraw() {
    if (!this.entries?.length || !this.ranks.view.width) return;
    const layout = (this.shape = this.layout());
    const context = preparedCanvas(this.canvas, layout.width, layout.height);
    const colours = this.ranks.view.colours;
    const isState = this.by.value === "state";
    const values = isState ? [] : this.entries.map(([, rank]) => this.valueOf(rank)).filter(isNumber);
    const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 0];
    context.font = `10px ${colours.font}`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    this.entries.forEach(([key, rank], index) => {
      const column = index % layout.columns;
      const [x, y] = [layout.left(column), Math.floor(index / layout.columns) * layout.size];
      if (column === 0 && (layout.size > 12 || (y / layout.size) % 2 === 0)) {
        context.fillStyle = colours.muted;
        context.fillText(key, 34, y + layout.size / 2);
      }
      if (isState) drawState(context, rank, x, y, layout.size, colours);
      else drawShare(context, this.valueOf(rank), low, high, x, y, layout.size, colours);
      if (key === this.ranks.selected) outline(context, x, y, layout.size, colours);
    });
    this.showLegend(isState, low, high, values.length);
    this.speak();
  }

  showLegend(isState, low, high, count) {
    show(this.legend, isState);
    show(this.scale, !isState);
    if (!isState) {
      const hasWords = this.entries.some(([, rank]) => isWord(this.valueOf(rank)));
      say(this.scale.firstChild, count ? this.valueText(low) : hasWords ? "no finite numbers" : "no numbers yet");
      say(this.scale.lastChild, count ? this.valueText(high) : "");
      return;
    }
    const counts = new Map();
    for (const [, rank] of this.entries) counts.set(rank.state, (counts.get(rank.state) ?? 0) + 1);
    this.keyedLegend.show(STATES.filter((state) => counts.has(state)).map((state) => [state, counts.get(state)]));
  }

  speak() {
    const key = this.ranks.selected ?? "0";
    const rank = this.all.get(key);
    this.canvas.setAttribute("aria-valuenow", key);
    this.canvas.setAttribute("aria-valuetext", rank ? `rank ${key}, ${plain(rank.told || rank.state)}` : `rank ${key}`);
  }

  point(event, isChosen = false) {
    const { size, columns, left } = this.shape ?? {};
    if (!size) return;
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / size);
    let column = 0;
    while (column + 1 < columns && left(column + 1) <= event.clientX - box.left) column += 1;
    const entry = this.entries[row * columns + column];
    if (!entry) return;
    const [key, rank] = entry;
    const isState = this.by.value === "state";
    say(this.tip, `rank ${key}: ${isState ? rank.told || rank.state : this.valueText(this.valueOf(rank))}`);
    if (isChosen) this.ranks.select(key);
  }

  press(event) {
    const columns = this.shape?.columns ?? 8;
    const index = this.entries.findIndex(([key]) => key === this.ranks.selected);
    const places = { ArrowRight: index + 1, ArrowLeft: index - 1, ArrowDown: index + columns, ArrowUp: index - columns, Home: 0, End: this.entries.length - 1 };
    if (!(event.key in places)) return;
    event.preventDefault();
    this.ranks.select(this.entries[Math.max(0, Math.min(this.entries.length - 1, places[event.key]))][0]);
  }
}

class LegendItem {
  constructor(state) {
    this.mark = new StateMark();
    this.mark.update(state, "");
    this.count = make("span", "nbd-legend-count");
    this.node = make("span", "nbd-legend-item", this.mark.node, this.count);
  }

  update(count) {
    say(this.count, numberText(count));
  }
}

function drawState(context, rank, x, y, size, colours) {
  const inner = size - 2;
  context.fillStyle = context.strokeStyle = colours.states[rank.state] ?? colours.muted;
  if (rank.state === "idle" || rank.state === "starting") context.strokeRect(x + 1.5, y + 1.5, inner - 1, inner - 1);
  else context.fillRect(x + 1, y + 1, inner, inner);
  context.fillStyle = colours.paper; // not by colour alone: a hole waits, a slash failed
  if (rank.state === "waiting") context.fillRect(x + size / 2 - 1.5, y + size / 2 - 1.5, 3, 3);
  if (rank.state !== "failed" && rank.state !== "dead") return;
  context.strokeStyle = colours.paper;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x + 2, y + size - 2);
  context.lineTo(x + size - 2, y + 2);
  context.stroke();
  context.lineWidth = 1;
}

const RAMP = [[0, 32, 77], [49, 68, 107], [102, 105, 112], [149, 143, 120], [202, 185, 105], [255, 234, 70]]; // cividis

function drawShare(context, value, low, high, x, y, size, colours) {
  if (!isNumber(value)) {
    context.strokeStyle = isWord(value) ? colours.states.failed : colours.line;
    context.strokeRect(x + 1.5, y + 1.5, size - 3, size - 3);
    if (isWord(value)) cross(context, x, y, size);
    return;
  }
  const place = (high > low ? (value - low) / (high - low) : 0.5) * (RAMP.length - 1);
  const step = Math.min(Math.floor(place), RAMP.length - 2);
  const mix = RAMP[step].map((from, index) => Math.round(from + (RAMP[step + 1][index] - from) * (place - step)));
  context.fillStyle = `rgb(${mix.join(",")})`;
  context.fillRect(x + 1, y + 1, size - 2, size - 2);
}

function cross(context, x, y, size) {
  context.beginPath();
  for (const [from, to] of [[4, size - 4], [size - 4, 4]]) {
    context.moveTo(x + from, y + 4);
    context.lineTo(x + to, y + size - 4);
  }
  context.stroke();
}

function outline(context, x, y, size, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 2;
  context.strokeRect(x, y, size, size);
  context.lineWidth = 1;
}

class Ranks {
  constructor(view) {
    this.view = view;
    this.section = new Section("Ranks", "nbd-ranks", () => view.schedule());
    this.empty = make("div", "nbd-empty", "No rank has reported yet.");
    this.cards = make("div", "nbd-cards");
    this.tiles = make("div", "nbd-tiles");
    this.detail = make("div", "nbd-cards nbd-detail");
    this.notable = make("div", "nbd-notable");
    this.heat = new HeatStrip(this);
    this.section.body.append(this.empty, this.cards, this.notable, this.tiles, this.heat.node, this.detail);
    this.keyedCards = new Keyed(this.cards, (key) => new RankCard(view, key));
    this.keyedTiles = new Keyed(this.tiles, (key) => new RankTile(this, key));
    this.keyedDetail = new Keyed(this.detail, (key) => new RankCard(view, key));
    this.keyedNotable = new Keyed(this.notable, (key) => new NotableRank(this, key));
    this.tiles.addEventListener("keydown", (event) => this.press(event));
    this.selected = null;
    this.focused = "0";
  }

  select(key) {
    this.selected = this.selected === key && this.keyedTiles.items.size ? null : key;
    this.focused = key;
    this.update(this.view.picture);
  }

  update(picture) {
    const entries = Object.entries(picture.ranks ?? {});
    const kind = entries.length <= 8 ? "cards" : entries.length <= 64 ? "tiles" : "heat";
    const scales = this.scalesOf(entries);
    if (!this.section.isOpen) return this.showNote(entries);
    show(this.empty, entries.length === 0);
    show(this.cards, kind === "cards");
    show(this.tiles, kind === "tiles");
    show(this.heat.node, kind === "heat");
    if (kind !== "cards" && this.selected === null && !this.wasGuided) this.guide(entries);
    const fit = columnsFor(entries.length, Math.floor((this.view.width - 14) / 234));
    const template = `repeat(${fit}, minmax(0, 1fr))`;
    if (kind === "cards" && this.cards.style.gridTemplateColumns !== template) this.cards.style.gridTemplateColumns = template;
    this.keyedCards.show(kind === "cards" ? entries.map((entry) => [...entry, scales]) : []);
    mark(this.tiles, "compact", String(entries.length > 32)); // so that all are seen at once
    this.keyedTiles.show(kind === "tiles" ? entries.map((entry) => [...entry, scales]) : []);
    if (kind === "heat") this.heat.update(entries);
    const chosen = kind === "cards" ? [] : entries.filter(([key]) => key === this.selected);
    this.keyedDetail.show(chosen.map((entry) => [...entry, scales]));
    show(this.detail, chosen.length > 0);
    this.showNotable(kind === "cards" ? [] : entries);
    this.showNote(entries);
  }

  // A rank that failed is looked at first.
  guide(entries) {
    const failed = entries.find(([, rank]) => rank.state === "failed" || rank.state === "dead");
    if (!failed) return;
    this.wasGuided = true;
    this.selected = this.focused = failed[0];
  }

  scalesOf(entries) {
    const ranks = entries.map(([, rank]) => rank);
    const cpu = ceilingOf(ranks.map((rank) => rank.cpu), 1);
    const memory = ceilingOf(ranks.map((rank) => rank.memory_bytes), 2 ** 28);
    return { cpu, memory, signature: `${cpu} ${memory}` };
  }

  showNotable(entries) {
    const isNotable = ([, rank]) => rank.straggler || rank.state === "failed" || rank.state === "dead" || rank.state === "asking";
    const found = entries.filter(isNotable).slice(0, 12);
    this.keyedNotable.show(found);
    show(this.notable, found.length > 0);
  }

  showNote(entries) {
    const counts = new Map();
    for (const [, rank] of entries) counts.set(rank.state, (counts.get(rank.state) ?? 0) + 1);
    say(this.section.note, STATES.filter((state) => counts.has(state)).map((state) => `${numberText(counts.get(state))} ${state}`).join(" \u00b7 "));
  }

  press(event) {
    const keys = [...this.keyedTiles.items.keys()];
    const columns = getComputedStyle(this.tiles).gridTemplateColumns.split(" ").length;
    const index = keys.indexOf(this.focused);
    const places = { ArrowRight: index + 1, ArrowLeft: index - 1, ArrowDown: index + columns, ArrowUp: index - columns, Home: 0, End: keys.length - 1 };
    const place = places[event.key];
    if (place === undefined || !keys[place]) return;
    event.preventDefault();
    this.focused = keys[place];
    for (const [key, tile] of this.keyedTiles.items) tile.node.tabIndex = key === this.focused ? 0 : -1;
    this.keyedTiles.items.get(this.focused).node.focus();
  }

  tick() {
    for (const keyed of [this.keyedCards, this.keyedDetail]) for (const card of keyed.items.values()) card.tick();
  }
}

class NotableRank {
  constructor(ranks, key) {
    this.state = new StateMark();
    this.node = button("nbd-chip", "", () => ranks.select(key));
    this.node.append(make("span", "nbd-tile-rank", key), this.state.node);
    this.key = key;
  }

  update(rank) {
    this.state.update(rank.straggler ? "waiting" : rank.state, "");
    if (rank.straggler) say(this.state.word, "straggler");
    hint(this.node, `rank ${this.key}: ${plain(rank.straggler || rank.told || rank.state)}`);
  }
}

// ---- charts ----

function preparedCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// As many columns as fit, fewer where the last row would be left nearly empty.
function columnsFor(count, most) {
  const rows = Math.ceil(count / Math.max(1, most));
  return Math.max(1, Math.ceil(count / Math.max(1, rows)));
}

function ticksOf(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.8) ?? rough;
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9 && ticks.length < 20; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return [...new Set(ticks)]; // of large numbers that lie close some are the same
}

function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.floor(Math.log10(high) + 1e-9)];
  const every = Math.max(1, Math.ceil((last - first) / 5));
  const steps = last - first > 2 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(...steps.map((step) => Number((step * 10 ** power).toPrecision(12))));
  const inside = ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  return inside.length > 1 ? inside : ticksOf(low, high, 4).filter((tick) => tick > 0);
}

// Short, and told apart from the neighbour that is a step away.
function tickText(value, step = 0) {
  const size = Math.abs(value);
  if (size < step / 2) return "0";
  const digits = step ? Math.floor(Math.log10(size)) - Math.floor(Math.log10(step) + 1e-9) : 3; // behind the first
  const short = (number) => String(Number(number.toPrecision(Math.min(Math.max(4, digits + 1), 12))));
  if (size >= 1e9 || (size > 0 && size < 1e-3)) {
    const [mantissa, power] = value.toExponential(Math.min(Math.max(digits, 0), 12)).split("e");
    return `${Number(mantissa)}e${Number(power)}`;
  }
  if (size >= 1e6) return `${short(value / 1e6)}M`;
  if (size >= 1e4) return `${short(value / 1e3)}k`;
  return short(value);
}

const LARGEST = 8e307; // the difference of two is a number still
const bounded = (value) => Math.max(-LARGEST, Math.min(LARGEST, value));

class Chart {
  constructor(charts, name) {
    this.charts = charts;
    this.isLog = false;
    this.at = null; // the place that is looked at
    const title = make("span", "nbd-chart-title");
    say(title, name);
    hint(title, name);
    this.name = name;
    this.last = make("span", "nbd-chart-last");
    this.log = toggle("log", "Logarithmic y axis", (isLog) => this.setLog(isLog));
    this.log.setAttribute("aria-label", `log axis of ${plain(name)}`);
    this.canvas = make("canvas", "nbd-canvas");
    this.line = make("span", "nbd-cross");
    this.tip = make("div", "nbd-tip");
    this.plot = make("div", "nbd-plot", this.canvas, this.line, this.tip);
    this.plot.tabIndex = 0;
    this.plot.setAttribute("role", "slider");
    this.plot.setAttribute("aria-label", plain(name));
    this.node = make("figure", "nbd-chart", make("figcaption", "nbd-chart-head", title, this.last, this.log), this.plot);
    this.listen();
    this.look(null);
  }

  listen() {
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.look(null));
    this.plot.addEventListener("focusout", () => this.look(null));
    this.plot.addEventListener("keydown", (event) => this.press(event));
  }

  setLog(isLog) {
    this.isLog = isLog;
    this.draw();
  }

  update(chart, look) {
    if (chart === this.chart && look === this.lookSignature) return;
    this.chart = chart;
    this.lookSignature = look;
    const means = chart.mean ?? [];
    const last = means.findLast((value) => isNumber(value) || isWord(value));
    say(this.last, numberText(last));
    mark(this.last, "finite", String(!isWord(last)));
    hint(this.last, `last ${charted(this.charts)}, of ${numberText(chart.points)} numbers`);
    this.tellRange();
    this.draw();
    if (this.at !== null) this.look(Math.min(this.at, (chart.x ?? []).length - 1));
  }

  // A slider without a place says how much there is to look at.
  tellRange() {
    const { x = [], x_label: label } = this.chart;
    this.plot.setAttribute("aria-valuemin", String(x[0] ?? 0));
    this.plot.setAttribute("aria-valuemax", String(x[x.length - 1] ?? 0));
    if (this.at !== null) return;
    this.plot.setAttribute("aria-valuenow", String(x[x.length - 1] ?? 0));
    this.plot.setAttribute("aria-valuetext", `last ${this.last.textContent}, ${label || "step"} ${numberText(x[0])} to ${numberText(x[x.length - 1])}`);
  }

  series() {
    const { lines = {}, mean = [] } = this.chart;
    const keys = Object.keys(lines);
    if (this.charts.isBand || !keys.length) return [{ key: null, values: mean }];
    return keys.filter((key) => !this.charts.hidden.has(key)).map((key) => ({ key, values: lines[key] }));
  }

  domain(series) {
    const { low = [], high = [] } = this.chart;
    const all = series.some(({ key }) => key === null) ? [...low, ...high, ...series[0].values] : series.flatMap(({ values }) => values);
    const values = all.filter((value) => isNumber(value) && (!this.isLog || value > 0)).map(bounded);
    if (!values.length) return null;
    let [least, most] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    if (this.isLog) return least === most ? [least / 2, most * 2] : [least, most];
    const pad = (most - least) * 0.06 || Math.abs(most) * 0.1 || 1;
    return [least - pad, most + pad];
  }

  draw() {
    const width = this.charts.chartWidth();
    if (!this.chart || !width) return;
    const height = 148;
    const context = preparedCanvas(this.canvas, width, height);
    const colours = this.charts.view.colours;
    const series = this.series();
    const range = this.domain(series);
    context.font = `11px ${colours.font}`;
    if (!range) return this.drawNothing(context, width, height, colours);
    const ticks = this.isLog ? logTicks(...range) : ticksOf(...range, 5);
    const step = this.isLog || ticks.length < 2 ? 0 : ticks[1] - ticks[0];
    const labels = ticks.map((tick) => [tick, tickText(tick, step)]);
    const left = Math.ceil(Math.max(28, ...labels.map(([, text]) => context.measureText(text).width + 10)));
    const area = { left, right: width - 10, top: 8, bottom: height - 20 };
    this.area = area;
    this.scales = this.scalesOf(range, area);
    this.drawAxes(context, labels, colours);
    if (series[0]?.key === null) this.drawBand(context, colours);
    series.forEach(({ key, values }) => this.drawLine(context, key, values, colours));
    this.drawCrosses(context, series, colours);
  }

  drawNothing(context, width, height, colours) {
    this.scales = null;
    context.fillStyle = colours.muted;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(this.isLog ? "no positive numbers" : "no finite numbers", width / 2, height / 2);
  }

  scalesOf([low, high], area) {
    const xs = this.chart.x ?? [];
    const [first, last] = [xs[0] ?? 0, xs[xs.length - 1] ?? 1];
    const bend = this.isLog ? Math.log10 : (value) => value;
    const [from, to] = [bend(low), bend(high)];
    return {
      first, last,
      x: (value) => area.left + (last > first ? (value - first) / (last - first) : 0.5) * (area.right - area.left),
      y: (value) => area.bottom - ((bend(bounded(value)) - from) / (to - from)) * (area.bottom - area.top),
    };
  }

  drawAxes(context, labels, colours) {
    const { area, scales } = this;
    context.strokeStyle = colours.line;
    context.fillStyle = colours.muted;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const [tick, text] of labels) {
      const y = Math.round(scales.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(area.left, y);
      context.lineTo(area.right, y);
      context.stroke();
      context.fillText(text, area.left - 6, y);
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText(tickText(scales.first), area.left, area.bottom + 15);
    context.textAlign = "right";
    if (scales.last > scales.first) context.fillText(tickText(scales.last), area.right, area.bottom + 15);
    context.textAlign = "center";
    context.fillText(plain(this.chart.x_label || "step").slice(0, 16), (area.left + area.right) / 2, area.bottom + 15);
  }

  has(value) {
    return isNumber(value) && (!this.isLog || value > 0);
  }

  // Runs of places that have a number: a gap ends a line.
  runs(...columns) {
    const runs = [];
    let run = [];
    (this.chart.x ?? []).forEach((_, index) => {
      if (columns.every((values) => this.has(values?.[index]))) run.push(index);
      else if (run.length) run = (runs.push(run), []);
    });
    return run.length ? [...runs, run] : runs;
  }

  drawBand(context, colours) {
    const { x, low, high } = this.chart;
    context.fillStyle = colours.band;
    for (const run of this.runs(low, high)) {
      context.beginPath();
      run.forEach((index) => context.lineTo(this.scales.x(x[index]), this.scales.y(high[index])));
      [...run].reverse().forEach((index) => context.lineTo(this.scales.x(x[index]), this.scales.y(low[index])));
      context.fill();
    }
  }

  drawLine(context, key, values, colours) {
    const { x } = this.chart;
    context.strokeStyle = context.fillStyle = key === null ? colours.accent : colours.ranks[Number(key) % 8];
    context.lineWidth = key === null ? 1.75 : 1.4;
    context.lineJoin = "round";
    context.setLineDash(key === null ? [] : [[], [5, 3], [2, 2], [8, 3, 2, 3]][Math.floor(Number(key) / 8) % 4]);
    for (const run of this.runs(values)) {
      context.beginPath();
      if (run.length === 1) context.arc(this.scales.x(x[run[0]]), this.scales.y(values[run[0]]), 2.5, 0, 7);
      else run.forEach((index) => context.lineTo(this.scales.x(x[index]), this.scales.y(values[index])));
      if (run.length === 1) context.fill();
      else context.stroke();
    }
    context.setLineDash([]);
  }

  // Where numbers stop being finite: the place, the number that came before (or else after), the word.
  ends(values) {
    const ends = [];
    let [last, wasFinite] = [undefined, true];
    values.forEach((value, index) => {
      if (this.has(value)) [last, wasFinite] = [value, true];
      if (!isWord(value) || !wasFinite) return;
      wasFinite = false;
      const height = last ?? values.slice(index).find((later) => this.has(later));
      if (height !== undefined) ends.push([index, height, value]);
    });
    return ends;
  }

  drawCrosses(context, series, colours) {
    const told = new Set();
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (const { key, values } of series) {
      for (const [index, height, word] of this.ends(values)) {
        const [x, y] = [this.scales.x(this.chart.x[index]), this.scales.y(height)];
        context.font = `bold 15px ${colours.font}`;
        context.fillStyle = key === null ? colours.accent : colours.ranks[Number(key) % 8];
        context.fillText("\u00d7", x, y);
        if (told.has(word)) continue;
        told.add(word);
        context.font = `11px ${colours.font}`;
        context.fillStyle = colours.ink;
        const most = this.area.right - context.measureText(word).width / 2;
        context.fillText(word, Math.min(x, most), y - 12 > this.area.top ? y - 12 : y + 13);
      }
    }
  }

  point(event) {
    const xs = this.chart?.x ?? [];
    if (!this.scales || !xs.length) return;
    const place = event.clientX - this.plot.getBoundingClientRect().left;
    const distance = (index) => Math.abs(this.scales.x(xs[index]) - place);
    this.look(xs.reduce((best, _, index) => (distance(index) < distance(best) ? index : best), 0));
  }

  press(event) {
    const last = (this.chart?.x ?? []).length - 1;
    const at = this.at ?? last + 1;
    const places = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: last };
    if (event.key === "Escape") return this.look(null);
    if (!(event.key in places) || last < 0) return;
    event.preventDefault();
    this.look(Math.max(0, Math.min(last, places[event.key])));
  }

  look(index) {
    this.at = index;
    show(this.line, index !== null && Boolean(this.scales));
    show(this.tip, index !== null && Boolean(this.scales));
    if (index === null && this.chart) this.tellRange();
    if (index === null || !this.scales) return;
    const { x, x_label: label } = this.chart;
    const place = this.scales.x(x[index]);
    this.line.style.left = `${place}px`;
    const rows = [[`${label || "step"} ${numberText(x[index])}`, "", null], ...this.valuesAt(index)];
    this.tip.replaceChildren(...rows.map((row, place) => tipRow(...row, place === 0)));
    const isRight = place > this.charts.chartWidth() / 2;
    this.tip.style.left = isRight ? "auto" : `${place + 8}px`;
    this.tip.style.right = isRight ? `${this.charts.chartWidth() - place + 8}px` : "auto";
    this.plot.setAttribute("aria-valuenow", String(x[index]));
    this.plot.setAttribute("aria-valuetext", rows.map(([name, value]) => `${plain(name)} ${value}`.trim()).join(", "));
  }

  valuesAt(index) {
    const { mean = [], low = [], high = [] } = this.chart;
    const series = this.series().filter(({ key }) => key !== null);
    const overall = [["mean", numberText(mean[index]), null], ["min", numberText(low[index]), null], ["max", numberText(high[index]), null]];
    if (!series.length || series.length > 8) return overall;
    return series.map(({ key, values }) => [`rank ${key}`, numberText(values[index]), key]);
  }
}

const MOST_CHARTS = 40; // that the kernel draws

// The names of all metrics that ranks have.
function namesOf(ranks) {
  const names = new Set();
  for (const rank of ranks) for (const name of Object.keys(rank.metrics ?? {})) names.add(name);
  return names;
}

const charted = (charts) => (charts.isBand ? "mean over ranks" : "mean");

function tipRow(name, value, key, isHead) {
  const label = make("span", "nbd-tip-name");
  say(label, name);
  const row = make("div", isHead ? "nbd-tip-head" : "nbd-tip-row");
  if (key !== null) {
    const swatch = make("span", "nbd-swatch");
    swatch.style.background = `var(--nbd-rank-${Number(key) % 8})`;
    row.append(swatch);
  }
  row.append(label, make("span", "nbd-tip-value", value));
  return row;
}

class Charts {
  constructor(view) {
    this.view = view;
    this.section = new Section("Metrics", "nbd-charts-body", () => view.schedule());
    this.isBand = false;
    this.hidden = new Set();
    this.columns = 1;
    this.wasChosen = false;
    this.band = toggle("mean and range", "Mean with min\u2013max band in place of a line for each rank", (isBand) => this.change(() => this.setBand(isBand, true)));
    this.legend = make("div", "nbd-legend nbd-ranks-legend");
    this.keyedLegend = new Keyed(this.legend, (key) => new RankLegend(this, key));
    this.grid = make("div", "nbd-charts");
    this.keyed = new Keyed(this.grid, (name) => new Chart(this, name));
    this.section.tools.append(this.band);
    this.section.body.append(this.legend, this.grid);
  }

  change(what) {
    what();
    this.update(this.view.picture);
  }

  setBand(isBand, byUser) {
    this.wasChosen ||= byUser;
    this.isBand = isBand;
    this.band.setAttribute("aria-pressed", String(isBand));
  }

  countText(picture, drawn) {
    const all = drawn < MOST_CHARTS ? drawn : namesOf(Object.values(picture.ranks ?? {})).size;
    if (all > drawn) return `${numberText(drawn)} of ${numberText(all)} metrics`;
    return drawn > 1 ? `${drawn} metrics` : "";
  }

  // All charts are equally wide: asked once a frame at most, not of each chart.
  chartWidth() {
    const inner = this.view.width - 24;
    return Math.min(Math.floor((inner - (this.columns - 1) * 12) / this.columns), 560) - 18;
  }

  update(picture) {
    const entries = Object.entries(picture.charts ?? {});
    show(this.section.node, entries.length > 0);
    say(this.section.note, this.countText(picture, entries.length));
    if (!this.section.isOpen || !entries.length || !this.view.width) return;
    const ranks = [...new Set(entries.flatMap(([, chart]) => Object.keys(chart.lines ?? {})))].sort((a, b) => a - b);
    if (!this.wasChosen) this.setBand(ranks.length > 16, false); // more lines than can be told apart
    show(this.band, ranks.length > 1);
    show(this.legend, !this.isBand && ranks.length > 1 && ranks.length <= 64);
    this.keyedLegend.show(ranks.slice(0, 64).map((rank) => [rank, this.hidden.has(rank)]));
    const inner = this.view.width - 24;
    this.columns = columnsFor(entries.length, Math.floor((inner + 12) / 292));
    const template = `repeat(${this.columns}, minmax(0, 560px))`;
    if (this.grid.style.gridTemplateColumns !== template) this.grid.style.gridTemplateColumns = template;
    const look = `${this.isBand} ${[...this.hidden]} ${this.view.width} ${this.columns} ${this.view.themeCount}`;
    this.keyed.show(entries.map(([name, chart]) => [name, chart, look]));
  }
}

class RankLegend {
  constructor(charts, key) {
    const swatch = make("span", "nbd-swatch");
    swatch.style.background = `var(--nbd-rank-${Number(key) % 8})`;
    this.node = button("nbd-legend-rank", "", () => charts.change(() => charts.hidden.delete(key) || charts.hidden.add(key)));
    this.node.append(swatch, key);
    this.node.setAttribute("aria-label", `line of rank ${key}`);
  }

  update(isHidden) {
    this.node.setAttribute("aria-pressed", String(!isHidden));
  }
}

// ---- log ----

const MOST_LINES = 2000; // that the page shows; the kernel keeps fewer

function fillLine(node, pieces, ranges) {
  node.replaceChildren();
  let place = 0;
  for (const { text, style } of pieces) {
    let start = 0;
    while (start < text.length) {
      const range = ranges.find(([, end]) => end > place + start);
      const isHit = Boolean(range) && range[0] <= place + start;
      const edge = range ? (isHit ? range[1] : range[0]) - place : text.length;
      const end = Math.min(edge, text.length);
      node.append(pieceNode(text.slice(start, end), style, isHit));
      start = end;
    }
    place += text.length;
  }
}

function pieceNode(text, style, isHit) {
  if (!isHit && !Object.keys(style).length) return document.createTextNode(text);
  const node = make(isHit ? "mark" : "span", isHit ? "nbd-hit" : "", text);
  for (const flag of ["bold", "dim", "italic", "underline", "strike"]) if (style[flag]) node.classList.add(`nbd-${flag}`);
  const [ink, paper] = style.inverse ? [style.paper ?? "var(--nbd-paper)", style.ink ?? "var(--nbd-ink)"] : [style.ink, style.paper];
  // Colours that a program chose for some other paper come nearer to our ink, to be legible in both themes.
  if (ink) node.style.color = ink.startsWith("rgb") ? `color-mix(in srgb, ${ink} var(--nbd-own-colour), var(--nbd-ink))` : ink;
  if (paper && !isHit) node.style.backgroundColor = paper;
  return node;
}

class LogEntry {
  constructor() {
    this.label = make("span", "nbd-line-ranks");
    this.text = make("span", "nbd-line-text");
    this.node = make("div", "nbd-line", this.label, this.text);
  }

  update(line, filter, search) {
    if (line !== this.line) this.fill(line);
    const isForAll = line.kind === "gap" || !(line.of ?? []).length;
    this.isListed = isForAll || !filter || line.of.some((rank) => filter.has(rank));
    if (line !== this.highlighted || search.pattern !== this.pattern) this.highlight(line, search.pattern);
    show(this.node, this.isListed && (!search.only || !search.pattern || this.hits > 0));
  }

  fill(line) {
    this.line = line;
    mark(this.node, "kind", line.kind);
    say(this.label, line.ranks ? `[${line.ranks}]` : "");
    hint(this.node, line.kind === "stderr" ? "stderr" : "");
    if (line.kind !== "html") this.pieces = ansiPieces(String(line.text ?? ""));
    else this.text.innerHTML = line.text; // made by the user's own code; Jupyter shows it so, too
  }

  highlight(line, pattern) {
    this.highlighted = line;
    this.pattern = pattern;
    const ranges = pattern ? [...this.content().matchAll(pattern)].map((match) => [match.index, match.index + match[0].length]) : [];
    this.hits = ranges.length;
    if (line.kind !== "html") fillLine(this.text, this.pieces, ranges);
  }

  content() {
    return this.line.kind === "html" ? this.text.textContent : this.pieces.map(({ text }) => text).join("");
  }

  copied() {
    return [this.label.textContent, this.content()].filter(Boolean).join(" ");
  }
}

class LogView {
  constructor(view) {
    this.view = view;
    this.section = new Section("Log", "nbd-log-body", () => view.schedule());
    this.search = { pattern: null, only: false };
    this.current = -1;
    this.follows = true;
    this.makeTools();
    this.cut = make("div", "nbd-cut");
    this.lines = make("div", "nbd-lines");
    this.box = make("div", "nbd-log", this.cut, this.lines);
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "region");
    this.box.setAttribute("aria-label", "log");
    this.box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.empty = make("div", "nbd-empty");
    this.place = make("div", "nbd-place");
    this.section.body.append(this.box, this.empty, this.place);
    this.keyed = new Keyed(this.lines, () => new LogEntry());
    this.sizes = new ResizeObserver(() => this.follows && this.toEnd());
    this.sizes.observe(this.lines);
  }

  makeTools() {
    this.rank = make("select", "nbd-select");
    this.ranks = make("input", "nbd-input nbd-rank-input");
    this.ranks.placeholder = "ranks: 0, 4-7";
    for (const node of [this.rank, this.ranks]) {
      node.setAttribute("aria-label", "show only the lines of these ranks");
      node.addEventListener(node === this.rank ? "change" : "input", () => this.refresh());
    }
    this.query = make("input", "nbd-input");
    this.query.type = "search";
    this.query.placeholder = "Search";
    this.query.setAttribute("aria-label", "search the log");
    this.query.addEventListener("input", () => this.seek());
    this.query.addEventListener("keydown", (event) => event.key === "Enter" && this.step(event.shiftKey ? -1 : 1));
    // JupyterLab's own shortcuts must not take what is typed here.
    for (const node of [this.query, this.ranks]) node.addEventListener("keydown", (event) => event.stopPropagation());
    this.count = make("span", "nbd-count");
    this.only = toggle("matches only", "Hide lines without a match", (only) => ((this.search.only = only), this.refresh()));
    this.follow = toggle("follow", "Stay at the end", (follows) => ((this.follows = follows), follows && this.toEnd()));
    this.follow.setAttribute("aria-pressed", "true");
    this.copy = button("nbd-copy", "Copy", () => this.copyLines());
    this.copy.title = "Copy the lines shown";
    this.section.tools.append(this.rank, this.ranks, this.query, this.count, this.only, this.follow, this.copy);
  }

  filter() {
    return ranksIn(this.isMany ? this.ranks.value : this.rank.value);
  }

  showRank(key) {
    this.section.setOpen(true, true);
    this.update(this.view.picture);
    this.rank.value = key;
    this.ranks.value = key;
    this.refresh();
    this.section.node.scrollIntoView({ block: "nearest" });
    (this.isMany ? this.ranks : this.rank).focus({ preventScroll: true });
  }

  refresh() {
    this.shownLog = null;
    this.update(this.view.picture);
  }

  update(picture) {
    const { log = {}, heading = {}, ranks = {} } = picture;
    this.section.setOpen(Boolean(heading.log_is_open), false);
    const numbers = Object.keys(log.lines ?? {}).slice(-MOST_LINES);
    this.showNote(log, numbers.length);
    show(this.section.tools, this.section.isOpen && numbers.length > 0);
    if (!this.section.isOpen || (log === this.shownLog && this.wasOpen)) return void (this.wasOpen = this.section.isOpen);
    this.wasOpen = true;
    this.shownLog = log;
    this.offerRanks(Object.keys(ranks));
    const filter = this.filter();
    this.keyed.show(numbers.map((number) => [number, log.lines[number], filter, this.search]));
    say(this.place, heading.logs ? `All text: ${plain(heading.logs)}` : "");
    const shown = [...this.keyed.items.values()].some(({ node }) => !node.hidden);
    say(this.empty, numbers.length ? "No line matches." : "Nothing printed yet.");
    show(this.empty, !shown);
    show(this.box, shown);
    this.showCount();
    if (this.follows) this.toEnd();
  }

  showNote(log, count) {
    const total = count + (log.left_out ?? 0);
    say(this.section.note, total ? `${numberText(total)} ${total === 1 ? "line" : "lines"}` : "");
    say(this.cut, log.left_out ? `${numberText(log.left_out)} ${log.left_out === 1 ? "line is" : "lines are"} in the log files only` : "");
    show(this.cut, Boolean(log.left_out));
  }

  offerRanks(keys) {
    this.isMany = keys.length > 64;
    show(this.rank, !this.isMany && keys.length > 1);
    show(this.ranks, this.isMany);
    if (!this.isMany) choose(this.rank, [["", "all ranks"], ...keys.map((key) => [key, `rank ${key}`])]);
  }

  seek() {
    const query = this.query.value;
    this.search.pattern = query ? new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi") : null;
    this.current = -1;
    this.refresh();
  }

  hits() {
    const shown = [...this.keyed.items.values()].filter((entry) => !entry.node.hidden && entry.hits);
    return shown.flatMap((entry) => Array.from({ length: entry.hits }, () => entry));
  }

  showCount() {
    const count = this.search.pattern ? this.hits().length : 0;
    const place = this.current >= 0 && count ? `${(this.current % count) + 1} / ` : "";
    say(this.count, this.search.pattern ? `${place}${count} ${count === 1 ? "match" : "matches"}` : "");
  }

  step(by) {
    const hits = this.hits();
    if (!hits.length) return;
    this.setFollow(false);
    this.current = this.current < 0 ? (by > 0 ? 0 : hits.length - 1) : (this.current + by + hits.length) % hits.length;
    this.lines.querySelector(".nbd-current")?.classList.remove("nbd-current");
    const entry = hits[this.current];
    entry.node.classList.add("nbd-current");
    const [box, row] = [this.box.getBoundingClientRect(), entry.node.getBoundingClientRect()];
    this.box.scrollTop += row.top - box.top - box.height / 2; // the log alone moves, not the page
    this.showCount();
  }

  setFollow(follows) {
    this.follows = follows;
    this.follow.setAttribute("aria-pressed", String(follows));
  }

  // Only what the reader scrolls counts: a figure that is there later than its line makes the log longer, too.
  scrolled() {
    if (this.follows && this.box.scrollTop === this.endTop) return;
    this.setFollow(this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 12);
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.endTop = this.box.scrollTop;
  }

  async copyLines() {
    const shown = [...this.keyed.items.values()].filter(({ node }) => !node.hidden);
    const isDone = await copyText(shown.map((entry) => entry.copied()).join("\n"));
    say(this.copy, isDone ? "Copied" : "Failed");
    clearTimeout(this.copyTimer);
    this.copyTimer = setTimeout(() => say(this.copy, "Copy"), 1500);
  }

  close() {
    clearTimeout(this.copyTimer);
    this.sizes.disconnect();
  }
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Frames without the permission, pages without https.
    const area = make("textarea", "nbd-spoken");
    area.value = text;
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    return isDone;
  }
}

// ---- the view ----

function isDarkAround(node) {
  const { body, documentElement: page } = document;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.classList.contains("vscode-light") || body.classList.contains("vscode-high-contrast-light")) return false;
  if (/\bvscode-(dark|high-contrast)\b/.test(body.className)) return true;
  const named = page.getAttribute("theme") ?? page.dataset.theme ?? body.dataset.theme; // Colab and others
  if (named === "dark" || named === "light") return named === "dark";
  for (let place = node; place; place = place.parentElement) {
    const [red, green, blue, alpha = 1] = (getComputedStyle(place).backgroundColor.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
    if (alpha > 0.5) return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function coloursOf(node) {
  const style = getComputedStyle(node);
  const read = (name) => style.getPropertyValue(`--nbd-${name}`).trim();
  const names = ["ink", "muted", "line", "accent", "band", "paper"];
  return {
    ...Object.fromEntries(names.map((name) => [name, read(name)])),
    font: style.fontFamily,
    ranks: Array.from({ length: 8 }, (_, index) => read(`rank-${index}`)),
    states: Object.fromEntries(STATES.map((state) => [state, read(`state-${state}`)])),
  };
}

class View {
  constructor(store, element) {
    this.store = store;
    this.element = element;
    this.width = 0;
    this.themeCount = 0;
    this.heading = new HeadingBar(this);
    this.bars = make("div", "nbd-bars");
    this.keyedBars = new Keyed(this.bars, () => new ProgressBar());
    this.failures = new Failures(this);
    this.ranks = new Ranks(this);
    this.charts = new Charts(this);
    this.log = new LogView(this);
    this.wait = make("div", "nbd-empty", "Waiting for the kernel\u2026");
    this.parts = [this.heading.node, this.bars, ...[this.failures, this.ranks, this.charts, this.log].map(({ section }) => section.node)];
    this.root = make("div", "nbd-root", this.wait, ...this.parts);
    this.root.setAttribute("data-lm-suppress-shortcuts", "true"); // JupyterLab: Enter on a button is the button's
    element.append(this.root);
    this.listen();
    this.takeTheme();
    this.render();
  }

  listen() {
    this.schedule = () => (this.frame ??= requestAnimationFrame(() => this.render()));
    this.store.watchers.add(this.schedule);
    this.onTheme = () => this.takeTheme();
    this.onVisibility = () => this.setTimer();
    this.media = matchMedia("(prefers-color-scheme: dark)");
    this.media.addEventListener("change", this.onTheme);
    document.addEventListener("visibilitychange", this.onVisibility);
    this.themes = new MutationObserver(this.onTheme);
    for (const node of [document.documentElement, document.body]) {
      this.themes.observe(node, { attributes: true, attributeFilter: ["class", "theme", "data-theme", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-id"] });
    }
    this.sizes = new ResizeObserver(() => this.measure());
    this.sizes.observe(this.root);
  }

  measure() {
    const width = Math.floor(this.root.clientWidth);
    if (width === this.width) return;
    this.width = width;
    mark(this.root, "narrow", String(width < 560));
    this.schedule();
  }

  takeTheme() {
    mark(this.root, "theme", isDarkAround(this.element) ? "dark" : "light");
    this.colours = coloursOf(this.root);
    this.themeCount += 1;
    this.schedule();
  }

  hasEnded() {
    return isNumber(this.picture?.heading?.ended_ms);
  }

  // What has become of the kernel of a run that goes on: `gone`, `silent`, or nothing.
  loss() {
    if (!this.picture || this.hasEnded()) return "";
    if (this.store.isCut) return "gone";
    return this.store.silentMs() > SILENT_MS ? "silent" : "";
  }

  // By the kernel's clock; where nothing is heard of it, when that was so last.
  nowMs() {
    return this.heading.loss ? this.store.kernelMs(this.store.heardMs) : this.store.nowMs();
  }

  render() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    if (!this.colours.ink) this.takeTheme(); // the style sheet has come after the first render
    const picture = (this.picture = this.store.picture);
    show(this.wait, !picture);
    this.parts.forEach((part) => !picture && show(part, false));
    if (!picture) return;
    [this.heading, this.ranks, this.log].forEach((part) => show(part.node ?? part.section.node, true));
    this.heading.update(picture.heading ?? {});
    mark(this.root, "lost", this.heading.loss);
    this.keyedBars.show(Object.entries(picture.bars ?? {}).slice(-12));
    show(this.bars, this.keyedBars.items.size > 0);
    this.failures.update(Array.isArray(picture.failures) ? picture.failures : [], Boolean(picture.heading?.log_is_open));
    this.ranks.update(picture);
    this.charts.update(picture);
    this.log.update(picture);
    this.setTimer();
  }

  setTimer() {
    const isWanted = Boolean(this.picture) && !this.hasEnded() && !document.hidden;
    if (isWanted === Boolean(this.timer)) return;
    clearInterval(this.timer);
    this.timer = isWanted ? setInterval(() => this.tick(), 1000) : undefined;
    if (isWanted) this.tick();
  }

  tick() {
    if (this.loss() !== this.heading.loss) return this.render();
    this.heading.tick(this.picture.heading);
    this.ranks.tick();
  }

  close() {
    cancelAnimationFrame(this.frame);
    clearInterval(this.timer);
    this.store.watchers.delete(this.schedule);
    this.media.removeEventListener("change", this.onTheme);
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.themes.disconnect();
    this.sizes.disconnect();
    this.heading.close();
    this.log.close();
    this.root.remove();
  }
}

// anywidget calls this once for each model; the models it gives to `initialize` and `render` are not the same
// object, so what both share lives here.
export default () => {
  let store = null;
  return {
    initialize({ model }) {
      store = new Store(model);
      return () => store.close();
    },
    render({ model, el }) {
      store ??= new Store(model);
      const view = new View(store, el);
      store.greet();
      return () => view.close();
    },
  };
};

// For the tests: the first ones are held to `words.py`.
export { bytesText, coresText, elapsedText, numberText, partText, percentText, tickText, ticksOf };
