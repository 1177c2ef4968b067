// One chart, whatever it shows: its metric and scale, its picture, its values as a table and as files.
// `offered()` lists the metrics it can show, `make(chart)` says what it shows of the chosen one:
// { picture, lines, title, caption, head }, `draw` draws it; `onChoose(x)` is called where the reader chooses a point.

function makeChart(box, { section, kind, offered, liked = () => null, make, draw = drawPicture, onChoose = () => {} }) {
  const chart = {
    box,
    kind,
    offered,
    liked,
    make,
    draw,
    key: `${section}.${box.id}`,
    plot: box.querySelector('.plot'),
    tip: box.querySelector('.tip'),
    spoken: box.querySelector('.spoken'),
    caption: box.querySelector('figcaption'),
    values: box.querySelector('details.values'),
    select: box.querySelector('.metric'),
    logBox: box.querySelector('.log'),
    layerBox: box.querySelector('.layer'),
    metric: null,
    tipped: null,
  };
  chart.select.addEventListener('change', () => {
    forget(`${chart.key}.log`, `${chart.key}.layer`);
    choose(`${chart.key}.metric`, chart.select.value);
    drawChart(chart);
  });
  chart.logBox.addEventListener('change', () => {
    choose(`${chart.key}.log`, chart.logBox.checked ? 'on' : 'off');
    drawChart(chart);
  });
  chart.layerBox?.querySelector('select').addEventListener('change', (event) => {
    choose(`${chart.key}.layer`, event.target.value);
    drawChart(chart);
  });
  chart.values.addEventListener('toggle', () => chart.values.open && chart.made && fillValues(chart));
  chart.select.parentElement.after(termButton('?', () => chart.metric && termOfMetric(chart.metric.key), 'what'));
  box.querySelector('.what').setAttribute('aria-label', 'What is this metric?');
  for (const [form, save] of Object.entries(FILES)) {
    box.querySelector(`.save-${form}`).addEventListener('click', () => chart.made && save(chart));
  }
  listen(chart, onChoose);
  return chart;
}

// What the reader chose of this chart, where the data have it; else what the chart shows by itself.
function chooseMetric(chart) {
  const metrics = chart.offered();
  const wanted = chosen(`${chart.key}.metric`, chart.liked(metrics));
  const key = options(chart.select, metrics.map((metric) => [metric.key, metric.label]), wanted);
  chart.metric = metrics.find((metric) => metric.key === key) || null;
  chart.box.hidden = !chart.metric;
  if (!chart.metric) return;
  chart.log = chosen(`${chart.key}.log`, chart.metric.log ? 'on' : 'off') === 'on';
  chart.logBox.checked = chart.log;
  if (!chart.layerBox) return;
  chart.layerBox.hidden = !chart.metric.layered;
  const layers = ['last', ...(chart.metric.layered ? layersOf(chart.metric).map(String) : [])];
  chart.layer = options(chart.layerBox.querySelector('select'), layers.map((layer) => [layer, layer]), chosen(`${chart.key}.layer`, 'last'));
}

function drawChart(chart) {
  chooseMetric(chart);
  if (!chart.metric) return;
  chart.made = chart.make(chart);
  const { picture, title, caption } = chart.made;
  if (chart.tipped) showTip(chart, null);
  chart.draw(chart, picture);
  chart.caption.textContent = caption;
  chart.plot.setAttribute('aria-label', `${title}. ${caption} Arrow keys read the points.`);
  if (chart.values.open) fillValues(chart);
}

// Once a frame, however much changed.
function drawnOnce(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

// The values as a table, for readers who do not hover: a column for every x that any line has.
function fillValues(chart) {
  const { lines, head, places } = chart.made;
  const xs = sorted(lines.flatMap((line) => line.xs));
  const titles = xs.map((x, i) => element('th', { scope: 'col' }, places ? places[i] : `${head} ${x}`));
  const rows = lines.map((line) => {
    const place = new Map(line.xs.map((x, i) => [x, i]));
    const value = (x) => line.ys[place.get(x)] ?? null;
    const cells = xs.map((x) => (value(x) !== null ? said(value(x)) : line.gaps[place.get(x)] || 'not measured'));
    return element('tr', {}, element('th', { scope: 'row', class: 'left' }, line.name), ...cells.map((cell) => element('td', {}, cell)));
  });
  const header = element('thead', {}, element('tr', {}, element('th', { scope: 'col', class: 'left' }, 'line'), ...titles));
  chart.values.querySelector('.scroll').replaceChildren(element('table', {}, header, element('tbody', {}, ...rows)));
}
