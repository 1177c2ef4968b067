// The page: theme, printing, and `sonde.show`, through which all data come.

// ── theme ──────────────────────────────────────────────────────────────────────────────────────────
const systemDark = matchMedia('(prefers-color-scheme: dark)');

function isDark() {
  const wanted = document.documentElement.dataset.theme;
  return wanted ? wanted === 'dark' : systemDark.matches;
}

function showTheme() {
  const button = byId('theme');
  button.hidden = false;
  button.textContent = isDark() ? 'Light colours' : 'Dark colours';
}

byId('theme').addEventListener('click', () => {
  document.documentElement.dataset.theme = isDark() ? 'light' : 'dark';
  showTheme();
});
systemDark.addEventListener('change', showTheme);
showTheme();

// ── data ───────────────────────────────────────────────────────────────────────────────────────────
// Everything the page shows, from one object; whatever it lacks stays as it is.
//   answers  what `answers_data` makes of the studies' answers
//   charts   what `chart_data` makes of stored runs
//   sweep    a `Sweep`: what differs between runs, and what each measured at its end
//   watched  what `watched_data` makes of watched runs
//   glossary the terms of `glossary`, each as it is written and explained
//   html     { part: markup }: what stands inside the elements with data-part="part", made by the page's own templates
// What the reader chose (`view`), which boxes are open, where he has scrolled and what has the focus stay.
const shown = { html: {} };
const MOST_CHOICES = 16; // boxes to tick; with more of them, their list is closed at first

function show(given) {
  keepingPlace(() => {
    for (const [part, markup] of Object.entries(given.html || {})) replacePart(part, markup);
    if (given.charts) showCharts(given.charts);
    if (given.sweep) showSweep(given.sweep);
    if (given.charts || given.sweep) showBeside();
    if (given.answers) showAnswers(given.answers);
    if (given.watched) showWatched(given.watched);
    if (given.glossary) readTerms(given.glossary);
    markSoon();
    markWide();
  });
}

// What stood at the top of the window stands there afterwards.
function keepingPlace(change) {
  const marks = [...document.querySelectorAll('[id]')].filter((mark) => mark.checkVisibility());
  const mark = window.scrollY > 0 ? marks.find((one) => one.getBoundingClientRect().top >= 0) : null;
  const before = mark?.getBoundingClientRect().top;
  const { id } = mark || {};
  change();
  const after = id && byId(id)?.getBoundingClientRect().top;
  if (id && after !== undefined) window.scrollBy({ top: after - before, behavior: 'instant' });
}

// Boxes, tables and links are found again by where they stand in their part.
function replacePart(part, markup) {
  const box = document.querySelector(`[data-part="${part}"]`);
  if (!box || shown.html[part] === markup) return;
  shown.html[part] = markup;
  const inside = 'details, .scroll, a, button, summary, [tabindex]';
  const before = [...box.querySelectorAll(inside)];
  const focus = before.indexOf(document.activeElement);
  const state = before.map(({ open, scrollLeft }) => ({ open, scrollLeft }));
  box.innerHTML = markup;
  box.querySelectorAll(inside).forEach((one, i) => {
    if (!state[i]) return;
    if (one.tagName === 'DETAILS' && state[i].open !== undefined) one.open = state[i].open;
    one.scrollLeft = state[i].scrollLeft;
    if (i === focus) one.focus({ preventScroll: true });
  });
}

// Tables and figures that are wider than their place say so.
const markWide = drawnOnce(() => {
  for (const box of document.querySelectorAll('.scroll')) box.classList.toggle('wider', box.scrollWidth > box.clientWidth + 1);
});
new ResizeObserver(markWide).observe(document.documentElement);
document.addEventListener('toggle', markWide, true);

// A link into a closed box opens it.
function reveal() {
  const target = location.hash.length > 1 ? byId(decodeURIComponent(location.hash.slice(1).split('?')[0])) : null;
  if (!target?.closest('details:not([open])')) return;
  for (let box = target.closest('details'); box; box = box.parentElement.closest('details')) box.open = true;
  target.scrollIntoView({ behavior: 'instant' });
}
window.addEventListener('hashchange', reveal);

// The link to the section that is being read.
const links = new Map([...document.querySelectorAll('nav a')].map((link) => [link.hash.slice(1), link]));
const markCurrent = drawnOnce(() => {
  const there = [...links.keys()].filter((id) => byId(id)?.checkVisibility() && byId(id).getBoundingClientRect().top < innerHeight / 3);
  for (const [id, link] of links) {
    if (id !== there.at(-1)) link.removeAttribute('aria-current');
    else if (!link.hasAttribute('aria-current')) {
      link.setAttribute('aria-current', 'true');
      const strip = link.parentElement;
      strip.scrollLeft = link.offsetLeft - strip.offsetLeft - strip.clientWidth / 3;
    }
  }
});
window.addEventListener('scroll', markCurrent, { passive: true });

window.sonde = { show };
show(JSON.parse(byId('data').textContent));
if (byId('choices-box')) byId('choices-box').open = innerWidth > 640 && byId('choices').querySelectorAll('fieldset:not([hidden]) label').length <= MOST_CHOICES;
const again = () => show({ charts: data, sweep: swept, watched: seen.data });
if (readView()) again();
reveal();
markCurrent();
window.addEventListener('hashchange', () => readView() && again());

// ── paper ──────────────────────────────────────────────────────────────────────────────────────────
// It has its own width and no boxes to open, so all boxes of text are opened, and closed again afterwards.
function print(on) {
  onPaper = on;
  for (const box of document.querySelectorAll('.evidence, .left-out, .more, .others, figcaption details, .found details')) {
    if (on) box.dataset.wasOpen = box.open;
    box.open = on || box.dataset.wasOpen === 'true';
  }
  [...charts, ...seen.charts, sweepChart, besideChart, ...[...answers.values()].map(({ chart }) => chart)].filter(Boolean).forEach(drawChart);
}
window.addEventListener('beforeprint', () => print(true));
window.addEventListener('afterprint', () => print(false));
