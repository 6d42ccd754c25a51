package io.github.concordconfig.client;

import java.util.Optional;

/**
 * What one operation of a batch did.
 *
 * @param op the name of the operation
 * @param definition the key of the definition
 * @param key the key of the config, or null
 * @param isCreated whether it created the record
 * @param config what a {@code get_config} read; empty if there was no config
 */
public record OperationResult(String op, String definition, String key, boolean isCreated, Optional<Config> config) {}
