// The sample browser: search, filters, order, a page at a time. The places are in the document; this hides and sorts.
"use strict";

(() => {
  const holder = document.getElementById("samples");
  if (!holder) return;
  const STEP = 20;
  const places = [...holder.children];
  // Spaces and line ends are shown as signs, and a bar stands where acceptance ends: none of these hides a text.
  const plain = (text) => text.toLowerCase().replaceAll("│", "").replace(/[\s·⏎⇥]+/g, " ");
  const texts = places.map((place) => plain(place.textContent));
  const field = (name) => document.getElementById(name);
  const [search, dataset, drafter, kind, order] = ["search", "dataset", "drafter", "kind", "order"].map(field);
  const more = field("more");
  let shown = STEP;

  const datasets = [...new Set(places.map((place) => place.dataset.dataset))].sort();
  dataset.append(...datasets.map((name) => new Option(name || "(none)", name || "\u0000")));

  function fits(place, number) {
    const own = place.dataset;
    return texts[number].includes(plain(search.value))
      && (!dataset.value || own.dataset === dataset.value.replace("\u0000", ""))
      && (!drafter.value || [...place.querySelectorAll(".draft")].some((draft) => draft.dataset.drafter === drafter.value))
      && (!kind.value || (kind.value === "flagged" ? own.flagged === "1" : own.kind === kind.value));
  }

  const number = (place, name) => Number(place.dataset[name]);
  const ORDERS = {
    disagreement: (a, b) => number(b, "disagreement") - number(a, "disagreement") || number(a, "place") - number(b, "place"),
    loss: (a, b) => number(b, "loss") - number(a, "loss") || number(a, "place") - number(b, "place"),
    prompt: (a, b) => number(a, "place") - number(b, "place"),
  };

  function show() {
    const found = places.filter(fits).sort(ORDERS[order.value]);
    const visible = found.slice(0, shown);
    for (const place of places) place.hidden = true;
    for (const place of visible) {
      place.hidden = false;
      for (const draft of place.querySelectorAll(".draft")) draft.hidden = Boolean(drafter.value) && draft.dataset.drafter !== drafter.value;
    }
    holder.append(...found);
    more.hidden = visible.length === found.length;
    field("found").textContent = found.length === visible.length
      ? `${found.length} of ${places.length} places`
      : `${visible.length} of the ${found.length} places found, ${places.length} in all`;
  }

  function again() {
    shown = STEP;
    show();
  }

  field("filters").addEventListener("submit", (event) => event.preventDefault());
  field("filters").addEventListener("input", again);
  more.addEventListener("click", () => {
    shown += STEP;
    show();
    const first = holder.children[shown - STEP]?.querySelector("h3");
    first?.setAttribute("tabindex", "-1");
    first?.focus();
  });
  show();
})();
