package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;

/**
 * A change in a history.
 *
 * @param revision its revision
 * @param operation {@code create}, {@code update} or {@code delete}
 * @param at when it was made
 * @param by the id of the key that made it
 * @param reason why it was made, or null
 * @param data the content that it left, of a definition its {@code indexes} and {@code json_schema}; null for a deletion
 */
public record Past(long revision, String operation, Instant at, String by, String reason, JsonNode data) {
    static Past of(JsonNode record) {
        JsonNode data = record.path("data");
        return new Past(record.path("revision").asLong(), record.path("operation").asText(), Config.time(record, "at"),
                record.path("by").asText(), record.path("reason").asText(null),
                data.isContainerNode() ? Json.frozen(data) : null);
    }
}
