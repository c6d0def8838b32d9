"use strict";
// Everything that comes from the dataset is put in as text, never as markup.

const PAGE = 48;
const $ = (id) => document.getElementById(id);
const state = { split: "", class: "", marked: false, offset: 0, row: null };
let about = null;
let rows = [];
let total = 0;
let lastReason = null;
let opened = null;  // what the dialog shows
let asked = 0;  // requests for pages, so that a late answer does not replace a newer one

function make(tag, text, properties) {
  const element = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) element.textContent = text;
  return element;
}

function address(place, query) {
  return place + "?" + new URLSearchParams(query);
}

async function ask(place, options) {
  let reply;
  try {
    reply = await fetch(place, options);
  } catch {
    throw new Error("mmload browse does not answer; is it still running?");
  }
  const body = await reply.json().catch(() => ({ error: "status " + reply.status }));
  if (!reply.ok) throw new Error(body.error);
  return body;
}

function problem(id, error) {
  $(id).hidden = !error;
  $(id).textContent = error ? error.message : "";
}

function say(text) {
  $("said").textContent = text;
}

function split() {
  return about.splits.find((each) => each.name === state.split);
}

function number(value) {
  return value.toLocaleString("en");
}

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const known = about.splits.some((each) => each.name === given.get("split"));
  state.split = known ? given.get("split") : about.splits[0].name;
  const classes = split().filter ? split().classes.length : 0;
  state.class = given.has("class") && Number(given.get("class")) < classes ? String(parseInt(given.get("class"), 10)) : "";
  state.marked = given.has("marked");
  state.offset = Math.max(0, parseInt(given.get("offset"), 10) || 0);
  state.row = given.has("row") ? parseInt(given.get("row"), 10) : null;
}

function writeHash() {
  const given = new URLSearchParams({ split: state.split });
  if (state.class !== "") given.set("class", state.class);
  if (state.marked) given.set("marked", "");
  if (state.offset) given.set("offset", state.offset);
  if (state.row !== null) given.set("row", state.row);
  history.replaceState(null, "", "#" + given);
}

function showChoices() {
  $("split").replaceChildren(...about.splits.map((each) => make("option", `${each.name} (${number(each.rows)})`, { value: each.name })));
  $("split").value = state.split;
  const { classes, filter } = split();
  $("class-label").hidden = !filter;
  const options = classes.map((each, index) =>
    make("option", each.rows === null ? each.name : `${each.name} (${number(each.rows)})`, { value: String(index) }));
  $("class").replaceChildren(make("option", "all", { value: "" }), ...options);
  $("class").value = state.class;
  $("marked").checked = state.marked;
}

function showMarks(count) {
  about.marked = count;
  $("marks").textContent = `${number(count)} marked, in ${about.marks}`;
}

async function showPage(focus) {
  writeHash();
  const query = { split: state.split, offset: state.offset, count: PAGE };
  if (state.marked) query.marked = "";
  else if (state.class !== "") query.class = state.class;
  const mine = ++asked;
  $("grid").setAttribute("aria-busy", "true");
  try {
    const body = await ask(address("api/rows", query));
    if (mine !== asked) return;
    if (!body.rows.length && body.total) {
      state.offset = Math.floor((body.total - 1) / PAGE) * PAGE;
      return showPage(focus);
    }
    rows = body.rows;
    total = body.total;
    showMarks(body.marked);
    problem("problem", null);
  } catch (error) {
    if (mine !== asked) return;
    rows = [];
    total = 0;
    problem("problem", error);
  }
  $("grid").replaceChildren(...rows.map(tile));
  $("grid").removeAttribute("aria-busy");
  const last = state.offset + rows.length;
  $("count").textContent = rows.length ? `${number(state.offset + 1)} to ${number(last)} of ${number(total)}` : "no rows";
  $("previous").disabled = state.offset === 0;
  $("next").disabled = last >= total;
  if (focus !== undefined && rows.length) tiles().at(focus).focus();
  scrollTo(0, 0);
}

function tile(row) {
  const button = make("button", undefined, { type: "button", className: "tile" });
  button.dataset.row = row.row;
  if (split().images) {
    const query = { split: state.split, row: row.row };
    button.append(make("img", undefined, { alt: "", loading: "lazy", src: address("image/thumbnail", query) }));
  }
  button.append(make("span", row.name || row.id, { className: "name" }));
  button.append(make("span", "row " + number(row.row), { className: "number" }));
  button.append(make("span", row.mark || "", { className: "mark" }));
  button.classList.toggle("is-marked", row.mark !== null);
  button.title = row.id;
  button.addEventListener("click", () => openRow(row.row));
  const item = make("li");
  item.append(button);
  return item;
}

function tiles() {
  return [...document.querySelectorAll(".tile")];
}

function remark(row, mark) {
  const known = rows.find((each) => each.row === row);
  if (known) known.mark = mark;
  const button = document.querySelector(`.tile[data-row="${row}"]`);
  if (button) {
    button.querySelector(".mark").textContent = mark || "";
    button.classList.toggle("is-marked", mark !== null);
  }
  if (opened && opened.row === row) {
    opened.mark = mark;
    showReasons();
  }
}

async function setMark(row, reason) {
  const place = $("row").open ? "row-problem" : "problem";
  try {
    const body = await ask("api/marks", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ split: state.split, row, reason }),
    });
    problem(place, null);
    if (reason !== null) lastReason = reason;
    remark(row, body.mark);
    showMarks(body.marked);
    say(body.mark === null ? `row ${row} is not marked any longer` : `row ${row} is marked: ${body.mark}`);
    if (reason !== null && $("go-on").checked) goOn(row);
  } catch (error) {
    problem(place, error);
  }
}

function goOn(row) {
  if ($("row").open) {
    if (state.row === row) step(1);  // else somebody has moved on meanwhile
  } else if (document.activeElement.closest(`.tile[data-row="${row}"]`)) move("ArrowRight");
}

function toggleMark(row, mark) {
  return setMark(row, mark === null ? lastReason || about.reasons[0] : null);
}

function showReasons() {
  for (const button of $("reasons").children) {
    button.setAttribute("aria-pressed", (button.value || null) === opened.mark);
  }
}

async function openRow(row) {
  state.row = row;
  writeHash();
  let body;
  try {
    body = await ask(address("api/row", { split: state.split, row }));
  } catch (error) {
    problem($("row").open ? "row-problem" : "problem", error);
    return;
  }
  if (state.row !== row) return;
  opened = body;
  problem("row-problem", null);
  $("row-title").textContent = (body.name ? body.name + ", " : "") + "row " + number(row) + " of " + state.split;
  $("row-file").textContent = body.id;
  showReasons();
  $("stored-figure").hidden = body.shape === null;
  if (body.shape !== null) {
    $("stored-shape").textContent = `, ${body.shape[2]} x ${body.shape[1]} pixels, ${body.shape[0]} channels`;
    $("plain-label").hidden = body.boxes === null && !body.mask;
    showStored();
  }
  $("source").hidden = body.source !== "";
  $("source-missing").hidden = body.source === "";
  $("source-missing").textContent = body.source;
  $("source-size").textContent = body.size ? `, ${body.size[1]} x ${body.size[0]} pixels` : "";
  $("source").alt = "the photograph " + body.id;
  if (body.source === "") $("source").src = address("image/source", { split: state.split, row });
  else $("source").removeAttribute("src");
  $("legend").replaceChildren(...body.legend.map((each) => {
    const item = make("li");
    const square = make("span");
    square.style.background = each.color;
    item.append(square, each.name);
    return item;
  }));
  showDraws(row);
  if (!$("row").open) $("row").showModal();
  $("row").scrollTop = 0;
}

function showStored() {
  const query = { split: state.split, row: opened.row };
  if (!$("shown").checked) query.plain = "";
  $("stored").alt = `row ${opened.row} as stored` + (opened.legend.length ? ", with " + opened.legend.map((each) => each.name).join(", ") : "");
  $("stored").src = address("image/stored", query);
}

async function showDraws(row) {
  $("draws").replaceChildren();
  $("draws-section").hidden = !about.augmentation || !split().images;
  if ($("draws-section").hidden) return;
  $("draws-title").textContent = `${about.draws} draws of ${about.augmentation}`;
  $("draws-wait").hidden = false;
  let draws = [];
  try {
    draws = (await ask(address("api/draws", { split: state.split, row }))).draws;
  } catch (error) {
    if (state.row === row) problem("row-problem", error);
  }
  if (state.row !== row) return;
  $("draws-wait").hidden = true;
  $("draws").replaceChildren(...draws.map(({ name, picture }) => {
    const item = make("li");
    item.append(make("img", undefined, { alt: "", src: picture }), name);
    return item;
  }));
}

function turn(by) {
  const offset = state.offset + by * PAGE;
  if (offset < 0 || offset >= total) return;
  state.offset = offset;
  showPage(by > 0 ? 0 : -1);
}

async function step(by) {
  const row = state.row ?? opened.row;  // asked for last: it may not have come yet, and two quick steps are two
  const index = rows.findIndex((each) => each.row === row);
  if (index < 0) return openRow(Math.min(Math.max(row + by, 0), split().rows - 1));
  if (rows[index + by]) return openRow(rows[index + by].row);
  const offset = state.offset + by * PAGE;
  if (offset < 0 || offset >= total) return;
  state.offset = offset;
  await showPage();
  if (rows.length) openRow(rows.at(by > 0 ? 0 : -1).row);
}

function move(key) {
  const all = tiles();
  const index = all.indexOf(document.activeElement);
  if (index < 0) return all[0] && all[0].focus();
  const top = all[0].offsetTop;
  const columns = all.findIndex((each) => each.offsetTop !== top);
  const across = columns < 0 ? all.length : columns;
  const target = all[index + { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[key]];
  if (target) target.focus();
}

function leaveRow() {
  if (!opened) return;
  const row = opened.row;
  opened = null;
  state.row = null;
  writeHash();
  const button = document.querySelector(`.tile[data-row="${row}"]`);
  if (button) button.focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !about) return;
  if (event.target.matches("input:not([type=checkbox]), select")) return;
  const { key } = event;
  const inRow = $("row").open;
  if ($("help").open) return;
  if (!inRow) leaveRow();  // a key may come before the event that says that the row was closed
  const focused = document.activeElement.closest(".tile");
  const current = inRow ? opened : focused && rows.find((each) => each.row === Number(focused.dataset.row));
  const reason = about.reasons["1234".indexOf(key)];
  if (key === "?") $("help").showModal();
  else if (key.startsWith("Arrow") && inRow && (key === "ArrowLeft" || key === "ArrowRight")) step(key === "ArrowLeft" ? -1 : 1);
  else if (key.startsWith("Arrow") && !inRow) move(key);
  else if (key === "m" && current) toggleMark(current.row, current.mark);
  else if (key.length === 1 && reason && current) setMark(current.row, reason);
  else if (key === "g") {
    $("go-on").checked = !$("go-on").checked;
    say($("go-on").checked ? "goes to the next row after a mark" : "stays after a mark");
  } else if (key === "n" && !inRow) turn(1);
  else if (key === "p" && !inRow) turn(-1);
  else return;
  event.preventDefault();
}

function listen() {
  $("choices").addEventListener("submit", (event) => event.preventDefault());
  $("split").addEventListener("change", () => {
    Object.assign(state, { split: $("split").value, class: "", offset: 0 });
    showChoices();
    showPage();
  });
  $("class").addEventListener("change", () => {
    Object.assign(state, { class: $("class").value, marked: false, offset: 0 });
    showChoices();
    showPage();
  });
  $("marked").addEventListener("change", () => {
    Object.assign(state, { marked: $("marked").checked, class: "", offset: 0 });
    showChoices();
    showPage();
  });
  $("go").addEventListener("keydown", (event) => {
    const wanted = $("go").value.replaceAll(",", "").trim();
    if (event.key === "Enter" && /^[0-9]+$/.test(wanted)) openRow(Number(wanted));
  });
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("help-button").addEventListener("click", () => $("help").showModal());
  $("row-previous").addEventListener("click", () => step(-1));
  $("row-next").addEventListener("click", () => step(1));
  $("row-close").addEventListener("click", () => $("row").close());
  $("row").addEventListener("close", leaveRow);
  $("shown").addEventListener("change", showStored);
  document.addEventListener("keydown", onKey);
}

async function begin() {
  try {
    about = await ask("api/about");
  } catch (error) {
    problem("problem", error);
    return;
  }
  document.title = about.name + ", mmload browse";
  $("title").textContent = about.name;
  for (const reason of ["", ...about.reasons]) {
    const button = make("button", reason || "nothing wrong", { type: "button", value: reason });
    button.addEventListener("click", () => setMark(opened.row, reason || null));
    $("reasons").append(button);
  }
  readHash();
  showChoices();
  listen();
  showMarks(about.marked);
  const row = state.row;
  await showPage();
  if (row !== null) openRow(row);
}

begin();
