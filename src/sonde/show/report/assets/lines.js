// From readings to lines: what is drawn, what stays a gap, and what a reader is told at each point.

const SOLID = 'none';
const NETWORK_DASHES = [SOLID, '8 4', '2 3', '8 3 2 3', '14 4'];
const CONTROLS = {
  '/null': { name: 'chance (null)', dash: '1.5 3' },
  '/bp': { name: 'BP’s own gradient (ceiling)', dash: '6 4' },
};

// Colour tells rules apart, or networks where there is one rule; dashes tell what colour does not.  Of several settings
// of a rule, which have one colour, the second and later ones have another symbol and, of one network, another dash.
function lookOf({ network, rule }) {
  const { networks, rules } = family();
  const key = rules.length > 1 ? rules[rule].style : networks[network].style;
  const style = data.styles[key];
  const { turn } = rules[rule];
  const symbols = Object.keys(SYMBOLS);
  const own = turn ? NETWORK_DASHES[turn % NETWORK_DASHES.length] : style?.dash || SOLID;
  return {
    colour: style ? `var(--colour-${key})` : 'var(--faint)',
    symbol: symbols[(symbols.indexOf(style ? style.symbol : 'circle') + turn) % symbols.length],
    dash: networks.length > 1 ? NETWORK_DASHES[network % NETWORK_DASHES.length] : own,
  };
}

function nameOf(run) {
  const { networks, rules } = family();
  return `${shownOf('network').length > 1 ? `${networks[run.network].label}, ` : ''}${rules[run.rule].label}`;
}

// Why a value has no place in the chart, or null where it has one.
function gapOf(read, log) {
  if (read.why !== null) return `undefined: ${read.why}`;
  if (read.value === null) return 'not measured';
  return log && read.value <= 0 ? `${said(read.value)} has no place on a log scale` : null;
}

// One run along `xs`; `at(x)` reads a value, `where(x)` says where it was read.
function lineOf(run, xs, at, where, log) {
  const reads = xs.map(at);
  const gaps = reads.map((read) => gapOf(read, log));
  const state = run.state === 'complete' ? '' : ` (${run.state})`;
  return {
    kind: 'run',
    run,
    facts: { run: run.id, seed: run.seed, rule: family().rules[run.rule].label },
    name: `${nameOf(run)}, seed ${run.seed}`,
    ...lookOf(run),
    width: 1.8,
    xs,
    ys: reads.map((read, i) => (gaps[i] === null ? read.value : null)),
    gaps: gaps.map((gap) => (gap === 'not measured' ? null : gap)),
    tell: (i) => [
      `${nameOf(run)}, seed ${run.seed}`,
      where(xs[i]),
      gaps[i] ?? `${said(reads[i].value)} (n = ${plural(reads[i].n, 'sample')})`,
      run.id + state,
    ],
  };
}

// A control of a run: what chance or BP's gradient scored in the same snapshot.
function controlOf(run, control, line) {
  const { name, dash } = CONTROLS[control];
  const tell = (i) => [name, ...line.tell(i)];
  return { ...line, kind: 'control', control, facts: { control }, name, colour: 'var(--faint)', dash, width: 1.1, symbol: null, gaps: [], tell };
}

// A mean over seeds needs two complete runs or more, each with a seed of its own and defined at that point.
function meansOf(lines, where) {
  const groups = new Map();
  for (const line of lines.filter(({ run }) => run.state === 'complete')) {
    const key = `${line.run.network} ${line.run.rule}`;
    groups.set(key, [...(groups.get(key) || []), line]);
  }
  const replicated = (group) => group.length > 1 && new Set(group.map(({ run }) => run.seed)).size === group.length;
  return [...groups.values()].filter(replicated).map((group) => {
    const { run, xs } = group[0];
    const seeds = group.map((line) => line.run.seed).join(', ');
    const name = `${nameOf(run)}, mean of n = ${group.length} seeds`;
    const ys = xs.map((x, i) => {
      const values = group.map((line) => line.ys[i]);
      return values.includes(null) ? null : values.reduce((a, b) => a + b, 0) / values.length;
    });
    const tell = (i) => [name, where(xs[i]), said(ys[i]), `seeds ${seeds}`];
    return { ...group[0], kind: 'mean', facts: {}, n: group.length, name, width: 3.4, symbol: null, ys, gaps: [], tell };
  });
}
