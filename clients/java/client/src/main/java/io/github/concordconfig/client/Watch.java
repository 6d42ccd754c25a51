package io.github.concordconfig.client;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * The changes, each once and in order, without an end: across lost connections and killed nodes.
 *
 * <p>{@link #hasNext} waits for the next one. It is for one thread; {@link #close} may be called by any, and then
 * {@link #hasNext} returns false. If the thread is interrupted, {@link UnavailableException} is thrown, and the watch can go
 * on afterwards. If the changes are compacted or the nodes belong to another cluster, a watch with
 * {@link WatchOptions#initial} begins again with a {@link State}, and one without throws {@link ExpiredException}.
 */
public final class Watch implements Iterator<WatchItem>, AutoCloseable {
    private static final long PAUSE_FIRST = Clock.SECOND / 10, PAUSE_MAX = 5 * Clock.SECOND;

    private final WatchOptions options;
    private final Following following;
    private final Scope scope;
    private final Deque<WatchItem> ready = new ArrayDeque<>();
    private boolean isBegun;

    Watch(Calls calls, WatchOptions options) {
        if (options.isInitial && options.from != null) {
            throw new IllegalArgumentException("a watch begins with the current state or with a revision, not with both");
        }
        this.options = options;
        this.following = new Following(calls, options.parameters(), options.hasPrevious);
        this.scope = calls.scope;
        if (options.from != null) {
            following.startAt(options.from);
            isBegun = true;
        }
    }

    @Override
    public boolean hasNext() {
        long pause = PAUSE_FIRST;
        while (ready.isEmpty() && !scope.isClosed()) {
            boolean wasBegun = isBegun;
            try {
                advance();
            } catch (ExpiredException error) {
                if (!options.isInitial || !wasBegun) {
                    throw error;
                }
                isBegun = false;
            } catch (UnavailableException | RateLimitedException error) {
                if (scope.isStopped() && !scope.isClosed()) {
                    throw error;
                }
                // The changes are retained; they come when a node responds.
                following.calls.clock.pause((long) (pause * (0.5 + following.calls.clock.dice() / 2)), scope);
                pause = Math.min(pause * 2, PAUSE_MAX);
            }
        }
        return !scope.isClosed() && !ready.isEmpty();
    }

    private void advance() {
        if (!isBegun) {
            if (options.isInitial) {
                ready.add(following.state().value());
            } else {
                following.startNow();
            }
            isBegun = true;
            return;
        }
        ready.addAll(following.poll(options.waitSeconds));
        if (ready.isEmpty() && options.hasIdleEvents) {
            ready.add(new Event(following.position(), List.of(), null, null, null, null));
        }
    }

    @Override
    public WatchItem next() {
        if (!hasNext()) {
            throw new NoSuchElementException("the watch is closed");
        }
        return ready.remove();
    }

    /** The same as a stream. */
    public Stream<WatchItem> stream() {
        return StreamSupport.stream(Spliterators.spliteratorUnknownSize(this, Spliterator.ORDERED), false).onClose(this::close);
    }

    @Override
    public void close() {
        scope.close();
    }
}
