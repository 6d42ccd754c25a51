package io.github.concordconfig.client;

import java.io.IOException;
import java.nio.channels.Channel;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * What ends together: a client, or one of its watches or caches.
 *
 * <p><b>Invariant:</b> after {@link #close}, no connection of the scope is open and no pause lasts.
 */
final class Scope implements AutoCloseable {
    private final Scope parent;
    private final Set<AutoCloseable> open = new HashSet<>();
    private volatile boolean isClosed;

    Scope() {
        this(null);
    }

    private Scope(Scope parent) {
        this.parent = parent;
    }

    Scope child() {
        Scope child = new Scope(this);
        if (!attach(child)) {
            throw new IllegalStateException("the client is closed");
        }
        return child;
    }

    /** Whether the scope is still open; it then closes the object with itself. */
    synchronized boolean attach(AutoCloseable object) {
        return !isClosed && open.add(object);
    }

    synchronized void detach(AutoCloseable object) {
        open.remove(object);
    }

    boolean isClosed() {
        return isClosed;
    }

    /** Whether the current thread is to end what it does. */
    boolean isStopped() {
        return isClosed || Thread.currentThread().isInterrupted();
    }

    synchronized void pause(long nanos) {
        long end = System.nanoTime() + nanos;
        try {
            for (long left = nanos; left > 0 && !isClosed; left = end - System.nanoTime()) {
                TimeUnit.NANOSECONDS.timedWait(this, left);
            }
        } catch (InterruptedException error) {
            // Whoever paused sees the flag.
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        Set<AutoCloseable> closing;
        synchronized (this) {
            isClosed = true;
            closing = new HashSet<>(open);
            open.clear();
            notifyAll();
        }
        closing.forEach(Scope::end);
        if (parent != null) {
            parent.detach(this);
        }
    }

    static void end(AutoCloseable object) {
        try {
            object.close();
        } catch (Exception error) {
            // A connection that is closed anyway has nothing more to tell.
        }
    }
}
