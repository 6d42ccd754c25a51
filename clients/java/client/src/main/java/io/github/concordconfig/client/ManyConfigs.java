package io.github.concordconfig.client;

import java.util.Map;

/**
 * Configs of one revision.
 *
 * @param revision the revision
 * @param found the configs that there are
 * @param missing why the others are not there: {@code absent} or {@code forbidden}
 */
public record ManyConfigs(long revision, Map<ConfigName, Config> found, Map<ConfigName, String> missing) {}
