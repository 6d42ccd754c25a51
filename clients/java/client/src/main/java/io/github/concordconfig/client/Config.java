package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * A config as a node responded with it.
 *
 * @param definition the key of its definition
 * @param key its key
 * @param data the data; they can't be changed, {@link JsonNode#deepCopy} makes a copy that can
 * @param revision the revision of its last change, for {@link WriteOption#ifMatch}. 0 in lists across definitions and for
 *     a candidate, which have none: no condition holds with it
 * @param createdAt when it was created, or null if the response does not have it
 * @param modifiedAt when it was changed last, or null if the response does not have it
 * @param node the URL of the node that responded
 * @param stateRevision the revision of the state that the response was made from
 * @param redacted the JSON pointers of secret values that the key may not see; they are null in the data
 * @param change the id of the change request whose candidate it is, or null for what is proven
 * @param warnings parts of the request that had no effect
 */
public record Config(String definition, String key, JsonNode data, long revision, Instant createdAt, Instant modifiedAt,
        String node, long stateRevision, List<String> redacted, String change, List<String> warnings) {

    /** Its name. */
    public ConfigName name() {
        return new ConfigName(definition, key);
    }

    /**
     * The data as an instance of a type.
     *
     * @throws ModelException if they do not fit
     */
    public <T> T to(Class<T> type) {
        return Json.to(type, data, Json.MODELS);
    }

    /** The id of the change request whose candidate it is: what this reader gets before the rollout has ended. */
    public Optional<String> variant() {
        return Optional.ofNullable(change);
    }

    /**
     * A copy of the data to change and write back. A marker keeps each secret value that the key may not see. A marker that
     * was moved is rejected.
     */
    public JsonNode editable() {
        return Secrets.marked(data, redacted);
    }

    static Config of(String definition, JsonNode record, Answer answer, long revision, String variant, List<String> warnings) {
        String change = variant != null ? variant : record.path("variant").path("change_id").asText(null);
        List<String> redacted = new ArrayList<>();
        if (record.path("redacted").isArray()) {
            record.get("redacted").forEach(place -> redacted.add(place.asText()));
        } else if (answer != null && answer.header("x-concord-redacted") != null) {
            Arrays.stream(answer.header("x-concord-redacted").split(",")).map(String::strip)
                    .filter(place -> !place.isEmpty()).forEach(redacted::add);
        }
        return new Config(
                record.path("config_definition_key").asText(definition),
                text(record, "config_key"),
                Json.frozen(member(record, "data")),
                change != null ? 0 : record.path("revision").asLong(revision),
                time(record, "created_at"),
                time(record, "modified_at"),
                answer == null ? null : answer.node(),
                answer == null ? 0 : answer.revision(),
                List.copyOf(redacted), change, warnings);
    }

    /** The config of a response about it alone: the headers have its version. */
    static Config of(String definition, JsonNode record, Answer answer) {
        String variant = Reader.variantOf(answer.header("x-concord-variant"));
        return of(definition, record, answer, answer.etag(), variant, answer.warnings());
    }

    static JsonNode member(JsonNode record, String name) {
        JsonNode found = record.get(name);
        if (found == null) {
            throw new IllegalArgumentException("the record has no member " + name);
        }
        return found;
    }

    static String text(JsonNode record, String name) {
        JsonNode found = member(record, name);
        if (!found.isTextual()) {
            throw new IllegalArgumentException("the member " + name + " of the record is no text");
        }
        return found.textValue();
    }

    static Instant time(JsonNode record, String name) {
        return record.path(name).isTextual() ? Instant.parse(record.get(name).textValue()) : null;
    }
}
