// Symbols and words that tell what they mean: buttons in the text, and one beside every chart's metric.

let terms = new Map(); // as it is written → term
let metricTerms = new Map(); // name of a probe or metric → term
let spelled = null; // finds any of them
const EXPLAINED = '.answer, #findings article, #audit, #audit article, #charts > p, #sweep > p, #beside > p, .picture figcaption, #watched article, #runs > p';
const NOT_IN = 'button, a, code, summary, label, select, svg, script, caption, h1, .kicker, .term, .files, .values, .recipe, .chart';

function readTerms(given) {
  terms = new Map(given.flatMap((term) => term.words.map((word) => [word, term])));
  metricTerms = new Map(given.filter(({ kind }) => kind === 'probe' || kind === 'metric').map((term) => [term.name, term]));
  const words = [...terms.keys()].sort((a, b) => b.length - a.length).map((word) => word.replaceAll(/[.*+?^${}()|[\]\\/]/g, '\\$&'));
  spelled = words.length ? new RegExp(`(?<!chain |[\\p{L}\\d_‖])(?:${words.join('|')})(?![\\p{L}\\d_‖])`, 'gu') : null;
}

// The first of each word in every block of text becomes a button.
function markTerms() {
  if (!spelled) return;
  for (const block of document.querySelectorAll(EXPLAINED)) {
    const done = new Set([...block.querySelectorAll('.term')].map((button) => button.textContent));
    const walk = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walk.nextNode()) {
      const nearest = walk.currentNode.parentElement.closest(NOT_IN);
      if (!nearest || !block.contains(nearest)) texts.push(walk.currentNode);
    }
    for (const text of texts) markText(text, done);
  }
}

function markText(text, done) {
  const pieces = [];
  let from = 0;
  for (const { 0: word, index } of text.data.matchAll(spelled)) {
    if (done.has(word)) continue;
    done.add(word);
    pieces.push(text.data.slice(from, index), termButton(word, () => terms.get(word)));
    from = index + word.length;
  }
  if (pieces.length) text.replaceWith(...pieces, text.data.slice(from));
}

function termButton(word, termOf, look = 'term') {
  const button = element('button', { type: 'button', class: look, 'aria-haspopup': 'dialog' }, word);
  button.addEventListener('click', () => explain(button, termOf()));
  return button;
}

// What the glossary says, with its formulas.
function explain(button, term) {
  const box = byId('explained');
  const entry = term && byId(term.key)?.querySelector('dd').cloneNode(true);
  const words = entry
    ? [element('strong', {}, term.words[0] || term.name.replaceAll('_', ' ')), term.kind === 'word' ? ': ' : ` (${term.kind}): `, ...entry.childNodes]
    : ['A measurement of a plugin: see the documentation of its probe.'];
  box.replaceChildren(...words);
  box.showPopover();
  const at = button.getBoundingClientRect();
  const room = document.documentElement.clientWidth - box.offsetWidth - 8;
  box.style.left = `${Math.max(8, Math.min(at.left, room))}px`;
  box.style.top = `${at.bottom + 6 + box.offsetHeight < innerHeight ? at.bottom + 6 : Math.max(8, at.top - 6 - box.offsetHeight)}px`;
}

const termOfMetric = (key) => metricTerms.get(key.split('[')[0].split('/')[0]);

// Text comes and goes with new data: once the page is still, its words are marked.
const markSoon = drawnOnce(markTerms);
window.addEventListener('scroll', () => byId('explained').matches(':popover-open') && byId('explained').hidePopover(), { passive: true });
