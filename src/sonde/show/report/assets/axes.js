// Axes: ranges with room at both ends, round ticks, and from values to places.

// The ends of all values of the lists that a scale can hold; null where there is none.
function endsOf(lists, log) {
  let low = Infinity;
  let high = -Infinity;
  for (const values of lists) {
    for (const value of values) {
      if (value === null || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low > high ? null : [low, high];
}

// Values → 0…1 along the axis, with room at both ends.
function axisOf(ends, { log = false, room = 0.06, label = '' } = {}) {
  const [low, high] = (ends || (log ? [1, 10] : [0, 1])).map((value) => (log ? Math.log10(value) : value));
  const least = log ? 0.08 : Math.abs(high) * 0.02 || 0.5;
  const pad = high > low ? (high - low) * room : least;
  const [from, to] = [low - pad, high + pad];
  const place = (value) => ((log ? Math.log10(value) : value) - from) / (to - from);
  return { log, label, from, to, place, ticks: log ? logTicks(from, to) : linearTicks(from, to) };
}

function linearTicks(from, to, wanted = 5) {
  const raw = (to - from) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= raw);
  const ticks = [];
  for (let i = Math.ceil(from / step); i * step <= to; i += 1) {
    const value = Number((i * step).toPrecision(12));
    ticks.push({ value, text: shortly(value) });
  }
  return ticks;
}

// Powers of ten, not more than eight of them; over less than two decades also twice and five times.
function logTicks(from, to) {
  const [first, last] = [Math.ceil(from), Math.floor(to)];
  if (last - first >= 1) {
    const every = Math.ceil((last - first + 1) / 8);
    const ticks = [];
    for (let power = last; power >= first; power -= every) ticks.push({ value: 10 ** power, text: powerText(power) });
    return ticks;
  }
  const ticks = [];
  for (let power = Math.floor(from); power <= last + 1; power += 1) {
    for (const times of [1, 2, 5]) ticks.push(times * 10 ** power);
  }
  const inside = ticks.filter((value) => Math.log10(value) >= from && Math.log10(value) <= to);
  if (inside.length > 1) return inside.map((value) => ({ value, text: shortly(value) }));
  return linearTicks(10 ** from, 10 ** to, 3).filter(({ value }) => value > 0);
}

function shortly(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) {
    const [digits, power] = value.toExponential().split('e');
    const front = Number(digits) === 1 ? '' : `${Number(Number(digits).toPrecision(3))}·`;
    return `${front}${powerText(Number(power))}`.replaceAll('-', '−');
  }
  return String(Number(value.toPrecision(6))).replaceAll('-', '−');
}

function powerText(power) {
  if (power === 0) return '1';
  if (power === 1) return '10';
  return `10${[...String(power)].map((sign) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[sign] || '⁻').join('')}`;
}
