// Which shape and which drafters are shown, and the figures around the charts: caption, chart, numbers as a table.
// Texts enter the document as text only.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const shape = document.getElementById("shape");
  const boxes = document.getElementById("drafters");
  const figures = document.getElementById("figures");
  const title = (block) => block.shape + (block.temperature === null ? "" : ` · T = ${block.temperature}`) + (block.ceiling ? " (oracle ceiling)" : "");
  const chosen = data.drafters.map((drafter, number) => (drafter.shown ? number : -1)).filter((number) => number >= 0);
  let colors = new Map();
  let pairPlace = 0;

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function table(heading, rows, label) {
    const head = element("tr", {}, ...heading.map((text) => element("th", { scope: "col" }, text)));
    const body = rows.map((row) => element("tr", {}, ...row.map((text, place) => element(place ? "td" : "th", place ? {} : { scope: "row" }, String(text)))));
    const holder = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label });
    holder.append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
    return holder;
  }

  // A figure whose chart is drawn as wide as there is room, again whenever that changes.
  function figure({ id, caption, note, draw, heading, rows, extra, wide }) {
    const words = element("figcaption", {}, caption, element("small", {}, note));
    const holder = element("div", { class: "chart" });
    const numbers = element("details", {}, element("summary", {}, "Numbers"), table(heading, rows, `${caption}: numbers`));
    const made = element("figure", { id, ...(wide ? { class: "wide" } : {}) }, words, ...(extra ? [extra] : []), holder, numbers);
    figures.append(made);
    const svg = draw(Math.max(260, Math.min(holder.clientWidth, wide ? 1200 : 640)));
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${caption}. ${note} The numbers follow as a table.`);
    // The library names its groups by aria-label, which only an element with a role may have.
    for (const group of svg.querySelectorAll("g[aria-label]")) {
      group.dataset.mark = group.getAttribute("aria-label");
      group.removeAttribute("aria-label");
    }
    holder.replaceChildren(svg);
  }

  const current = () => data.blocks[shape.selectedIndex];
  const named = (entry) => ({ ...entry, name: data.drafters[entry.d].name, color: colors.get(entry.d) });

  function legend() {
    document.getElementById("legend").replaceChildren(...chosen.map((number) => {
      const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      swatch.setAttribute("width", "14");
      swatch.setAttribute("height", "14");
      swatch.setAttribute("aria-hidden", "true");
      swatch.dataset.color = colors.get(number);
      const square = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      square.setAttribute("width", "14");
      square.setAttribute("height", "14");
      square.setAttribute("rx", "3");
      square.setAttribute("fill", "currentColor");
      swatch.append(square);
      const text = element("bdi", {}, data.drafters[number].name + (data.drafters[number].baseline ? " (baseline)" : ""));
      return element("li", {}, swatch, text);
    }));
  }

  function draw() {
    const block = current();
    const kept = figures.contains(document.activeElement) ? document.activeElement.id : "";
    // The baseline is ink; the others have the palette's colours in the order of the tables.
    const others = chosen.filter((number) => !data.drafters[number].baseline);
    colors = new Map(chosen.map((number) => [number, data.drafters[number].baseline ? 0 : 1 + (others.indexOf(number) % (COLORS - 1))]));
    document.getElementById("who-count").textContent = `${chosen.length} of ${data.drafters.length}`;
    legend();
    const height = figures.offsetHeight;
    figures.style.minHeight = `${height}px`;
    figures.replaceChildren();
    const entries = block.entries.filter((entry) => chosen.includes(entry.d)).map(named);
    const unit = data.unit;
    data.curves.filter((curve) => curve.shape === block.shape && curve.temperature === block.temperature).forEach((curve, place) => figure({
      id: `steps-${place}`,
      caption: `${unit} over the steps of ${curve.training}`,
      note: `${block.shape}; the band is the 95 % interval${curve.reference === null ? "" : ", the dashed line the baseline"}. ${curve.best}.`,
      draw: (width) => stepsChart(curve, unit, width),
      heading: ["step", `${unit} [95 % CI]`, "P(best)"],
      rows: curve.points.map(([step, , value, low, high, best]) => [step, interval([value, low, high]), best]),
      wide: true,
    }));
    if (!entries.length) figures.append(element("p", {}, "No drafter is chosen that has this shape."));
    else perDrafter(block, entries, unit);
    const budgets = data.budgets.filter((budget) => budget.temperature === block.temperature && chosen.includes(budget.d)).map(named);
    if (budgets.length) figure({
      id: "budgets",
      caption: `${unit} by the size of the draft tree`,
      note: "Bars are 95 % intervals. The chain stands beside the trees; oracle ceilings are never on this curve.",
      draw: (width) => budgetChart(budgets, unit, width),
      heading: ["drafter", "nodes", `${unit} [95 % CI]`],
      rows: budgets.flatMap((budget) => [...(budget.chain ? [[budget.name, "chain", interval(budget.chain)]] : []), ...budget.points.map(([size, ...estimate]) => [budget.name, size, interval(estimate)])]),
    });
    pairs(block);
    figures.style.minHeight = "";
    if (kept) document.getElementById(kept)?.focus();
  }

  function perDrafter(block, entries, unit) {
    const positions = [["survival", "Accepted up to a position", "Share of all rounds that accepted at least so many drafts."],
      ["conditional", "Accepted at a position, once reached", "Of the rounds that accepted all drafts before it, the share that accepted this one too."]];
    for (const [field, caption, note] of positions) figure({
      id: field,
      caption,
      note: `${block.shape}. ${note}`,
      draw: (width) => positionsChart(entries, field, caption.toLowerCase(), width),
      heading: ["drafter", ...d3.range(1, d3.max(entries, (entry) => entry[field].length) + 1)].map(String),
      rows: entries.map((entry) => [entry.name, ...entry[field].map(percent)]),
    });
    figure({
      id: "histogram",
      caption: "Rounds by their length",
      note: `${block.shape}. Share of rounds of each length.`,
      draw: (width) => histogramChart(entries, width),
      heading: ["drafter", ...d3.range(1, d3.max(entries, (entry) => entry.histogram.length) + 1)].map(String),
      rows: entries.map((entry) => [entry.name, ...entry.histogram]),
    });
    if (entries.some((entry) => entry.contexts.length)) figure({
      id: "contexts",
      caption: `${data.context_unit} by the context before the anchor`,
      note: `${block.shape}. Bars are 95 % intervals.`,
      draw: (width) => contextsChart(entries, data.context_unit, width),
      heading: ["drafter", "tokens", `${data.context_unit} [95 % CI]`, "rounds"],
      rows: entries.flatMap((entry) => entry.contexts.map(([low, high, value, under, over, rounds]) => [entry.name, `${low} to ${high - 1}`, interval([value, under, over]), rounds])),
    });
    figure({
      id: "forest",
      caption: `${unit} by dataset`,
      note: `${block.shape}. Lines are 95 % intervals${entries.every((entry) => entry.datasets.every((part) => part[2] === null)) ? ", where datasets have them" : ""}.`,
      draw: (width) => forestChart(entries, unit, width),
      heading: ["drafter", "dataset", `${unit} [95 % CI]`, "prompts"],
      rows: entries.flatMap((entry) => [[entry.name, "all prompts", interval(entry.figure), ""], ...entry.datasets.map(([name, value, low, high, clusters]) => [entry.name, name || "(none)", interval([value, low, high]), clusters])]),
    });
  }

  function pairs(block) {
    if (!block.pairs.length) return;
    pairPlace = Math.min(pairPlace, block.pairs.length - 1);
    const choice = element("select", { id: "pair", "aria-label": "Which two drafters" }, ...block.pairs.map((pair, place) => {
      const option = element("option", {}, `${data.drafters[pair.d].name} against ${pair.against}`);
      option.selected = place === pairPlace;
      return option;
    }));
    choice.addEventListener("change", () => {
      pairPlace = choice.selectedIndex;
      draw();
    });
    const pair = { ...block.pairs[pairPlace], name: data.drafters[block.pairs[pairPlace].d].name };
    const gain = ([, reference, candidate, rounds]) => (candidate - reference) * rounds;
    const ordered = d3.sort(pair.points.filter((point) => point[1] !== null && point[2] !== null), gain);
    const most = ordered.length > 24 ? [...ordered.slice(0, 12), ...ordered.slice(-12)] : ordered;
    const better = ordered.filter((point) => point[2] > point[1]).length;
    const datasets = datasetsOf(pair, data.prompts);
    const marks = datasets.length < 2 ? "" : `Marks: ${datasets.map((name, place) => `${SYMBOLS[place % SYMBOLS.length]} ${name || "(none)"}`).join(", ")}.`;
    const thinned = pair.points.length < pair.of ? ` Every ${Math.ceil(pair.of / pair.points.length)}th of ${pair.of} prompts is here.` : "";
    const left = block.left_out ? ` ${block.left_out} further comparison${block.left_out > 1 ? "s are" : " is"} left out here (orch compare --by prompt).` : "";
    figure({
      id: "pairs",
      caption: "Prompt by prompt",
      note: `${block.shape}. ${pair.name} is better on ${better} of ${ordered.length} prompts (above the line, green). ${marks}${thinned}${left}`,
      draw: (width) => pairsChart(pair, data.prompts, width),
      heading: ["prompt", "dataset", pair.against, pair.name, "rounds"],
      rows: most.map(([prompt, reference, candidate, rounds]) => [...data.prompts[prompt], decimal(reference), decimal(candidate), rounds]),
      extra: choice,
    });
  }

  shape.append(...data.blocks.map((block) => element("option", {}, title(block))));
  shape.addEventListener("change", draw);
  data.drafters.forEach((drafter, number) => {
    const box = element("input", { type: "checkbox" });
    box.checked = drafter.shown;
    box.addEventListener("change", () => {
      if (box.checked) chosen.push(number);
      else chosen.splice(chosen.indexOf(number), 1);
      chosen.sort(d3.ascending);
      for (const other of boxes.querySelectorAll("input")) other.disabled = chosen.length >= COLORS && !other.checked;
      draw();
    });
    boxes.append(element("label", {}, box, element("bdi", {}, drafter.name)));
  });
  draw();
  // What is folded away would be missing on paper.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("#diagnoses details:not([open]), #provenance details:not([open])")];
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });
  let width = window.innerWidth;
  let waiting;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 100);
  });
})();
