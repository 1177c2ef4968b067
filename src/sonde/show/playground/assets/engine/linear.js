// Matrix products.  Matrices are Float32Arrays, row after row; sums are kept in double and rounded once.

// out[r, c] = Σ_k a[r, k] b[c, k]  (+ bias[c]): every product of a network is this one, given transposes.
// Two rows by four columns at a time; what is left over, one by one.
function rowDots(a, b, out, rows, columns, inner, bias = null) {
  const [evenRows, wholeColumns] = [rows - (rows % 2), columns - (columns % 4)];
  for (let r = 0; r < evenRows; r += 2) {
    for (let c = 0; c < wholeColumns; c += 4) tile(a, b, out, r, c, columns, inner);
  }
  rest(a, b, out, 0, evenRows, wholeColumns, columns, inner);
  rest(a, b, out, evenRows, rows, 0, columns, inner);
  if (bias === null) return;
  for (let r = 0; r < rows; r += 1) {
    for (let c = 0; c < columns; c += 1) out[r * columns + c] += bias[c];
  }
}

function tile(a, b, out, r, c, columns, inner) {
  const a0 = r * inner;
  const a1 = a0 + inner;
  const b0 = c * inner;
  const b1 = b0 + inner;
  const b2 = b1 + inner;
  const b3 = b2 + inner;
  let s0 = 0;
  let s1 = 0;
  let s2 = 0;
  let s3 = 0;
  let t0 = 0;
  let t1 = 0;
  let t2 = 0;
  let t3 = 0;
  for (let k = 0; k < inner; k += 1) {
    const x = a[a0 + k];
    const y = a[a1 + k];
    const v0 = b[b0 + k];
    const v1 = b[b1 + k];
    const v2 = b[b2 + k];
    const v3 = b[b3 + k];
    s0 += x * v0;
    s1 += x * v1;
    s2 += x * v2;
    s3 += x * v3;
    t0 += y * v0;
    t1 += y * v1;
    t2 += y * v2;
    t3 += y * v3;
  }
  const above = r * columns + c;
  const below = above + columns;
  out[above] = s0;
  out[above + 1] = s1;
  out[above + 2] = s2;
  out[above + 3] = s3;
  out[below] = t0;
  out[below + 1] = t1;
  out[below + 2] = t2;
  out[below + 3] = t3;
}

function rest(a, b, out, firstRow, lastRow, firstColumn, columns, inner) {
  for (let r = firstRow; r < lastRow; r += 1) {
    for (let c = firstColumn; c < columns; c += 1) {
      let sum = 0;
      for (let k = 0; k < inner; k += 1) sum += a[r * inner + k] * b[c * inner + k];
      out[r * columns + c] = sum;
    }
  }
}

function transpose(a, out, rows, columns) {
  for (let r = 0; r < rows; r += 1) {
    for (let c = 0; c < columns; c += 1) out[c * rows + r] = a[r * columns + c];
  }
  return out;
}

// One array for every purpose, kind and size, so that a step asks for no memory.
const lent = new Map([[Float32Array, new Map()], [Float64Array, new Map()]]);
function scratch(purpose, size, kind = Float32Array) {
  const arrays = lent.get(kind);
  const held = arrays.get(purpose);
  if (held && held.length >= size) return held;
  const made = new kind(size);
  arrays.set(purpose, made);
  return made;
}

// y = x Wᵀ + b, as in PyTorch: W is outputs × inputs.
function linear(x, weight, bias, y, samples, inputs, outputs) {
  rowDots(x, weight, y, samples, outputs, inputs, bias);
}

// What the inputs of a linear layer receive, sent back through `weight`: dx = dy W.
function linearInput(dy, weight, dx, samples, inputs, outputs) {
  const turned = transpose(weight, scratch('weight', inputs * outputs), outputs, inputs);
  rowDots(dy, turned, dx, samples, inputs, outputs);
}

// What the parameters of a linear layer receive, averaged over samples: dyᵀ x / N and Σ dy / N.
function linearParameters(x, dy, weight, bias, samples, inputs, outputs) {
  const x_iN = transpose(x, scratch('inputs', samples * inputs), samples, inputs);
  const dy_oN = transpose(dy, scratch('outputs', samples * outputs), samples, outputs);
  for (let i = 0; i < samples * outputs; i += 1) dy_oN[i] /= samples;
  rowDots(dy_oN, x_iN, weight, outputs, inputs, samples);
  if (bias === null) return;
  for (let o = 0; o < outputs; o += 1) {
    let sum = 0;
    for (let n = 0; n < samples; n += 1) sum += dy_oN[o * samples + n];
    bias[o] = sum;
  }
}
