// On a phone a table of sentences is read row by row: each cell below the other, after the name of its column (site.css).
for (const table of document.querySelectorAll("table.table:not(.results)")) {
  const names = [...table.tHead?.rows[0].cells ?? []].map(cell => cell.textContent.replace(/\\[()]/g, "").trim());
  const cells = [...table.tBodies].flatMap(body => [...body.rows]).flatMap(row => [...row.cells]);
  const isOfFormulas = names.some(name => name.includes("{"));
  if (names.length < 2 || isOfFormulas || !cells.some(cell => cell.textContent.length > 20)) continue;
  table.classList.add("stacked");
  for (const cell of cells) {
    if (!cell.textContent.trim()) cell.classList.add("blank");
    else if (names.length > 2 && names[cell.cellIndex]) cell.dataset.column = names[cell.cellIndex];
  }
}
