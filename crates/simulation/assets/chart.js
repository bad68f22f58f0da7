// Draws a chart above every table that is marked as one. The tables are complete without it.
//   <figure data-chart="areas" data-series="1 allowed, 4 refused right" data-range="0 900">
//     data-chart   areas (parts of a whole), bars (the same, as bars) or lines
//     data-series  for each series: its column, its tone (a variable of the styles), its axis
//     data-range   begin and end of the time axis, in seconds
//     data-per     "second": counts are shown per second
//     data-zone    zone of its times; without it, that of the reader
//   <span data-changed-at="1767614400">, anywhere in the page: a time that every chart marks
//   <tr data-at="1767614400" data-seconds="10">, with digits or <data value="…"> in the cells of series
const HEIGHT = 220;
const number = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3, notation: "compact" });
const text = (value) => (value == null ? "–" : number.format(value));
const plots = new Map();
// The times that the reader looks at, by chart, if not all: they stay when the page has new content.
const zooms = new Map();

// Returns the times, and the values of each series. A value holds until the end of its interval; what was
// not counted is a gap.
function columnsOf({ chart, per }, rows, series) {
  const points = [...rows].map((row) => {
    const [at, seconds] = [Number(row.dataset.at), Number(row.dataset.seconds)];
    const cell = ({ column }) => row.cells[column];
    const count = (one) => Number(cell(one).querySelector("data")?.value ?? cell(one).textContent);
    return { at, end: at + seconds, values: series.map((one) => count(one) / (per === "second" ? seconds : 1)) };
  });
  points.sort((one, other) => one.at - other.at);
  const lines = points.flatMap(({ at, end, values }, index) => {
    const isFollowed = points[index + 1]?.at === end || chart === "bars";
    const gap = [[end, ...values], [end + 0.001, ...values.map(() => null)]];
    return [[at, ...values], ...(isFollowed ? [] : gap)];
  });
  return lines[0].map((_, column) => lines.map((line) => line[column]));
}

function options({ id, dataset: { chart, range, zone } }, series, at, values) {
  const [from, until] = range.split(" ").map(Number);
  // Without a pointer the legend has the newest values.
  const newest = values[0].findLastIndex((value) => value !== null);
  const timeZone = zone ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  const format = (of) => new Intl.DateTimeFormat(undefined, { ...of, timeZone });
  const day = { month: "short", day: "numeric" };
  const time = { hour: "numeric", minute: "2-digit" };
  const seconds = { ...time, second: "2-digit" };
  const [days, minutes, all] = [day, time, seconds].map(format);
  const exact = format(chart === "bars" ? day : { ...day, ...seconds });
  const short = ({ min, max }) => (max - min > 172_800 ? days : max - min < 600 ? all : minutes);
  const styles = getComputedStyle(document.documentElement);
  const color = (tone) => styles.getPropertyValue(`--${tone}`);
  const axis = { stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), size: 5 } };
  const counts = { ...axis, size: 60, values: (_plot, ticks) => ticks.map(text) };
  const fromZero = { range: (_plot, _lowest, highest) => [0, highest > 0 ? highest * 1.05 : 1] };
  const pointed = { label: "Time", value: (_plot, time) => exact.format((time ?? at[newest]) * 1_000) };
  const lines = series.map(({ label, tone, scale }, index) => ({
    label, scale, width: 2, stroke: color(tone), points: { show: false },
    paths: chart === "bars" ? uPlot.paths.bars({ align: 1, size: [0.8] }) : uPlot.paths.stepped({ align: 1 }),
    fill: chart === "lines" ? undefined : color(tone),
    // The second line of a tone is dashed.
    dash: series.findIndex((one) => one.tone === tone) < index ? [6, 4] : undefined,
    value: (_plot, _value, _series, row) => text(values[index][row ?? newest]),
  }));
  // A selection is the range of the times; a double click asks for all that have values.
  const isAll = (low, high) => at.length === 1 || (low === at[0] && high === at.at(-1));
  const times = (_plot, low, high) => (isAll(low, high) ? [from, until] : [low, high]);
  const zoomed = ({ scales: { x: { min, max } } }, scale) => {
    if (scale !== "x") return;
    if (min === from && max === until) zooms.delete(id);
    else zooms.set(id, { min, max });
  };
  const marks = [...document.querySelectorAll("[data-changed-at]")].map((mark) => Number(mark.dataset.changedAt));
  const marked = ({ ctx, bbox: { left, top, width, height }, valToPos }) => {
    ctx.save();
    ctx.fillStyle = color("muted");
    for (const x of marks.map((mark) => valToPos(mark, "x", true))) {
      if (x >= left && x <= left + width) ctx.fillRect(x, top, devicePixelRatio, height);
    }
    ctx.restore();
  };
  return {
    height: HEIGHT, padding: [8, 32, 0, 0], series: [pointed, ...lines], hooks: { setScale: [zoomed], draw: [marked] },
    cursor: { drag: { x: true, y: false } },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1_000), timeZone),
    scales: { x: { range: times }, left: fromZero, right: fromZero },
    axes: [
      { ...axis, space: 90, size: 32, values: ({ scales }, ticks) => ticks.map((at) => short(scales.x).format(at * 1_000)) },
      { ...counts, scale: "left" },
      { ...counts, scale: "right", side: 1, grid: {}, show: series.some((one) => one.scale === "right") },
    ],
  };
}

function draw(figure) {
  const [heads, table] = [figure.querySelectorAll("thead th"), figure.querySelector("details")];
  const series = figure.dataset.series.split(",").map((of) => {
    const [column, tone, scale = "left"] = of.trim().split(" ");
    return { column, tone, scale, label: heads[column].textContent };
  });
  const [at, ...values] = columnsOf(figure.dataset, figure.querySelectorAll("tr[data-at]"), series);
  const settings = { ...options(figure, series, at, values), width: table.clientWidth };
  let drawn = values;
  if (figure.dataset.chart !== "lines") {
    // Parts are drawn as sums: the highest first, and those below cover it.
    const sum = (row, upTo) => values.slice(0, upTo).reduce((all, part) => all + part[row], 0);
    drawn = values.map((part, index) => part.map((of, row) => (of === null ? null : of + sum(row, index))));
    drawn.reverse();
    settings.series = [settings.series[0], ...settings.series.slice(1).reverse()];
  }
  const plot = new uPlot(settings, [at, ...drawn]);
  if (zooms.has(figure.id)) plot.setScale("x", zooms.get(figure.id));
  table.before(plot.root);
  const highest = series.map(({ label }, index) => `${label}: at most ${text(Math.max(...values[index]))}.`);
  const picture = plot.root.querySelector(".u-wrap");
  picture.setAttribute("role", "img");
  picture.title = "Drag to zoom, double-click to see all";
  picture.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}. ${highest.join(" ")}`);
  plots.set(table, plot);
  resized.observe(table);
}

const resized = new ResizeObserver((tables) => {
  for (const { target } of tables) plots.get(target)?.setSize({ width: target.clientWidth, height: HEIGHT });
});

function drawAll() {
  resized.disconnect();
  for (const plot of plots.values()) plot.destroy();
  plots.clear();
  for (const figure of document.querySelectorAll("figure[data-chart]:has(tr[data-at])")) draw(figure);
}

drawAll();
// The page has new content, or other colors.
document.addEventListener("content", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
