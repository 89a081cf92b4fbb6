// A page whose title or heading is the query comes first.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => score + (kind === "title" ? 50 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
