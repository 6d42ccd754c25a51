package io.github.concordconfig.client;

/** Where a value of a cache is from. */
public enum Source {
    /** Confirmed by the cluster a moment ago, and nothing has failed since. */
    LIVE,
    /** From memory, while no node confirms it. */
    CACHE,
    /** From the last-known-good file: no node has responded since the start. */
    FILE,
    /** The default of the caller or of the cache. */
    DEFAULT,
    /** The cache has nothing yet. */
    NONE
}
