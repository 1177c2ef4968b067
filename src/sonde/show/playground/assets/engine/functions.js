// Activations, LayerNorm and losses, each with its derivative.

// The normal distribution function to 1e-7, from the density √(2π)·φ(z): Abramowitz and Stegun (1964), 7.1.26.
function normalBelow(z, density) {
  const t = 1 / (1 + 0.3275911 * Math.abs(z) * Math.SQRT1_2);
  const tail = 0.5 * density * t
    * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return z > 0 ? 1 - tail : tail;
}

const INVERSE_ROOT_2_PI = 1 / Math.sqrt(2 * Math.PI);

// a = φ(z); dz = da·φ'(z), in place where da and dz are one array; `gain` keeps the scale of a wide layer at
// initialisation.
const ACTIVATIONS = {
  relu: {
    gain: Math.SQRT2,
    up(z, a, size) {
      for (let i = 0; i < size; i += 1) a[i] = z[i] > 0 ? z[i] : 0;
    },
    back(da, z, a, dz, size) {
      for (let i = 0; i < size; i += 1) dz[i] = z[i] > 0 ? da[i] : 0;
    },
  },
  tanh: {
    gain: 1,
    up(z, a, size) {
      for (let i = 0; i < size; i += 1) a[i] = Math.tanh(z[i]);
    },
    back(da, z, a, dz, size) {
      for (let i = 0; i < size; i += 1) dz[i] = da[i] * (1 - a[i] * a[i]);
    },
  },
  gelu: {
    gain: Math.SQRT2,
    up(z, a, size) {
      for (let i = 0; i < size; i += 1) a[i] = z[i] * normalBelow(z[i], Math.exp(-0.5 * z[i] * z[i]));
    },
    back(da, z, a, dz, size) {
      for (let i = 0; i < size; i += 1) {
        const density = Math.exp(-0.5 * z[i] * z[i]);
        dz[i] = da[i] * (normalBelow(z[i], density) + z[i] * density * INVERSE_ROOT_2_PI);
      }
    },
  },
  linear: {
    gain: 1,
    up(z, a, size) {
      for (let i = 0; i < size; i += 1) a[i] = z[i];
    },
    back(da, z, a, dz, size) {
      for (let i = 0; i < size; i += 1) dz[i] = da[i];
    },
  },
};

const LN_EPSILON = 1e-5;

// y = γ x̂ + β with x̂ = (x − mean)/√(variance + ε), row by row; x̂ and the scale are kept for the way back.
function layerNorm(x, gain, shift, y, unit, scale, samples, d) {
  for (let n = 0; n < samples; n += 1) {
    const row = n * d;
    let mean = 0;
    for (let i = 0; i < d; i += 1) mean += x[row + i];
    mean /= d;
    let variance = 0;
    for (let i = 0; i < d; i += 1) variance += (x[row + i] - mean) ** 2;
    const inverse = 1 / Math.sqrt(variance / d + LN_EPSILON);
    scale[n] = inverse;
    for (let i = 0; i < d; i += 1) {
      const value = (x[row + i] - mean) * inverse;
      unit[row + i] = value;
      y[row + i] = gain[i] * value + shift[i];
    }
  }
}

function layerNormInput(dy, gain, unit, scale, dx, samples, d) {
  for (let n = 0; n < samples; n += 1) {
    const row = n * d;
    let sum = 0;
    let along = 0;
    for (let i = 0; i < d; i += 1) {
      const value = dy[row + i] * gain[i];
      sum += value;
      along += value * unit[row + i];
    }
    for (let i = 0; i < d; i += 1) {
      dx[row + i] = scale[n] * (dy[row + i] * gain[i] - (sum + unit[row + i] * along) / d);
    }
  }
}

function layerNormParameters(dy, unit, gain, shift, samples, d) {
  for (let i = 0; i < d; i += 1) {
    let along = 0;
    let sum = 0;
    for (let n = 0; n < samples; n += 1) {
      along += dy[n * d + i] * unit[n * d + i];
      sum += dy[n * d + i];
    }
    gain[i] = along / samples;
    shift[i] = sum / samples;
  }
}

// Mean loss over samples, and into `error` each sample's own ∂ℓ/∂z.
function meanSquaredError(output, target, error, samples, outputs) {
  let sum = 0;
  for (let i = 0; i < samples * outputs; i += 1) {
    const off = output[i] - target[i];
    sum += off * off;
    error[i] = (2 * off) / outputs;
  }
  return sum / (samples * outputs);
}

function crossEntropy(output, label, error, samples, outputs) {
  let sum = 0;
  for (let n = 0; n < samples; n += 1) {
    const row = n * outputs;
    let top = -Infinity;
    for (let c = 0; c < outputs; c += 1) top = Math.max(top, output[row + c]);
    let total = 0;
    for (let c = 0; c < outputs; c += 1) total += Math.exp(output[row + c] - top);
    for (let c = 0; c < outputs; c += 1) {
      error[row + c] = Math.exp(output[row + c] - top) / total - (c === label[n] ? 1 : 0);
    }
    sum += Math.log(total) + top - output[row + label[n]];
  }
  return sum / samples;
}
