package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Optional;

/**
 * A value of a cache, and where it is from.
 *
 * @param definition the key of its definition
 * @param key its key
 * @param data the data; they can't be changed, {@link JsonNode#deepCopy} makes a copy that can
 * @param source where it is from
 * @param age an upper bound: every write that was acknowledged longer ago is in it. {@link #AGE_UNKNOWN} if nothing is known
 * @param revision the revision of the config; 0 of a default, and of a candidate, which has none
 * @param stateRevision the revision up to which the replica has every change
 * @param node the URL of the node that it came from, or null
 * @param modifiedAt when it was changed last, or null
 * @param redacted the JSON pointers of secret values that the key may not see; they are null in the data
 * @param variant the id of the change request whose candidate it is; empty for what is proven
 * @param invalid of {@link TypedCache#explain}: why newer data do not fit the type. The other members are those of the last
 *     instance then
 */
public record CacheValue(String definition, String key, JsonNode data, Source source, Duration age, long revision,
        long stateRevision, String node, Instant modifiedAt, List<String> redacted, Optional<String> variant,
        Optional<ModelException> invalid) {

    /** The age if nothing is known of it. */
    public static final Duration AGE_UNKNOWN = Duration.ofSeconds(Long.MAX_VALUE);

    /** Whether the cluster has confirmed it a moment ago. */
    public boolean isFresh() {
        return source == Source.LIVE;
    }

    /**
     * The data as an instance of a type.
     *
     * @throws ModelException if they do not fit
     */
    public <T> T to(Class<T> type) {
        return Json.to(type, data, Json.MODELS);
    }

    static CacheValue of(Config config, Source source, Duration age, long stateRevision) {
        return new CacheValue(config.definition(), config.key(), config.data(), source, age, config.revision(), stateRevision,
                config.node(), config.modifiedAt(), config.redacted(), config.variant(), Optional.empty());
    }

    static CacheValue of(ConfigName name, JsonNode data, Duration age, long stateRevision, String node) {
        return new CacheValue(name.definition(), name.key(), data, Source.DEFAULT, age, 0, stateRevision, node, null,
                List.of(), Optional.empty(), Optional.empty());
    }

    CacheValue with(ModelException invalid) {
        return new CacheValue(definition, key, data, source, age, revision, stateRevision, node, modifiedAt, redacted,
                variant, Optional.of(invalid));
    }
}
