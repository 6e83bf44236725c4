// Seeded randomness: SETTEE_TEST_SEED=… repeats the same choices. The order of concurrent requests still
// varies.

/** The seed of this run. */
export const SEED = Number(process.env.SETTEE_TEST_SEED ?? Date.now() % 2 ** 32);

/** A generator of 32-bit numbers (xorshift with a Weyl sequence). */
export class Random {
  constructor(seed) {
    this.state = (seed ^ 0x9e3779b9) >>> 0 || 1;
    this.weyl = seed >>> 0;
  }

  /** An integer from 0 to `limit` - 1. */
  below(limit) {
    let x = this.state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.state = x >>> 0;
    this.weyl = (this.weyl + 0x6d2b79f5) >>> 0;
    return ((this.state + this.weyl) >>> 0) % limit;
  }

  /** `length` random letters and digits. */
  text(length) {
    let text = '';
    while (text.length < length) text += this.below(2 ** 32).toString(36);
    return text.slice(0, length);
  }
}
