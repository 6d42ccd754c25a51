package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.util.List;

/** The records in the last-known-good file. */
final class SavedRecords {
    private SavedRecords() {}

    static ObjectNode of(Config config) {
        ObjectNode made = Json.object().put("definition", config.definition()).put("key", config.key());
        made.set("data", config.data());
        made.put("revision", config.revision()).put("node", config.node()).put("variant", config.change());
        made.set("redacted", Json.texts(config.redacted()));
        return times(made, config.createdAt(), config.modifiedAt());
    }

    static Config config(JsonNode saved) {
        return new Config(Config.text(saved, "definition"), Config.text(saved, "key"), Json.frozen(Config.member(saved, "data")),
                saved.path("revision").asLong(), Config.time(saved, "created_at"), Config.time(saved, "modified_at"),
                saved.path("node").asText(null), 0, Definition.texts(saved.path("redacted")),
                saved.path("variant").asText(null), List.of());
    }

    /** The config that a default stands for. */
    static Config config(CacheValue value) {
        return new Config(value.definition(), value.key(), value.data(), 0, null, null, null, 0, List.of(), null, List.of());
    }

    static ObjectNode of(Definition definition) {
        ObjectNode made = Json.object().put("key", definition.key()).put("revision", definition.revision());
        made.set("indexes", Json.texts(definition.indexes()));
        made.set("json_schema", definition.jsonSchema());
        return times(made, definition.createdAt(), definition.modifiedAt());
    }

    static Definition definition(JsonNode saved) {
        JsonNode schema = saved.path("json_schema");
        return new Definition(Config.text(saved, "key"), Definition.texts(saved.path("indexes")),
                schema.isNull() ? null : Json.frozen(schema), saved.path("revision").asLong(),
                Config.time(saved, "created_at"), Config.time(saved, "modified_at"), List.of());
    }

    private static ObjectNode times(ObjectNode made, Instant createdAt, Instant modifiedAt) {
        return made.put("created_at", createdAt == null ? null : createdAt.toString())
                .put("modified_at", modifiedAt == null ? null : modifiedAt.toString());
    }
}
