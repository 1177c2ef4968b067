// What reaches every layer, on a fixed batch of test samples.  A reading is a number, or null with its reason.

const DIVERGED = 'not a finite number: the network has diverged';

const defined = (value) => (Number.isFinite(value) ? { value } : { value: null, reason: DIVERGED });

// √ of the mean over samples of ‖row‖², or with `each` over units too.
function rootMeanSquare(rows, samples, d, each) {
  let sum = 0;
  for (let i = 0; i < samples * d; i += 1) sum += rows[i] * rows[i];
  return defined(Math.sqrt(sum / (each ? samples * d : samples)));
}

// The same over units of what differs between samples: of h minus its mean over them.
function rootMeanVariance(rows, samples, d) {
  let sum = 0;
  for (let i = 0; i < d; i += 1) {
    let mean = 0;
    for (let n = 0; n < samples; n += 1) mean += rows[n * d + i] / samples;
    for (let n = 0; n < samples; n += 1) sum += (rows[n * d + i] - mean) ** 2;
  }
  return defined(Math.sqrt(sum / (samples * d)));
}

// Of every sample, g = A h + n with n uncorrelated with h over units, and μ the mean of n: means over samples of A², Aμ,
// μ² and of n's mean square.
function alongStream(g, h, samples, d) {
  const parts = { aa: 0, am: 0, mm: 0, nn: 0 };
  for (let n = 0; n < samples; n += 1) {
    const over = (of) => {
      let sum = 0;
      for (let i = n * d; i < (n + 1) * d; i += 1) sum += of(i);
      return sum / d;
    };
    const [gMean, hMean] = [over((i) => g[i]), over((i) => h[i])];
    const variance = over((i) => (h[i] - hMean) ** 2);
    const a = variance > 0 ? over((i) => (g[i] - gMean) * (h[i] - hMean)) / variance : 0;
    const mu = gMean - a * hMean;
    parts.aa += (a * a) / samples;
    parts.am += (a * mu) / samples;
    parts.mm += (mu * mu) / samples;
    parts.nn += over((i) => (g[i] - a * h[i]) ** 2) / samples;
  }
  return parts;
}

// Mean over samples of cos(a, g) in double, without any clamp; samples in which either is zero have none.
function meanCosine(a, g, samples, d) {
  let sum = 0;
  let counted = 0;
  let anyCredit = false;
  let anyGradient = false;
  for (let n = 0; n < samples; n += 1) {
    let dot = 0;
    let aa = 0;
    let gg = 0;
    for (let i = n * d; i < (n + 1) * d; i += 1) {
      dot += a[i] * g[i];
      aa += a[i] * a[i];
      gg += g[i] * g[i];
    }
    if (Number.isNaN(dot)) return { value: null, reason: DIVERGED };
    anyCredit ||= aa > 0;
    anyGradient ||= gg > 0;
    if (aa > 0 && gg > 0) {
      sum += dot / (Math.sqrt(aa) * Math.sqrt(gg));
      counted += 1;
    }
  }
  if (counted) return { ...defined(sum / counted), samples: counted };
  const zero = !anyCredit ? 'credit' : 'gradient';
  if (!anyCredit || !anyGradient) return { value: null, reason: `the ${zero} is zero in every sample` };
  return { value: null, reason: 'credit or gradient is zero in every sample' };
}

// ‖ΔW‖/‖W‖ of the last step, over the weight matrices of the unit that makes h_l.
function updateRatio(network, optimiser, l) {
  const names = network.matricesOf(l);
  if (!names.length) return { value: null, reason: 'h₀ is the input: no weights make it' };
  if (!optimiser.trained.includes(names[0])) return { value: null, reason: 'not trained by this rule' };
  if (!optimiser.steps) return { value: null, reason: 'no step has been taken' };
  const sum = (key) => names.reduce((total, name) => total + optimiser.moved[name][key], 0);
  if (sum('size') === 0) return { value: null, reason: 'the weights are zero' };
  return defined(Math.sqrt(sum('change') / sum('size')));
}
