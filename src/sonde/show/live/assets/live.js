// The live page: it is sent what changed, and shows the status of the runs.

const live = { state: {}, source: null, at: null, states: [] };

// Words are announced where they change; the time of day is not.
const bar = element('p', { class: 'live', id: 'live' });
const words = element('span', { role: 'status' }, 'Connecting …');
const moment = element('span', {});
bar.append(words, moment);
document.querySelector('.bar .kicker').after(bar);

function tellStatus(lost) {
  const counted = live.states.map(([state, many]) => `${many} ${state}`).join(' · ') || 'no runs yet';
  const now = lost || [counted, live.state.trouble].filter(Boolean).join(' · ');
  bar.classList.toggle('lost', Boolean(lost));
  if (words.textContent !== now) words.textContent = now;
  moment.textContent = lost ? '' : ` · ${live.at.toLocaleTimeString()}`;
}

// ── running now ────────────────────────────────────────────────────────────────────────────────────
// A card for each run that trains: its curve, how far it is, and the time left.  A card that stays is not made anew.
const MOST_CARDS = 6;
const cards = new Map(); // id → { card, plot, curve }

function makeRunning(id) {
  const plot = element('div', { class: 'plot', role: 'img' });
  const card = element('article', { class: 'running' }, element('h3', {}), element('p', { class: 'left' }), element('progress', { max: 1, 'aria-label': 'Progress' }), plot, element('p', { class: 'note' }, element('code', {}, id)));
  const known = { card, plot, given: null };
  new ResizeObserver(() => drawRunning(known)).observe(plot);
  return known;
}

function drawRunning({ plot, given }) {
  plot.hidden = !given.curve;
  if (!given.curve) return;
  const { x: xs, y, axis, label } = given.curve;
  const log = y.every((value) => value === null || value > 0);
  const line = { kind: 'run', name: given.label, facts: {}, xs, ys: y, gaps: y.map(() => null), colour: 'var(--accent)', dash: 'none', width: 1.8, symbol: null };
  const ends = endsOf([y], log);
  const last = y.findLast((value) => value !== null);
  plot.setAttribute('aria-label', `${label} over ${axis}s${last === undefined ? '' : `, now ${said(last)}`}`);
  const x = axisOf([xs[0], xs.at(-1)], { room: 0.02, label: axis });
  x.ticks = x.ticks.filter(({ value }) => Number.isInteger(value));
  drawPicture({ plot, kind: 'profile' }, { x, y: axisOf(ends, { log, label }), lines: [line], epoch: null });
}

function showRunning(given) {
  const box = byId('running-cards');
  const first = given.slice(0, MOST_CARDS);
  for (const [id, { card }] of cards) {
    if (first.some((one) => one.id === id)) continue;
    card.remove();
    cards.delete(id);
  }
  box.querySelectorAll(':scope > .note').forEach((note) => note.remove());
  first.forEach((one, place) => {
    const known = cards.get(one.id) || makeRunning(one.id);
    cards.set(one.id, known);
    known.given = one;
    known.card.querySelector('h3').textContent = one.label;
    known.card.querySelector('.left').textContent = one.progress.join(' · ');
    const bar = known.card.querySelector('progress');
    bar.hidden = one.done === null;
    bar.value = one.done ?? 0;
    if (box.children[place] !== known.card) box.insertBefore(known.card, box.children[place] || null);
    drawRunning(known);
  });
  const more = given.length - first.length;
  if (!given.length) box.append(element('p', { class: 'note' }, 'No run is training. A run appears here when it starts.'));
  if (more) box.append(element('p', { class: 'note' }, `${plural(more, 'more run')} running; the table of runs lists all.`));
}

// See show/live/__init__.py.
function patched(old, [kind, ...how]) {
  if (kind === '=') return how[0];
  if (kind === '+') return old.slice(0, how[0]).concat(how[1]);
  if (kind === '[') {
    const whole = old.slice(0, how[1]).concat(how[2]);
    for (const [place, inner] of Object.entries(how[0])) whole[place] = patched(old[place], inner);
    return whole;
  }
  const whole = { ...old };
  for (const key of how[1]) delete whole[key];
  for (const [key, inner] of Object.entries(how[0])) whole[key] = patched(old[key], inner);
  return whole;
}

// Plugins that came after the page have colours, too.
function addColours(colours) {
  for (const [name, colour] of Object.entries(colours)) {
    if (!getComputedStyle(document.documentElement).getPropertyValue(`--colour-${name}`)) {
      document.documentElement.style.setProperty(`--colour-${name}`, colour);
    }
  }
}

// The page may write into what it is shown; the state stays as it was sent.
function take(state) {
  const { colours, states, trouble, running, ...parts } = state;
  const changed = Object.entries(parts).filter(([key, value]) => live.state[key] !== value);
  live.state = state;
  live.at = new Date();
  live.states = states;
  addColours(colours);
  document.querySelector('nav a[href="#watched"]').hidden = !state.watched.runs.length;
  show(structuredClone(Object.fromEntries(changed)));
  showRunning(running);
  tellStatus();
}

function connect() {
  live.source = new EventSource('events');
  live.source.addEventListener('whole', (event) => take(JSON.parse(event.data)));
  live.source.addEventListener('patch', (event) => take(patched(live.state, JSON.parse(event.data))));
  live.source.addEventListener('open', () => live.at && tellStatus());
  live.source.addEventListener('error', () => {
    tellStatus(`Disconnected since ${new Date().toLocaleTimeString()}, retrying: what is shown is the last that was sent`);
    if (live.source.readyState !== EventSource.CLOSED) return;
    setTimeout(connect, 1000); // browsers give up after some answers
  });
}

connect();
