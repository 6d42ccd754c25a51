package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Optional;

/**
 * What happened to one record.
 *
 * @param type {@code config_created}, {@code config_updated}, {@code config_deleted}, {@code config_unmatched} (it no longer
 *     matches the filter), {@code definition_created}, {@code definition_updated} or {@code definition_deleted}
 * @param definition the key of the definition
 * @param key the key of the config; null if the change is about the definition
 * @param config the config, if there is one after the change
 * @param previous the data before the change, if the watch requested it
 * @param record the members of the change
 * @param problem why this client can't read the record, or null; then there is no config
 */
public record Change(String type, String definition, String key, Config config, JsonNode previous, JsonNode record,
        String problem) {

    /** The data of the config, or null if there is none after the change. */
    public JsonNode data() {
        return config == null ? null : config.data();
    }

    /** The id of the change request whose candidate it is. */
    public Optional<String> variant() {
        return config == null ? Optional.empty() : config.variant();
    }

    static Change of(JsonNode given, long revision, String node) {
        JsonNode record = Json.frozen(given);
        String type = record.path("type").asText();
        String definition = record.path("config_definition_key").asText();
        String key = record.path("config_key").asText(null);
        JsonNode previous = record.path("prev").isContainerNode() ? record.get("prev") : null;
        boolean hasConfig = type.equals("config_created") || type.equals("config_updated");
        try {
            Config config = hasConfig ? Config.of(definition, record, null, revision, null, List.of()) : null;
            return new Change(type, definition, key, config == null ? null : from(config, node), previous, record, null);
        } catch (RuntimeException error) {
            // Whatever is wrong with this record, the others of the event can be read.
            return new Change(type, definition, key, null, previous, record, String.valueOf(error.getMessage()));
        }
    }

    private static Config from(Config config, String node) {
        return new Config(config.definition(), config.key(), config.data(), config.revision(), config.createdAt(),
                config.modifiedAt(), node, 0, config.redacted(), config.change(), config.warnings());
    }
}
