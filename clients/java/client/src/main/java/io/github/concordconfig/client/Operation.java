package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.List;

/**
 * An operation of a batch, a transaction or a change request. It is immutable: each method returns another one.
 *
 * <pre>{@code client.batch(List.of(create("web", "a", a), patch("web", "b", change).ifMatch(7)))}</pre>
 */
public final class Operation {
    private final JsonNode body;

    private Operation(JsonNode body) {
        this.body = Json.frozen(body);
    }

    private static Operation of(String op, String definition, String key) {
        ObjectNode body = Json.object().put("op", op).put("config_definition_key", definition);
        return new Operation(key == null ? body : body.put("config_key", key));
    }

    private Operation with(String name, JsonNode value) {
        ObjectNode made = body.deepCopy();
        made.set(name, value);
        return new Operation(made);
    }

    /** Creates a definition. */
    public static Operation createDefinition(String key, List<String> indexes) {
        return of("create_definition", key, null).with("indexes", Json.texts(indexes));
    }

    /** Sets all indexed paths of a definition. */
    public static Operation setIndexes(String key, List<String> indexes) {
        return of("set_indexes", key, null).with("indexes", Json.texts(indexes));
    }

    /** Deletes a definition with its configs. */
    public static Operation deleteDefinition(String key) {
        return of("delete_definition", key, null);
    }

    /** Creates a config. */
    public static Operation create(String definition, String key, Object data) {
        return of("create_config", definition, key).with("data", data(data));
    }

    /** Replaces a config. */
    public static Operation put(String definition, String key, Object data) {
        return of("put_config", definition, key).with("data", data(data));
    }

    /** Changes a part of a config: an object is a merge patch, a list a JSON Patch. */
    public static Operation patch(String definition, String key, Object change) {
        return of("patch_config", definition, key).with("patch", Secrets.unmarked(Json.of(change, Json.MODELS)));
    }

    /** Deletes a config. */
    public static Operation delete(String definition, String key) {
        return of("delete_config", definition, key);
    }

    /** Writes the data that a config had at a revision. */
    public static Operation rollback(String definition, String key, long revision) {
        return of("rollback_config", definition, key).with("revision", Json.NODES.numberNode(revision));
    }

    /** Reads a config as it is before the batch. */
    public static Operation get(String definition, String key) {
        return of("get_config", definition, key);
    }

    /** A condition: the config has this revision. */
    public static Operation checkRevision(String definition, String key, long revision) {
        return of("check_config", definition, key).with("revision", Json.NODES.numberNode(revision));
    }

    /** A condition: there is no such config. */
    public static Operation checkAbsent(String definition, String key) {
        return of("check_config", definition, key).with("absent", Json.NODES.booleanNode(true));
    }

    /** A condition: there is such a config. */
    public static Operation checkPresent(String definition, String key) {
        return of("check_config", definition, key).with("absent", Json.NODES.booleanNode(false));
    }

    /** A condition: the config has these data; with {@link #pointer} this value. */
    public static Operation checkEquals(String definition, String key, Object value) {
        return of("check_config", definition, key).with("equals", Secrets.unmarked(Json.of(value, Json.MODELS)));
    }

    /** Only if the record has this revision. */
    public Operation ifMatch(long revision) {
        return with("if_match", Json.NODES.textNode(String.valueOf(revision)));
    }

    /** Of a put: only if there is no such config. */
    public Operation createOnly() {
        return with("if_none_match", Json.NODES.textNode("*"));
    }

    /** Of a put: whether there is such a config or not. */
    public Operation upsert() {
        return with("upsert", Json.NODES.booleanNode(true));
    }

    /** Of the deletion of a definition: only if it has no configs. */
    public Operation restrict() {
        return with("mode", Json.NODES.textNode("restrict"));
    }

    /** Of the creation of a definition: its schema. */
    public Operation schema(JsonNode schema) {
        return with("json_schema", schema);
    }

    /** Of a check: the JSON pointer of a part of the data. */
    public Operation pointer(String pointer) {
        return with("pointer", Json.NODES.textNode(pointer));
    }

    JsonNode body() {
        return body;
    }

    private static JsonNode data(Object value) {
        return Secrets.stored(Json.of(value, Json.MODELS));
    }
}
