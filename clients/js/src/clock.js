// How long ago something was, and pauses.

/**
 * A moment by both clocks. The monotonic one may stand still while the machine is suspended, the wall clock may be set
 * back: the longer of the two times is the one that nothing is called too young by.
 */
export class Moment {
  constructor(monotonic = performance.now(), wall = Date.now()) {
    this.monotonic = monotonic;
    this.wall = wall;
  }

  /**
   * A moment of an earlier run. One in the future says that the clock was set back: how long ago it was is not known.
   * @param {number} wall
   */
  static atWall(wall) {
    const age = Date.now() - wall;
    return age < 0 ? new Moment(-Infinity, -Infinity) : new Moment(performance.now() - age, wall);
  }

  /** Milliseconds since then. */
  ageMs() {
    return Math.max(performance.now() - this.monotonic, Date.now() - this.wall, 0);
  }

  /** @param {Moment} other */
  isAfter(other) { return this.monotonic > other.monotonic; }
}

/**
 * Waits; rejects with the reason of the signal when that comes first.
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
