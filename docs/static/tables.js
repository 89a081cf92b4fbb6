// Every table of results sorts by a click on a column and filters: by a word, and by lists of a column's values.

// the number that a cell begins with, as "+12.0 [8.1, 15.9]", "84.8 ± 2.6", "63.1 (1)"; null where there is none
function leading(text) {
  const found = /^([+\-\u2212]?\d[\d,]*(?:\.\d+)?)(\s*[±[(%*].*)?$/.exec(text.trim());
  return found && Number(found[1].replace("\u2212", "-").replaceAll(",", ""));
}

// a column whose cells all begin with a number, or are empty, is sorted by it
function orderByNumber(table) {
  const rows = [...table.tBodies[0].rows];
  [...table.tHead.rows[0].cells].forEach((_, i) => {
    const cells = rows.map(row => row.cells[i]), full = cells.filter(cell => cell.textContent.trim());
    if (!full.length || full.some(cell => leading(cell.textContent) === null)) return;
    cells.forEach(cell => { cell.dataset.order = leading(cell.textContent) ?? ""; });
  });
}

function withFilters(table) {
  const foot = table.createTFoot().insertRow();
  table.querySelectorAll("thead th").forEach(column => {
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "filter";
    input.ariaLabel = `filter ${column.textContent.trim()}`;
    foot.insertCell().append(input);
  });
  return foot.querySelectorAll("input");
}

// a list of a column's values above the table: one value, or all
function withLists(table, shown, columns) {
  const bar = document.createElement("div");
  bar.className = "filters";
  columns.forEach(i => {
    const title = shown.column(i).header().textContent.trim(), list = document.createElement("select");
    const values = [...new Set(shown.column(i).data().toArray())].filter(Boolean).sort();
    list.ariaLabel = title;
    list.append(new Option(`${title}: all`, ""), ...values.map(value => new Option(`${title}: ${plain(value)}`, plain(value))));
    list.addEventListener("change", () => shown.column(i).search(list.value, { exact: true }).draw());
    bar.append(list);
  });
  const count = document.createElement("output"), state = columns.find(i => shown.column(i).header().textContent.trim() === "state");
  const tell = () => {
    const rows = shown.rows({ search: "applied" }), all = shown.rows().count();
    const states = state === undefined ? [] : rows.data().toArray().map(row => row[state]);
    const parts = [...new Set(states)].sort().map(s => `${states.filter(t => t === s).length} ${s}`);
    count.textContent = `${rows.count()} of ${all}` + (parts.length ? `: ${parts.join(", ")}` : "");
  };
  shown.on("draw", tell);
  tell();
  bar.append(count);
  table.closest(".dt-container").before(bar);
}

// the text of a cell
function plain(html) { return new DOMParser().parseFromString(html, "text/html").body.textContent; }

function dress(table) {
  orderByNumber(table);
  table.querySelectorAll("tbody td").forEach(cell => {
    const length = cell.textContent.length;
    if (length > 30) cell.classList.add(length > 60 ? "long" : "phrase");
  });
  const lists = JSON.parse(table.dataset.filters ?? "[]"), length = Number(table.dataset.length ?? 10);
  const inputs = lists.length || length < 0 ? [] : withFilters(table);
  const short = length < 0;                                           // all rows at once: nothing to turn over
  const shown = new DataTable(table, {
    order: [], autoWidth: false, scrollX: false, pageLength: length,
    lengthMenu: [[10, 25, 100, -1], [10, 25, 100, "all"]],
    layout: { topStart: short ? null : "pageLength", topEnd: "search", bottomStart: short ? null : "info",
              bottomEnd: short ? null : "paging" },
  });
  inputs.forEach((input, i) => input.addEventListener("input", () => shown.column(i).search(input.value).draw()));
  if (lists.length) withLists(table, shown, lists);
  shown.columns(JSON.parse(table.dataset.hidden ?? "[]")).visible(false);
}

document.querySelectorAll("table.results").forEach(dress);
document.documentElement.dataset.tables = "ready";
