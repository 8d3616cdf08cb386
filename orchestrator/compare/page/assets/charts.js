// The charts. Each takes what it draws and a width, and returns an SVG element; colours are the page's own
// variables, so that light, dark and print need no redrawing. `numbers` of a chart are its figures as a table.
"use strict";

const COLORS = 8;
const GRID = { stroke: "var(--line)", strokeOpacity: 0.8 };
const color = (place) => `var(--c${place % COLORS})`;
const TIP = { fill: "var(--paper)", lineHeight: 1.3 };
const SYMBOLS = ["circle", "triangle", "square", "diamond", "star", "cross", "wye"];
const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)} %`);
const decimal = (value) => (value === null ? "–" : value.toFixed(2));
const interval = ([value, low, high]) =>
  low === null ? decimal(value) : `${decimal(value)} [${decimal(low)}, ${decimal(high)}]`;

const base = (width, height, label, more) => ({
  width,
  height,
  className: "plot",
  marginLeft: 44,
  marginTop: 28,
  marginRight: 12,
  marginBottom: 36,
  ariaLabel: label,
  style: undefined,
  ...more,
});

// Over the steps of one training: the figure with its band, the baseline as a line with its own.
function stepsChart(curve, unit, width) {
  const points = curve.points.map(([step, name, value, low, high, best]) => ({ step, name, value, low, high, best }));
  const reference = curve.reference;
  const banded = points.filter((point) => point.low !== null);
  const marks = [Plot.gridY(GRID)];
  if (reference !== null) {
    if (reference[1] !== null) {
      const ends = [points[0].step, points[points.length - 1].step];
      marks.push(Plot.areaY(ends, { x: (step) => step, y1: () => reference[1], y2: () => reference[2], fill: color(0), fillOpacity: 0.1 }));
    }
    marks.push(Plot.ruleY([reference[0]], { stroke: color(0), strokeDasharray: "5 4" }));
  }
  marks.push(
    Plot.areaY(banded, { x: "step", y1: "low", y2: "high", fill: color(1), fillOpacity: 0.22 }),
    Plot.lineY(points, { x: "step", y: "value", stroke: color(1), strokeWidth: 2 }),
    Plot.dot(points, { x: "step", y: "value", fill: color(1), r: points.length > 60 ? 1.5 : 3 }),
    Plot.tip(points, Plot.pointerX({ x: "step", y: "value", maxRadius: Infinity, ...TIP, title: (p) => `${p.name}\n${interval([p.value, p.low, p.high])}${p.best && `\nthe best with probability ${p.best}`}` })),
  );
  return Plot.plot(base(width, 280, `${unit} over steps`, { x: { label: "step", nice: true }, y: { label: unit }, marks }));
}

// A share by position, one line a drafter.
function positionsChart(entries, field, label, width) {
  const points = entries.flatMap((entry) =>
    entry[field].map((share, place) => ({ position: place + 1, share, name: entry.name, color: entry.color })),
  ).filter((point) => point.share !== null);
  return Plot.plot(base(width, 260, label, {
    x: { label: "position in the draft", type: "point", tickFormat: (p) => (d3.max(points, (q) => q.position) > 16 && p % 4 ? "" : String(p)) },
    y: { label: "share of rounds", domain: [0, 1], tickFormat: (share) => `${Math.round(100 * share)} %` },
    marks: [
      Plot.gridY(GRID),
      Plot.line(points, { x: "position", y: "share", z: "name", stroke: (p) => color(p.color), strokeWidth: 2 }),
      Plot.dot(points, { x: "position", y: "share", fill: (p) => color(p.color), r: 3 }),
      Plot.tip(points, Plot.pointer({ x: "position", y: "share", ...TIP, title: (p) => `${p.name}\nposition ${p.position}: ${percent(p.share)}` })),
    ],
  }));
}

// The share of rounds of each length, one bar a drafter.
function histogramChart(entries, width) {
  const points = entries.flatMap((entry) => {
    const total = d3.sum(entry.histogram);
    return entry.histogram.map((count, place) => ({ length: place + 1, share: total ? count / total : 0, count, name: entry.name, color: entry.color }));
  });
  return Plot.plot(base(width, 260, "share of rounds by length", {
    fx: { label: "length of a round (accepted drafts and the bonus token)", padding: 0.15 },
    x: { axis: null, domain: entries.map((entry) => entry.name), padding: 0 },
    y: { label: "share of rounds", tickFormat: (share) => `${Math.round(100 * share)} %` },
    marks: [
      Plot.gridY(GRID),
      Plot.barY(points, { fx: "length", x: "name", y: "share", fill: (p) => color(p.color) }),
      Plot.ruleY([0], { stroke: "var(--quiet)" }),
      Plot.tip(points, Plot.pointerX({ fx: "length", x: "name", y: "share", ...TIP, title: (p) => `${p.name}\nlength ${p.length}: ${percent(p.share)} (${p.count} rounds)` })),
    ],
  }));
}

// Lines with intervals over categories, each drafter's a little beside the others' so that all can be seen.
function beside(points, drafters, { x, low, high }) {
  return drafters.flatMap((drafter, place) => {
    const own = points.filter((point) => point.name === drafter.name);
    const dx = 5 * (place - (drafters.length - 1) / 2);
    return [
      Plot.ruleX(own.filter((point) => point[low] !== null), { x, y1: low, y2: high, dx, stroke: color(drafter.color), strokeOpacity: 0.7, strokeWidth: 1.5 }),
      Plot.line(own, { x, y: "value", dx, stroke: color(drafter.color), strokeWidth: 1.5, strokeOpacity: 0.8 }),
      Plot.dot(own, { x, y: "value", dx, fill: color(drafter.color), r: 3.5 }),
    ];
  });
}

// Over the sizes of draft trees, the chain beside them; never a ceiling.
function budgetChart(budgets, unit, width) {
  const points = budgets.flatMap((budget) => [
    ...(budget.chain === null ? [] : [["chain", ...budget.chain]]),
    ...budget.points.map(([size, ...estimate]) => [String(size), ...estimate]),
  ].map(([size, value, low, high]) => ({ size, value, low, high, name: budget.name, color: budget.color })));
  const sizes = [...new Set(budgets.flatMap((budget) => budget.points.map(([size]) => size)))].sort(d3.ascending).map(String);
  const domain = points.some((point) => point.size === "chain") ? ["chain", ...sizes] : sizes;
  return Plot.plot(base(width, 280, `${unit} by size of the draft tree`, {
    x: { label: "nodes of the draft tree", type: "point", domain },
    y: { label: unit },
    marks: [
      Plot.gridY(GRID),
      beside(points, budgets, { x: "size", low: "low", high: "high" }),
      Plot.tip(points, Plot.pointer({ x: "size", y: "value", ...TIP, title: (p) => `${p.name}\n${p.size}: ${interval([p.value, p.low, p.high])}` })),
    ],
  }));
}

// Each drafter's figure with its interval, all prompts and dataset by dataset.
function forestChart(entries, unit, width) {
  const rows = entries.flatMap((entry) => [["all prompts", ...entry.figure, null], ...entry.datasets]
    .map(([dataset, value, low, high, clusters]) => ({ dataset: dataset || "(none)", value, low, high, clusters, name: entry.name, color: entry.color })))
    .filter((row) => row.value !== null);
  const groups = [...new Set(rows.map((row) => row.dataset))];
  const height = 50 + groups.length * (22 + 17 * entries.length);
  return Plot.plot(base(width, height, `${unit} by dataset`, {
    marginLeft: 12,
    marginTop: 8,
    fy: { domain: groups, axis: null, padding: 0.05 },
    y: { axis: null, domain: [" ", ...entries.map((entry) => entry.name)] },
    x: { label: unit, nice: true },
    marks: [
      Plot.gridX(GRID),
      Plot.text(groups, { fy: (group) => group, text: (group) => short(group, 40), frameAnchor: "top-left", fontWeight: 600, fill: "var(--ink)", dy: 3 }),
      Plot.ruleY(rows.filter((r) => r.low !== null), { fy: "dataset", y: "name", x1: "low", x2: "high", stroke: (r) => color(r.color), strokeWidth: 2 }),
      Plot.dot(rows, { fy: "dataset", y: "name", x: "value", fill: (r) => color(r.color), symbol: "square", r: 4 }),
      Plot.tip(rows, Plot.pointer({ fy: "dataset", y: "name", x: "value", ...TIP, title: (r) => `${r.name} on ${r.dataset}\n${interval([r.value, r.low, r.high])}` })),
    ],
  }));
}

// One dot a prompt: the reference across, the candidate up; above the diagonal the candidate is better.
function pairsChart(pair, prompts, width) {
  const points = pair.points.map(([prompt, reference, candidate, rounds]) => ({ prompt: prompts[prompt][0], dataset: prompts[prompt][1], reference, candidate, rounds }))
    .filter((point) => point.reference !== null && point.candidate !== null);
  const datasets = datasetsOf(pair, prompts);
  const domain = d3.extent(points.flatMap((point) => [point.reference, point.candidate]));
  const [low, high] = domain[0] === domain[1] ? [domain[0] - 0.5, domain[1] + 0.5] : domain;
  const many = points.length > 400;
  return Plot.plot(base(width, Math.min(width, 420), `${pair.name} against ${pair.against}, prompt by prompt`, {
    x: { label: `${short(pair.against, 30)} →`, domain: [low, high], nice: true },
    y: { label: `↑ ${short(pair.name, 30)}`, domain: [low, high], nice: true },
    marks: [
      Plot.gridX(GRID),
      Plot.gridY(GRID),
      Plot.link([0], { x1: low, y1: low, x2: high, y2: high, stroke: "var(--quiet)", strokeDasharray: "5 4" }),
      Plot.dot(points, { x: "reference", y: "candidate", symbol: (p) => SYMBOLS[datasets.indexOf(p.dataset) % SYMBOLS.length], stroke: (p) => (p.candidate < p.reference ? "var(--worse)" : p.candidate > p.reference ? "var(--better)" : "var(--quiet)"), strokeOpacity: many ? 0.5 : 0.9, strokeWidth: 1.5, r: many ? 2.5 : 4 }),
      Plot.tip(points, Plot.pointer({ x: "reference", y: "candidate", ...TIP, title: (p) => `${p.prompt} (${p.dataset})\n${decimal(p.reference)} → ${decimal(p.candidate)}` })),
    ],
  }));
}

function datasetsOf(pair, prompts) {
  return [...new Set(pair.points.map(([prompt]) => prompts[prompt][1]))].sort();
}

// Over buckets of context, each drafter's rounds by the tokens before their anchor.
function contextsChart(entries, unit, width) {
  const points = entries.flatMap((entry) => entry.contexts.map(([low, high, value, under, over]) => ({ low, bucket: `${low}–${high - 1}`, value, under, over, name: entry.name, color: entry.color })))
    .filter((point) => point.value !== null);
  const domain = [...new Set(d3.sort(points, (point) => point.low).map((point) => point.bucket))];
  return Plot.plot(base(width, 260, `${unit} by context`, {
    x: { label: "tokens before the anchor", type: "point", domain },
    y: { label: unit },
    marks: [
      Plot.gridY(GRID),
      beside(d3.sort(points, (point) => point.low), entries, { x: "bucket", low: "under", high: "over" }),
      Plot.tip(points, Plot.pointer({ x: "bucket", y: "value", ...TIP, title: (p) => `${p.name}\n${p.bucket} tokens: ${interval([p.value, p.under, p.over])}` })),
    ],
  }));
}

function short(text, width) {
  return text.length <= width ? text : `${text.slice(0, Math.floor(width / 3))}…${text.slice(-Math.floor((2 * width) / 3))}`;
}
