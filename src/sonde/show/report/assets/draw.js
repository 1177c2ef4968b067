// A chart as SVG.  What it shows comes as a picture: { x, y, lines, epoch }, axes and lines in values.

const TOP = 10;
const RIGHT = 12;
const BOTTOM = 40;
const MARKERS_UP_TO = 40; // points on a line
const FOOT = 6; // pixels from the axis to the marks of undefined values
const LANE = 8;
const PAPER = { epochs: [660, 280], profile: [215, 190] }; // width and height when printed
let onPaper = false;

const SYMBOLS = {
  circle: (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0`,
  square: (x, y) => `M${x - 2.7} ${y - 2.7}h5.4v5.4h-5.4z`,
  diamond: (x, y) => `M${x} ${y - 3.7}l3.7 3.7l-3.7 3.7l-3.7 -3.7z`,
  'triangle-up': (x, y) => `M${x} ${y - 3.6}l3.5 6.2h-7z`,
  'triangle-down': (x, y) => `M${x} ${y + 3.6}l3.5 -6.2h-7z`,
  x: (x, y) => `M${x - 2.8} ${y - 2.8}l5.6 5.6m0 -5.6l-5.6 5.6`,
};

const pen = element('canvas').getContext('2d');

// As wide as the widest of them, in pixels.
function widest(texts, weight) {
  pen.font = `${weight} 12px ${getComputedStyle(document.body.querySelector('.plot') || document.body).fontFamily}`;
  return Math.max(0, ...texts.map((text) => pen.measureText(text).width));
}

const round = (pixel) => Math.round(pixel * 10) / 10;

// Places every point on the paper: points[line][i] = { x, y } or null; marks of gaps stand at the foot.
function placed(picture, width, height) {
  const left = 14 + Math.max(24, ...picture.y.ticks.map(({ text }) => 6.6 * text.length)) + (picture.y.label ? 16 : 0);
  const across = (value) => round(left + picture.x.place(value) * (width - left - RIGHT));
  const up = (value) => round(height - BOTTOM - picture.y.place(value) * (height - BOTTOM - TOP));
  const points = picture.lines.map((line) =>
    line.xs.map((x, i) => (line.ys[i] === null ? null : { x: across(x), y: up(line.ys[i]) })));
  const lanes = [...new Set(picture.lines.filter((line) => line.gaps.some(Boolean)).map((line) => line.colour))];
  const marks = picture.lines.map((line) =>
    line.xs.map((x, i) => (line.gaps[i] ? { x: across(x), y: height - BOTTOM - FOOT - LANE * lanes.indexOf(line.colour) } : null)));
  return { left, across, up, points, marks, width, height };
}

function pathOf(points) {
  let path = '';
  points.forEach((point, i) => {
    if (point) path += `${points[i - 1] ? 'L' : 'M'}${point.x} ${point.y}`;
  });
  return path;
}

// Markers on every point where there are few, else only on points that no line reaches.
function markersOf(line, points) {
  const alone = (i) => !points[i - 1] && !points[i + 1];
  const wanted = line.symbol && points.length <= MARKERS_UP_TO;
  return points.map((point, i) => (point && (wanted || alone(i)) ? SYMBOLS[line.symbol || 'circle'](point.x, point.y) : '')).join('');
}

function drawLine(line, points, marks) {
  const group = drawn('g', { class: `line ${line.kind}`, 'data-name': line.name });
  Object.assign(group.dataset, line.facts);
  const look = { 'stroke-width': line.width, 'stroke-dasharray': line.dash, 'stroke-linejoin': 'round' };
  group.append(coloured(drawn('path', { d: pathOf(points), class: 'stroke', ...look }), { stroke: line.colour }));
  const markers = markersOf(line, points);
  if (markers) group.append(coloured(drawn('path', { d: markers, class: 'markers' }), { stroke: line.colour, fill: line.symbol === 'x' ? 'none' : line.colour }));
  const crosses = marks.map((mark) => (mark ? SYMBOLS.x(mark.x, mark.y) : '')).join('');
  if (crosses) group.append(coloured(drawn('path', { d: crosses, class: 'undefined', 'stroke-width': 1.4 }), { stroke: line.colour }));
  return group;
}

function drawAxes({ x, y }, at) {
  const { left, across, up, width, height } = at;
  const floor = height - BOTTOM;
  const group = drawn('g', { class: 'axes' });
  const line = (x1, y1, x2, y2, kind) => group.append(drawn('line', { x1, y1, x2, y2, class: kind }));
  const text = (words, attributes) => group.append(drawn('text', attributes, words));
  for (const tick of y.ticks) {
    const place = up(tick.value);
    line(left, place, width - RIGHT, place, 'rule');
    text(tick.text, { x: left - 8, y: place + 4, 'text-anchor': 'end' });
  }
  for (const tick of x.ticks) {
    const place = across(tick.value);
    line(place, floor, place, floor + 4, 'axis');
    text(tick.text, { x: place, y: floor + 18, 'text-anchor': 'middle' });
  }
  line(left, floor, width - RIGHT, floor, 'axis');
  text(x.label, { x: (left + width - RIGHT) / 2, y: height - 4, 'text-anchor': 'middle', class: 'title' });
  if (y.label) {
    const middle = (TOP + floor) / 2;
    text(y.label, { x: 12, y: middle, 'text-anchor': 'middle', class: 'title', transform: `rotate(-90 12 ${middle})` });
  }
  return group;
}

function drawPicture(chart, picture) {
  const { plot } = chart;
  const [width, height] = onPaper ? PAPER[chart.kind] : [plot.clientWidth || 640, plot.clientHeight || 320];
  const at = placed(picture, width, height);
  const svg = drawn('svg', { viewBox: `0 0 ${at.width} ${at.height}`, 'aria-hidden': 'true' }, drawAxes(picture, at));
  if (picture.epoch !== null) {
    const x = at.across(picture.epoch);
    svg.append(drawn('line', { x1: x, x2: x, y1: TOP, y2: at.height - BOTTOM, class: 'now' }));
  }
  picture.lines.forEach((line, i) => svg.append(drawLine(line, at.points[i], at.marks[i])));
  svg.append(drawn('circle', { class: 'focus', r: 6, visibility: 'hidden' }));
  plot.classList.toggle('faded', Boolean(picture.faded));
  plot.querySelector('svg')?.remove();
  plot.prepend(svg);
  chart.picture = picture;
  chart.at = at;
}
