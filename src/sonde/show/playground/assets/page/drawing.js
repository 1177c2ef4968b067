// A drawing of the network: its blocks and skip connections, shaded by the signal that is left, above the gradient.

const DRAWING = { width: 340, height: 84, most: 10, top: 26, side: 22 };

// Layers 1 … L, or ten of them evenly spread.
function drawnLayers(depth) {
  const count = Math.min(depth, DRAWING.most);
  const at = (i) => (count === 1 ? 1 : Math.round(1 + (i * (depth - 1)) / (count - 1)));
  return Array.from({ length: count }, (_, i) => at(i));
}

// From 0 at a ratio of `least` to 1 where nothing is lost, on a log scale; undefined is 0.
function logShare(ratio, least) {
  if (!(ratio > 0)) return 0;
  return Math.min(1, Math.max(0, 1 - Math.log10(ratio) / Math.log10(least)));
}

function drawNetwork(svg, { settings, frame }) {
  const { width, height, top, side } = DRAWING;
  const { spread, gradient } = frame.readings;
  const layers = drawnLayers(settings.depth);
  const gap = (width - 2 * 34 - layers.length * side) / (layers.length + 1);
  const colour = `var(--colour-${settings.rule})`;
  const middle = top + side / 2;
  const parts = [box(2, top, 32, 'in', 0, colour), drawn('line', { x1: 34, y1: middle, x2: width - 34, y2: middle, class: 'wire' })];
  layers.forEach((layer, i) => {
    const x = 34 + gap + i * (side + gap);
    const left = spread[layer].value / spread[0].value;
    parts.push(box(x, top, side, String(layer), logShare(left, FACTS.signal_collapsed), colour));
    if (settings.norm === 'pre') parts.push(bar(x - 3, top, side));
    if (settings.norm === 'post') parts.push(bar(x + side + gap * 0.6, top, side));
    if (settings.skip) {
      const [from, to] = [x - gap * 0.35, x + side + gap * 0.35];
      parts.push(drawn('path', { d: `M${place(from)} ${middle}C${place(from)} 2 ${place(to)} 2 ${place(to)} ${middle}`, class: 'skip' }));
    }
    const back = gradient[layer].value / gradient.at(-1).value;
    const thick = 0.5 + 5 * logShare(back, FACTS.gradient_vanished);
    const foot = { x1: x + side + gap / 2, y1: top + side + 14, x2: x - gap / 2, y2: top + side + 14, 'stroke-width': place(thick) };
    parts.push(drawn('line', { ...foot, class: 'back' }));
  });
  if (settings.out_ln) parts.push(bar(width - 38, top, side));
  parts.push(box(width - 34, top, 32, 'out', 0, colour));
  parts.push(drawn('text', { x: 2, y: height - 4 }, '← gradient, as thick as it arrives'));
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('aria-label', drawingWords(settings, layers));
  svg.replaceChildren(...parts);
}

function box(x, y, width, text, share, colour) {
  const { side } = DRAWING;
  const at = { x: place(x), y, width, height: side, rx: 4 };
  const ground = drawn('rect', { ...at, class: 'ground' });
  const rect = coloured(drawn('rect', at), { stroke: colour, fill: colour });
  rect.style.fillOpacity = 0.55 * share;
  return drawn('g', {}, ground, rect, drawn('text', { x: place(x + width / 2), y: y + side / 2 + 4, 'text-anchor': 'middle' }, text));
}

const bar = (x, y, height) => drawn('line', { x1: place(x), y1: y - 3, x2: place(x), y2: y + height + 3, class: 'norm' });

function drawingWords({ depth, skip, norm, out_ln }, layers) {
  const shown = layers.length < depth ? `, ${layers.length} of them drawn` : '';
  const norms = { none: '', pre: ', LayerNorm before each', post: ', LayerNorm after each' }[norm];
  return `Drawing of the network: ${depth} blocks${shown}, ${skip ? 'with' : 'without'} skip connections${norms}${out_ln ? ', LayerNorm before the readout' : ''}.`;
}
