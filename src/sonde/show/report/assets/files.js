// A chart as a file: SVG and PNG as it is seen, and its values as CSV.  All inside the page.

const LOOKS = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linejoin', 'opacity', 'paint-order', 'font-weight', 'font-family', 'font-size', 'visibility'];

function save(name, blob) {
  const link = element('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const fileName = (chart, ending) => `${chart.box.id}-${chart.metric.key.replaceAll(/[^A-Za-z0-9_.]+/g, '-')}.${ending}`;

// A picture that needs no CSS: looks written at every shape, a ground of the page's colour, a title and a caption.
function svgText(chart) {
  const seen = chart.plot.querySelector('svg');
  const copy = seen.cloneNode(true);
  const shapes = [seen, ...seen.querySelectorAll('*')];
  [copy, ...copy.querySelectorAll('*')].forEach((shape, i) => {
    const look = getComputedStyle(shapes[i]);
    for (const name of LOOKS) shape.setAttribute(name, look.getPropertyValue(name));
    shape.removeAttribute('style');
  });
  copy.querySelector('.focus')?.remove();
  const [, , width, height] = seen.getAttribute('viewBox').split(' ');
  for (const [key, value] of Object.entries({ width, height, 'aria-hidden': 'false' })) copy.setAttribute(key, value);
  const ground = drawn('rect', { width: '100%', height: '100%', fill: getComputedStyle(document.body).backgroundColor });
  copy.prepend(drawn('title', {}, chart.made.title), drawn('desc', {}, chart.made.caption), ground);
  return new XMLSerializer().serializeToString(copy);
}

function saveSvg(chart) {
  save(fileName(chart, 'svg'), new Blob([svgText(chart)], { type: 'image/svg+xml' }));
}

function savePng(chart) {
  const image = new Image();
  image.addEventListener('load', () => {
    const canvas = element('canvas', { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(fileName(chart, 'png'), blob), 'image/png');
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(chart))}`;
}

// Text in quotes; a name that a spreadsheet would take for a formula gets an apostrophe before it.
function csvCell(value) {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return String(value);
  const text = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}

// One line per value; where there is none, why.
function csvText(chart) {
  const { lines, head, places } = chart.made;
  const rows = lines.flatMap((line) => line.xs.map((x, i) => [line.run?.id, line.name, places ? places[i] : x, line.ys[i], line.gaps[i]]));
  const kept = rows.filter(([, , , value, why]) => value !== null || why);
  const columns = ['run', 'line', head, chart.metric.key, 'undefined because'];
  return [columns, ...kept].map((row) => row.map(csvCell).join(',')).join('\r\n') + '\r\n';
}

function saveCsv(chart) {
  save(fileName(chart, 'csv'), new Blob([csvText(chart)], { type: 'text/csv;charset=utf-8' }));
}

const FILES = { svg: saveSvg, png: savePng, csv: saveCsv };
