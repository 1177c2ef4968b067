// What random weights alone do: wide networks of single ReLU layers without LayerNorm, at initialisation.
//
// W ~ N(0, 2α²/d), h_{l+1} = s·h_l + ReLU(W h_l); s = 0 is the plain network, s = 1 the residual one.
// Up, with q_l the mean of h_l² over units and m_l the mean of h_l:
//   q_{l+1} = (s² + α²) q_l + 2sα m_l √(q_l/π),  m_{l+1} = s m_l + α √(q_l/π).
// Back, for a gradient that has nothing to do with the stream:  E‖g_l‖² = (s² + α²) E‖g_{l+1}‖².

// From q and m of h_0 and the root mean square of ‖g_L‖.
function theoryOf(settings, { q, m, top }) {
  const reason = whyNoTheory(settings);
  if (reason) return { reason };
  const alpha = alphaOf(settings);
  const s = skipOf(settings);
  const own = s * s + alpha * alpha;
  const signal = [Math.sqrt(q)];
  const gradient = [top];
  for (let l = 0; l < settings.depth; l += 1) {
    const branch = alpha * Math.sqrt(q / Math.PI);
    [q, m] = [own * q + 2 * s * m * branch, s * m + branch];
    signal.push(Math.sqrt(q));
    gradient.unshift(gradient[0] * Math.sqrt(own));
  }
  return { signal, gradient };
}

function whyNoTheory(settings) {
  if (settings.block !== 'one') return 'no theory line: it is known for blocks of one matrix';
  if (settings.activation !== 'relu') return 'no theory line: it is known for ReLU';
  if (settings.norm !== 'none') return 'no theory line: it is known for networks without LayerNorm';
  return null;
}
