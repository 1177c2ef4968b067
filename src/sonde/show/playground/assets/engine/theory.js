// What random weights alone do: wide networks of single ReLU layers without LayerNorm, at initialisation.
//
// W ~ N(0, 2α²/d), h_{l+1} = s·h_l + ReLU(W h_l); s = 0 is the plain network, s = 1 the residual one.
// Up, with q_l the mean of h_l² over units and m_l the mean of h_l:
//   q_{l+1} = (s² + α²) q_l + 2sα m_l √(q_l/π),  m_{l+1} = s m_l + α √(q_l/π).
// Back, a gradient that is independent of the stream has E‖g_l‖² = (s² + α²) E‖g_{l+1}‖².  What of it lies along the
// stream or along its mean grows faster: in g = A h + n, with n independent of h and of mean μ and mean square ν,
//   A' = (s² + (s m b + α² q)/q) A + (b/q) μ,  μ' = s(μ + b A),  b = α √(q/π),
//   ν' = s²(ν + 2bAμ + α² q A²) + 2α² D,  D = ½(s² q A² + 2 s m Aμ + ν) + 2b(s m A² + Aμ) + α² q A².
// A, μ and ν of g_L are measured, as means over samples of A², Aμ, μ² and ν.

// From q and m of h_0, the root mean square `top` of ‖g_L‖, and its parts { aa, am, mm, nn }.
function theoryOf(settings, { q, m, top, parts }) {
  const reason = whyNoTheory(settings);
  if (reason) return { reason };
  const alpha = alphaOf(settings);
  const s = skipOf(settings);
  const up = [{ q, m }];
  for (let l = 0; l < settings.depth; l += 1) {
    const branch = alpha * Math.sqrt(q / Math.PI);
    [q, m] = [(s * s + alpha * alpha) * q + 2 * s * m * branch, s * m + branch];
    up.push({ q, m });
  }
  const squares = backward(up, parts, s, alpha);
  const last = squares.at(-1);
  return { signal: up.map((one) => Math.sqrt(one.q)), gradient: squares.map((square) => top * Math.sqrt(square / last)) };
}

// Mean squares of g_0 … g_L over units.
function backward(up, { aa, am, mm, nn }, s, alpha) {
  const square = ({ q, m }) => aa * q + 2 * am * m + nn;
  const found = [square(up.at(-1))];
  for (const at of up.slice(0, -1).reverse()) {
    const { q, m } = at;
    const b = alpha * Math.sqrt(q / Math.PI);
    const branch = alpha * alpha * q;
    const atZ = (s * s * q * aa + 2 * s * m * am + nn) / 2 + 2 * b * (s * m * aa + am) + branch * aa;
    nn = s * s * (nn + 2 * b * am + branch * aa) + 2 * alpha * alpha * atZ;
    const own = q > 0 ? s * s + (s * m * b + branch) / q : 0;
    const ofMean = q > 0 ? b / q : 0;
    [aa, am, mm] = [
      own * own * aa + 2 * own * ofMean * am + ofMean * ofMean * mm,
      s * (own * b * aa + (own + ofMean * b) * am + ofMean * mm),
      s * s * (mm + 2 * b * am + b * b * aa),
    ];
    found.unshift(square(at));
  }
  return found;
}

function whyNoTheory(settings) {
  if (settings.block !== 'one') return 'no theory line: it is known for blocks of one matrix';
  if (settings.activation !== 'relu') return 'no theory line: it is known for ReLU';
  if (settings.norm !== 'none') return 'no theory line: it is known for networks without LayerNorm';
  return null;
}
