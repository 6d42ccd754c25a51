package io.github.concordconfig.client;

import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A clock that also runs while the machine is suspended, pauses and dice. Tests replace it.
 *
 * <p>{@link System#nanoTime} stands still during a suspend, and Java has no other monotonic clock. So a step by which the
 * wall clock is ahead counts as a suspend. A wall clock that is set forward makes ages too high, never too low.
 */
class Clock {
    static final Clock SYSTEM = new Clock();
    static final long SECOND = 1_000_000_000L;
    /** A suspend takes longer, and the wall clock has milliseconds. */
    private static final long STEP = SECOND / 10;

    private record Anchor(long nanos, long wall, long suspended) {}

    private final AtomicReference<Anchor> anchor = new AtomicReference<>(new Anchor(System.nanoTime(), wall(), 0));

    private static long wall() {
        return System.currentTimeMillis() * 1_000_000;
    }

    long nanos() {
        Anchor last = anchor.get();
        long nanos = System.nanoTime();
        long wall = wall();
        long ahead = wall - last.wall - (nanos - last.nanos);
        if (Math.abs(ahead) <= STEP) {
            return nanos + last.suspended;
        }
        // The wall clock may have been behind by a step before.
        long suspended = last.suspended + (ahead > 0 ? ahead + STEP : 0);
        anchor.compareAndSet(last, new Anchor(nanos, wall, suspended));
        return nanos + anchor.get().suspended;
    }

    /** A number from 0 to 1. */
    double dice() {
        return ThreadLocalRandom.current().nextDouble();
    }

    /** Waits, unless the scope is closed or the thread interrupted before. */
    void pause(long nanos, Scope scope) {
        scope.pause(nanos);
    }

    static long nanos(double seconds) {
        return (long) (seconds * SECOND);
    }
}
