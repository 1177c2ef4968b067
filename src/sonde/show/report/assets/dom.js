// Small helpers.  Text from runs reaches the page as text nodes, never as markup.

const byId = (id) => document.getElementById(id);

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const element = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);

const drawn = (name, attributes = {}, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);

// Colours are variables of the CSS, so that theme and paper change them without drawing anew.
function coloured(shape, { stroke, fill: inside = 'none' }) {
  shape.style.stroke = stroke;
  shape.style.fill = inside;
  return shape;
}

// Four significant digits, as in 0.9763 and 3.142e−14.
function said(value) {
  const far = value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5);
  const text = far ? value.toExponential(3).replace('e+', 'e') : String(Number(value.toPrecision(4)));
  return text.replaceAll('-', '−');
}

const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;

// A sample of a line beside its name.
function swatch(look) {
  const line = drawn('line', { x1: 0, y1: 6, x2: 26, y2: 6, 'stroke-width': 2.5, 'stroke-dasharray': look.dash });
  return drawn('svg', { class: 'swatch', 'aria-hidden': 'true', viewBox: '0 0 26 12' }, coloured(line, { stroke: look.colour }));
}

// The entries of a list to choose from; where they are as before nothing is touched, so that an open list stays open.
function options(select, entries, wanted) {
  const there = [...select.options];
  if (there.length !== entries.length || there.some((one, i) => one.value !== entries[i][0] || one.text !== entries[i][1])) {
    select.replaceChildren(...entries.map(([value, text]) => element('option', { value }, text)));
  }
  select.value = entries.some(([value]) => value === wanted) ? wanted : (entries[0] || [''])[0];
  return select.value;
}
