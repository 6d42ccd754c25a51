package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;

/**
 * A deleted definition that is kept, so that its deletion can be undone.
 *
 * @param key its key
 * @param revision the revision that deleted it
 * @param at when it was deleted
 * @param configs how many configs return with it
 * @param contentBytes the bytes of their keys and data
 */
public record DeletedDefinition(String key, long revision, Instant at, long configs, long contentBytes) {
    static DeletedDefinition of(JsonNode data) {
        return new DeletedDefinition(Config.text(data, "config_definition_key"), data.path("deleted_revision").asLong(),
                Config.time(data, "deleted_at"), data.path("configs").asLong(), data.path("bytes").asLong());
    }
}
