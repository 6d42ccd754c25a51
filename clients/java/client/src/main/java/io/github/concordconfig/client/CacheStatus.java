package io.github.concordconfig.client;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/**
 * What a cache has.
 *
 * @param source where its values are from
 * @param age the upper bound of their age
 * @param revision the revision up to which it has every change
 * @param configs how many configs it has
 * @param node the URL of the node that responded last, or null
 * @param error why it is not being confirmed, or why the file could not be read or written
 * @param unreadable configs that this client can't read, with the reason. They are as they were before
 */
public record CacheStatus(Source source, Duration age, long revision, int configs, String node, Optional<String> error,
        Map<ConfigName, String> unreadable) {}
