package io.github.concordconfig.client;

/** What a watch hands out: the changes of a revision, or the whole state. */
public sealed interface WatchItem permits Event, State {
    /** The revision up to which the watch has handed out every change. */
    long revision();
}
