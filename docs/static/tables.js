// Every table of results sorts by a click on a column, and filters by a word: over all columns, and in each.
document.querySelectorAll("table.results").forEach(table => {
  const columns = table.querySelectorAll("thead th");
  const foot = table.createTFoot().insertRow();
  columns.forEach(column => {
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "filter";
    input.ariaLabel = `filter ${column.textContent.trim()}`;
    foot.insertCell().append(input);
  });
  const shown = new DataTable(table, {
    order: [], autoWidth: false, scrollX: false, pageLength: 10,
    lengthMenu: [[10, 25, 100, -1], [10, 25, 100, "all"]],
    layout: { topStart: "pageLength", topEnd: "search", bottomStart: "info", bottomEnd: "paging" },
  });
  foot.querySelectorAll("input").forEach((input, i) =>
    input.addEventListener("input", () => shown.column(i).search(input.value).draw()));
});
