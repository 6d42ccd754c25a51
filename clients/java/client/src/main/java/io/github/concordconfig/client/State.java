package io.github.concordconfig.client;

import java.util.List;
import java.util.Map;

/**
 * Everything that there is at a revision. It replaces what the watch has handed out before.
 *
 * @param revision the revision
 * @param definitions the definitions
 * @param configs the configs
 * @param node the URL of the node that responded
 * @param unreadable configs that this client can't read, with the reason
 */
public record State(long revision, List<Definition> definitions, List<Config> configs, String node,
        Map<ConfigName, String> unreadable) implements WatchItem {}
