// Every table of results sorts by a click on a column, filters by a word, over all columns and in each, and unfolds.

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

// the columns that a wide table folds away, and a button that shows them
function withFold(table, shown) {
  const folded = JSON.parse(table.dataset.folded ?? "[]");
  if (!folded.length) return;
  const button = document.createElement("button"), columns = shown.columns(folded);
  const names = folded.map(i => shown.column(i).header().textContent.trim()).join(", ");
  const fold = visible => {
    columns.visible(visible);
    button.ariaExpanded = visible;
    button.textContent = visible ? `hide ${names}` : `show also ${names}`;
  };
  button.className = "fold";
  button.addEventListener("click", () => fold(button.ariaExpanded !== "true"));
  table.closest(".dt-container").before(button);
  fold(false);
}

function dress(table) {
  orderByNumber(table);
  table.querySelectorAll("tbody td").forEach(cell => {
    const length = cell.textContent.length;
    if (length > 30) cell.classList.add(length > 60 ? "long" : "phrase");
  });
  const inputs = withFilters(table);
  const shown = new DataTable(table, {
    order: [], autoWidth: false, scrollX: false, pageLength: 10,
    lengthMenu: [[10, 25, 100, -1], [10, 25, 100, "all"]],
    layout: { topStart: "pageLength", topEnd: "search", bottomStart: "info", bottomEnd: "paging" },
  });
  inputs.forEach((input, i) => input.addEventListener("input", () => shown.column(i).search(input.value).draw()));
  withFold(table, shown);
}

document.querySelectorAll("table.results").forEach(dress);
