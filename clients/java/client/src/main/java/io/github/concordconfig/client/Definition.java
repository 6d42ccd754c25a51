package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * A definition.
 *
 * @param key its key
 * @param indexes the paths of the indexed fields
 * @param jsonSchema the schema of the data, or null
 * @param revision the revision of its last change; 0 if the response does not have it
 * @param createdAt when it was created, or null if the response does not have it
 * @param modifiedAt when it was changed last, or null if the response does not have it
 * @param warnings parts of the request that had no effect
 */
public record Definition(String key, List<String> indexes, JsonNode jsonSchema, long revision, Instant createdAt,
        Instant modifiedAt, List<String> warnings) {

    /** The schema of the data, if there is one. */
    public Optional<JsonNode> schema() {
        return Optional.ofNullable(jsonSchema);
    }

    static Definition of(JsonNode record, long revision, List<String> warnings) {
        JsonNode schema = record.path("json_schema");
        return new Definition(Config.text(record, "config_definition_key"), texts(record.path("indexes")),
                schema.isMissingNode() || schema.isNull() ? null : Json.frozen(schema),
                record.path("revision").asLong(revision), Config.time(record, "created_at"),
                Config.time(record, "modified_at"), warnings);
    }

    static List<String> texts(JsonNode list) {
        List<String> made = new ArrayList<>();
        list.forEach(each -> made.add(each.asText()));
        return List.copyOf(made);
    }
}
