// Named random streams: each (seed, name) has its own, so that adding one never shifts another.

function randomOf(seed, name) {
  let state = 0x811c9dc5;
  for (const sign of `${seed}/${name}`) state = Math.imul(state ^ sign.codePointAt(0), 0x01000193);

  // 32 well mixed bits from a counter that steps by the golden ratio.
  const bits = () => {
    state = (state + 0x9e3779b9) | 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return (mixed ^ (mixed >>> 15)) >>> 0;
  };
  for (let i = 0; i < 8; i += 1) bits();
  const uniform = () => (bits() + 0.5) / 2 ** 32;
  return {
    uniform, // above 0, below 1
    normal: () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform()),
    below: (count) => Math.floor(uniform() * count),
  };
}

function shuffled(count, random) {
  const order = Int32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i -= 1) {
    const other = random.below(i + 1);
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}
