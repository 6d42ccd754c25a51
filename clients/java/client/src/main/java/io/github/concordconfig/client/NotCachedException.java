package io.github.concordconfig.client;

import java.time.Duration;

/** The cache has no such config. The source and the age tell how certain that is. */
public class NotCachedException extends ConcordException {
    private final transient Source source;
    private final transient Duration age;

    NotCachedException(String message, Source source, Duration age) {
        super(message, null);
        this.source = source;
        this.age = age;
    }

    /** What the cache knows this from. */
    public Source source() {
        return source;
    }

    /** The upper bound of the age, as of a {@link CacheValue}. */
    public Duration age() {
        return age;
    }
}
