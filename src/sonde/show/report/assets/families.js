// The section of charts: which runs are chosen, and the charts of them over epochs and layer by layer.

const charts = [];
const LIKED = { 'first-profile': 'hidden_norm', 'second-profile': 'grad_norm', 'third-profile': 'credit_cosine' };
let epochs = null; // the player

const ticked = (id) => byId(id).checked;

const redraw = drawnOnce(() => {
  if (!data.series.length) return;
  charts.forEach(drawChart);
  showKeys();
});

// Which line is which, where the choices are out of sight.
function showKeys() {
  const looks = new Map(visibleRuns().map((run) => [nameOf(run), lookOf(run)]));
  for (const key of byId('stage').querySelectorAll('.key')) {
    key.replaceChildren(...[...looks].map(([name, look]) => element('span', {}, swatch(look), name)));
  }
}

// Boxes for the networks, rules or seeds; those that stay are not made anew, so that the focus stays too.
function checks(id, what, looks) {
  const box = byId(id);
  const labels = CHECKED[what].of();
  const shown = new Set(shownOf(what));
  box.hidden = labels.length < 2;
  const there = new Map([...box.querySelectorAll('label')].map((label) => [label.querySelector('input').value, label]));
  labels.forEach((text, place) => {
    const label = there.get(text) || checkbox(what, text);
    there.delete(text);
    label.querySelector('input').checked = shown.has(text);
    label.querySelector('.swatch')?.remove();
    if (looks) label.querySelector('input').after(swatch(looks(place)));
    if (box.querySelectorAll('label')[place] !== label) box.append(label);
  });
  there.forEach((label) => label.remove());
}

function checkbox(what, text) {
  const input = element('input', { type: 'checkbox', value: text });
  input.addEventListener('change', () => {
    const off = new Set(hidden(what));
    if (input.checked) off.delete(text);
    else off.add(text);
    choose(`charts.no-${what}`, '', ...off);
    redraw();
  });
  return element('label', {}, input, text);
}

function showChoices() {
  const { networks, rules } = family();
  checks('networks', 'network', (place) => {
    const look = lookOf({ network: place, rule: 0 });
    return rules.length > 1 ? { ...look, colour: 'var(--faint)' } : look;
  });
  checks('rules', 'rule', (place) => {
    const look = lookOf({ network: 0, rule: place });
    return networks.length > 1 ? { ...look, dash: SOLID } : look;
  });
  checks('seeds', 'seed', null);
  for (const id of ['mean', 'controls']) byId(id).checked = chosen(`charts.${id}`, id === 'controls' ? 'on' : 'off') === 'on';
}

// The metric a chart begins with: that of the answer, else the first.  Of profiles the one that belongs there, else the
// next that no other has.
function likedBy(box, metrics) {
  const keys = metrics.map(({ key }) => key);
  if (!LIKED[box.id]) return keys.includes(family().metric) ? family().metric : keys[0];
  if (keys.includes(LIKED[box.id])) return LIKED[box.id];
  const free = keys.filter((key) => !Object.values(LIKED).includes(key));
  const lacking = Object.keys(LIKED).filter((id) => !keys.includes(LIKED[id]));
  return free[lacking.indexOf(box.id)];
}

function showFamily() {
  showChoices();
  epochs.show(measuredEpochs(), family().epochs);
  byId('epoch-printed').textContent = `${family().title}; epoch ${epochs.at()} of ${family().epochs}.`;
  redraw();
}

function wireCharts() {
  for (const box of byId('stage').querySelectorAll('.chart')) {
    const kind = box.classList.contains('profile') ? 'profile' : 'epochs';
    charts.push(makeChart(box, {
      section: 'charts',
      kind,
      offered: () => offeredMetrics(kind === 'profile'),
      liked: (metrics) => likedBy(box, metrics),
      make: kind === 'epochs' ? overEpochs : profile,
      onChoose: (x) => kind === 'epochs' && epochs.move(x),
    }));
  }
  epochs = makePlayer('epoch', 'charts.epoch', 'epoch', showFamily);
  byId('family').addEventListener('change', (event) => {
    epochs.stop();
    forget('charts.no-network', 'charts.no-rule', 'charts.no-seed', 'charts.epoch');
    choose('charts.recipe', event.target.value);
    showFamily();
  });
  for (const id of ['mean', 'controls']) {
    byId(id).addEventListener('change', (event) => {
      choose(`charts.${id}`, event.target.checked ? 'on' : 'off');
      redraw();
    });
  }
  byId('choices').addEventListener('submit', (event) => event.preventDefault());
  new ResizeObserver(redraw).observe(byId('stage'));
}

// The charts of new data, with what the reader had chosen.
function showCharts(given) {
  if (!byId('stage')) return;
  readCharts(given);
  byId('stage').hidden = !data.series.length;
  byId('nothing').hidden = data.series.length > 0;
  if (!data.series.length) return;
  if (!charts.length) wireCharts();
  options(byId('family'), data.families.map(({ title }) => [title, title]), family().title);
  byId('family-field').hidden = data.families.length < 2;
  showFamily();
}
