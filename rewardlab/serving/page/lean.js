// Whether the votes follow the place of a response: the share for A in either order, with 95 % intervals.
const Z = 1.959963984540054;

// Wilson's score interval of hits / number, in 0..1.
export function wilson(hits, number) {
  const share = hits / number, z2 = Z * Z;
  const center = (2 * number * share + z2) / (2 * (number + z2));
  const delta = Z / (2 * (number + z2)) * Math.sqrt(4 * number * share * (1 - share) + z2);
  return [hits === 0 ? 0 : center - delta, hits === number ? 1 : center + delta];
}

// Of the valid votes of one order: how many there are, how many are for A, and the interval of that share; null of none.
export function share(votes, order) {
  const valid = votes.filter(vote => vote.order === order && vote.winner !== null);
  const hits = valid.filter(vote => vote.winner === 0).length;
  return valid.length ? { hits, number: valid.length, interval: wilson(hits, valid.length) } : null;
}

// A sentence where the two intervals are apart; "" where chance explains the difference as well.
export function leanOf(given, swapped) {
  if (!given || !swapped) return "";
  if (given.interval[0] > swapped.interval[1]) return "The place counts: A gets more votes where it is shown first.";
  if (swapped.interval[0] > given.interval[1]) return "The place counts: A gets more votes where it is shown second.";
  return "";
}
