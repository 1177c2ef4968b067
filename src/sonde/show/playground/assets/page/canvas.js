// Two pictures made of pixels: the plane of a two-dimensional task, and one input on its way up.

const rgbOf = (name) => {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((from) => parseInt(text.slice(from, from + 2), 16));
};

function mixed(from, to, share) {
  return from.map((value, i) => value + (to[i] - value) * Math.min(1, Math.max(0, share)));
}

// An image of rows × columns colours, one pixel each; the CSS makes it large.
function paint(canvas, columns, rows, colourAt) {
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext('2d');
  const image = context.createImageData(columns, rows);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) image.data.set([...colourAt(row, column), 255], 4 * (row * columns + column));
  }
  context.putImageData(image, 0, 0);
}

// Where class 1 is likely in one colour, class 0 in the other; undecided is the colour of the page.
function paintField(canvas, chances, side) {
  const [zero, one, none] = ['--class-0', '--class-1', '--card-rgb'].map(rgbOf);
  paint(canvas, side, side, (row, column) => {
    const chance = chances[row * side + column];
    if (!Number.isFinite(chance)) return none;
    return mixed(none, chance > 0.5 ? one : zero, 0.75 * Math.abs(2 * chance - 1));
  });
}

function drawPoints(svg, { x, y, edge }) {
  const dots = ['', ''];
  for (let n = 0; n < y.length; n += 1) dots[y[n]] += dotAt(50 * (1 + x[2 * n] / edge), place(50 * (1 - x[2 * n + 1] / edge)), 1);
  svg.replaceChildren(...dots.map((d, label) => drawn('path', { d, class: `class-${label}` })));
}

// Units against layers: blue below zero, vermilion above, the page's colour at zero; full at three times RMS(h₀).
function paintInput(canvas, rows, depth, d) {
  const [below, above, none] = ['--below', '--above', '--card-rgb'].map(rgbOf);
  let sum = 0;
  for (let i = 0; i < d; i += 1) sum += rows[i] * rows[i];
  const full = 3 * Math.sqrt(sum / d);
  paint(canvas, depth + 1, d, (unit, layer) => {
    const value = rows[layer * d + unit];
    if (!Number.isFinite(value)) return none;
    return mixed(none, value > 0 ? above : below, full > 0 ? Math.abs(value) / full : 0);
  });
}
