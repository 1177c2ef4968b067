// The answers that open the page: for each study a sentence, its values by network or rule as dots, and how sure it is.

const answers = new Map(); // id → { card, chart, given }
const ROW = 30; // pixels
const NARROW = 520;
// One line of the chart for every network or rule, a dot for every seed.
function dotsOf(given) {
  const shown = (value) => (given.per_cent ? `${said(100 * value)} %` : said(value));
  const lines = given.dots.map(({ label, style, values, note }, row) => {
    const colour = data.styles[style] ? `var(--colour-${style})` : 'var(--ink)';
    const ys = values.map(([, value]) => (value === null || (given.log && value <= 0) ? null : value));
    return {
      kind: 'dots', name: label, note, row, colour, symbol: data.styles[style]?.symbol || 'circle',
      xs: values.map(([seed]) => seed), ys, gaps: ys.map((value) => (value === null ? 'undefined' : null)),
      tell: (i) => [label, `seed ${values[i][0]}`, values[i][1] === null ? 'undefined' : shown(values[i][1]), note].filter(Boolean),
    };
  });
  const reference = given.reference ? [[given.reference[1]]] : [];
  const x = axisOf(endsOf([...lines.map((line) => line.ys), ...reference], given.log), { log: given.log, label: given.axis });
  if (given.per_cent) x.ticks = x.ticks.map(({ value }) => ({ value, text: `${shortly(100 * value)} %` }));
  return { picture: { x, lines, reference: given.reference, note: given.note }, lines, title: given.sentence, caption: '', head: 'seed' };
}

function drawDots(chart, picture) {
  const { lines, x, reference } = picture;
  const width = onPaper ? 520 : chart.plot.clientWidth || 520;
  const beside = widest(lines.map(({ name }) => name), 600) + widest(lines.map(({ note }) => note), 400);
  const narrow = width < NARROW || beside + 130 > width; // labels stand above the dots
  const left = narrow ? 8 : 16 + widest(lines.map(({ name }) => name), 600);
  const right = width - (narrow ? 8 : 18 + widest(lines.map(({ note }) => note), 400));
  const tight = narrow && lines.some(({ name, note }) => widest([name], 600) + widest([note], 400) + 20 > width);
  const labels = narrow ? (tight ? 32 : 16) : 0; // pixels above the dots of a row
  const [high, top] = [ROW + labels, picture.note || reference ? 34 : 8];
  const floor = top + high * lines.length;
  const height = floor + 42;
  const across = (value) => round(left + x.place(value) * (right - left));
  const middle = (row) => top + high * row + labels + (narrow ? 14 : high / 2);
  const svg = drawn('svg', { viewBox: `0 0 ${width} ${height}`, 'aria-hidden': 'true' });
  const line = (x1, y1, x2, y2, kind) => svg.append(drawn('line', { x1, y1, x2, y2, class: kind }));
  const text = (words, attributes) => svg.append(drawn('text', attributes, words));
  // Beside labels from top to floor; where labels stand above the dots, beside the dots alone.
  const upright = (place, from, kind) => {
    if (!narrow) line(place, from, place, floor, kind);
    else lines.forEach(({ row }) => line(place, middle(row) - 9, place, middle(row) + 9, kind));
  };
  const every = Math.ceil((x.ticks.length * 44) / (right - left));
  x.ticks.filter((_, i) => i % every === 0).forEach((tick) => {
    upright(across(tick.value), top, 'rule');
    line(across(tick.value), floor, across(tick.value), floor + 4, 'rule');
    text(tick.text, { x: across(tick.value), y: floor + 18, 'text-anchor': 'middle' });
  });
  line(left, floor, right, floor, 'axis');
  text(x.label, { x: (left + right) / 2, y: height - 6, 'text-anchor': 'middle', class: 'title' });
  if (reference) {
    const [name, value] = reference;
    const place = across(value);
    upright(place, top - 6, 'now');
    const half = widest([name], 400) / 2;
    text(name, { x: Math.max(left + half, Math.min(place, right - half)), y: top - 10, 'text-anchor': 'middle', class: 'title' });
  }
  if (picture.note && !narrow) text(picture.note, { x: width - 2, y: 10, 'text-anchor': 'end', class: 'title' });
  const points = lines.map((one) => one.ys.map((value) => (value === null ? null : { x: across(value), y: middle(one.row) })));
  const marks = lines.map((one, j) => one.ys.map((value, i) => (value === null ? { x: left + 8 + 10 * i, y: middle(j) } : null)));
  lines.forEach((one, j) => {
    const group = drawn('g', { class: 'line dots', 'data-name': one.name });
    const label = narrow ? { x: left, y: middle(j) - labels + 2 } : { x: left - 12, y: middle(j) + 4, 'text-anchor': 'end' };
    const note = tight ? { x: left, y: label.y + 15 } : { x: width - 2, y: label.y, 'text-anchor': 'end' };
    group.append(drawn('text', { ...label, class: 'name' }, one.name));
    group.append(drawn('text', { ...note, class: 'beside-row' }, one.note));
    group.append(drawn('line', { x1: left, x2: right, y1: middle(j), y2: middle(j), class: 'row' }));
    const shapes = points[j].map((point) => (point ? SYMBOLS[one.symbol](point.x, point.y) : '')).join('');
    group.append(coloured(drawn('path', { d: shapes, class: 'markers', 'stroke-width': 1.6 }), { stroke: one.colour, fill: one.symbol === 'x' ? 'none' : one.colour }));
    const crosses = marks[j].map((mark) => (mark ? SYMBOLS.x(mark.x, mark.y) : '')).join('');
    if (crosses) group.append(coloured(drawn('path', { d: crosses, class: 'undefined', 'stroke-width': 1.4 }), { stroke: one.colour }));
    svg.append(group);
  });
  svg.append(drawn('circle', { class: 'focus', r: 7, visibility: 'hidden' }));
  chart.plot.style.height = `${height}px`;
  chart.plot.querySelector('svg')?.remove();
  chart.plot.prepend(svg);
  Object.assign(chart, { picture, at: { points, marks, width, height } });
}

function makeCard(id) {
  const card = byId('answer-card').content.firstElementChild.cloneNode(true);
  const known = { card, given: null };
  const box = card.querySelector('.chart');
  box.id = `${id}-chart`;
  known.chart = makeChart(box, {
    section: 'answers',
    kind: 'dots',
    offered: () => [{ key: known.given.axis, label: known.given.axis, log: known.given.log }],
    make: () => dotsOf(known.given),
    draw: drawDots,
  });
  new ResizeObserver(() => drawChart(known.chart)).observe(box);
  return known;
}

// The answers of new data; a card that stays is not made anew.
function showAnswers(given) {
  const section = byId('answers');
  if (!section) return;
  const cards = given.map((one) => {
    const known = answers.get(one.id) || makeCard(one.id);
    answers.set(one.id, known);
    known.given = one;
    const words = { kicker: one.about, sentence: one.sentence, sure: one.sure };
    for (const [part, text] of Object.entries(words)) known.card.querySelector(`.${part}`).textContent = text;
    const others = known.card.querySelector('.others');
    others.hidden = !one.beside.length;
    others.replaceChildren(others.firstElementChild, ...one.beside.map((text) => element('p', { class: 'note' }, text)));
    known.card.querySelector('.more').setAttribute('href', `#${one.more}`);
    showCharted(known.card.querySelector('.charted'), given.indexOf(one));
    return known;
  });
  section.replaceChildren(...cards.map(({ card }) => card));
  section.hidden = !cards.length;
  cards.forEach(({ chart }) => drawChart(chart));
}

// A link to the charts of the runs behind an answer.
function showCharted(link, place) {
  const known = data.families.find(({ answer }) => answer === place);
  link.hidden = !known;
  if (known) link.querySelector('a').href = `#charts?${new URLSearchParams({ 'charts.recipe': known.title })}`;
}
