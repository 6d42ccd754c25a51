package io.github.concordconfig.client;

/**
 * The name of a config.
 *
 * @param definition the key of its definition
 * @param key its own key
 */
public record ConfigName(String definition, String key) {
    @Override
    public String toString() {
        return definition + "/" + key;
    }
}
