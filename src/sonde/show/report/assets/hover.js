// What stands at a point: shown under the pointer, and with the arrow keys when the chart has the focus.

const REACH = 36; // pixels

function placeOf(chart, line, i) {
  return chart.at.points[line][i] || chart.at.marks[line][i];
}

function nearest(chart, x, y) {
  let best = null;
  let reach = REACH ** 2;
  chart.picture.lines.forEach((line, j) => {
    for (let i = 0; i < line.xs.length; i += 1) {
      const place = placeOf(chart, j, i);
      const distance = place ? (place.x - x) ** 2 + (place.y - y) ** 2 : Infinity;
      if (distance < reach) {
        reach = distance;
        best = { line: j, i };
      }
    }
  });
  return best;
}

function showTip(chart, at) {
  chart.tipped = at;
  chart.tip.hidden = !at;
  const ring = chart.plot.querySelector('.focus');
  ring.setAttribute('visibility', at ? 'visible' : 'hidden');
  chart.plot.classList.toggle('tipped', Boolean(at));
  chart.plot.querySelectorAll('.line').forEach((group, j) => group.classList.toggle('near', j === at?.line));
  if (!at) return;
  const { x, y } = placeOf(chart, at.line, at.i);
  ring.setAttribute('cx', x);
  ring.setAttribute('cy', y);
  const [head, ...rest] = chart.picture.lines[at.line].tell(at.i);
  chart.tip.replaceChildren(element('strong', {}, head), ...rest.map((text) => element('span', {}, text)));
  const scale = chart.plot.clientWidth / chart.at.width;
  const room = chart.plot.clientWidth - chart.tip.offsetWidth;
  chart.tip.style.left = `${Math.max(0, Math.min(x * scale - chart.tip.offsetWidth / 2, room))}px`;
  const above = y * scale - chart.tip.offsetHeight - 14;
  chart.tip.style.top = `${above > -40 ? above : y * scale + 14}px`;
}

// The next point of the line with a value or a mark, or the same place on the next line that has one.
function moved(chart, at, along, across) {
  const { lines } = chart.picture;
  if (across) {
    for (let k = 1; k <= lines.length; k += 1) {
      const line = (at.line + across * k + lines.length * k) % lines.length;
      const i = lines[line].xs.indexOf(lines[at.line].xs[at.i]);
      if (lines[line].kind !== 'control' && i >= 0 && placeOf(chart, line, i)) return { line, i };
    }
    return at;
  }
  for (let i = at.i + along; i >= 0 && i < lines[at.line].xs.length; i += along) {
    if (placeOf(chart, at.line, i)) return { line: at.line, i };
  }
  return at;
}

function firstPoint(chart) {
  for (let line = 0; line < chart.picture.lines.length; line += 1) {
    const xs = chart.picture.lines[line].xs;
    for (let i = xs.length - 1; i >= 0; i -= 1) {
      if (chart.picture.lines[line].kind !== 'control' && placeOf(chart, line, i)) return { line, i };
    }
  }
  return null;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function listen(chart, onChoose) {
  const { plot } = chart;
  const under = (event) => {
    const box = plot.getBoundingClientRect();
    const scale = chart.at.width / plot.clientWidth;
    showTip(chart, nearest(chart, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale));
  };
  plot.addEventListener('pointermove', under);
  plot.addEventListener('pointerdown', under);
  plot.addEventListener('pointerleave', () => showTip(chart, null));
  plot.addEventListener('blur', () => showTip(chart, null));
  const choose = () => chart.tipped && onChoose(chart.picture.lines[chart.tipped.line].xs[chart.tipped.i]);
  plot.addEventListener('click', choose);
  plot.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') showTip(chart, null);
    if (event.key === 'Enter') choose();
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const at = chart.tipped ? moved(chart, chart.tipped, ...ARROWS[event.key]) : firstPoint(chart);
    showTip(chart, at);
    if (at) chart.spoken.textContent = chart.picture.lines[at.line].tell(at.i).join(', ');
  });
}
