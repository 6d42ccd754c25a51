package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Optional;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/**
 * The configs of one definition as instances of a type.
 *
 * <p>A write has the whole instance: members that the type does not have are dropped. To change a part, use
 * {@link ConcordClient#patch} or {@link ConcordClient#update}.
 */
public final class Records<T> {
    private final ConcordClient client;
    private final ObjectMapper models;
    private final String definition;
    private final Class<T> type;

    Records(ConcordClient client, ObjectMapper models, String definition, Class<T> type) {
        this.client = client;
        this.models = models;
        this.definition = definition;
        this.type = type;
    }

    /**
     * An instance with its config.
     *
     * @param value the instance
     * @param config what it was made from
     */
    public record Found<T>(T value, Config config) {
        /** The key of the config. */
        public String key() {
            return config.key();
        }

        /** The revision of the config. */
        public long revision() {
            return config.revision();
        }
    }

    /**
     * Reads one.
     *
     * @throws ModelException if its data do not fit the type
     */
    public Found<T> get(String key, ReadOption... options) {
        return found(client.get(definition, key, options));
    }

    /** Reads one, if there is one. */
    public Optional<Found<T>> find(String key, ReadOption... options) {
        return client.find(definition, key, options).map(this::found);
    }

    /** All that a query selects, of one state. */
    public Stream<Found<T>> list(Query query, ReadOption... options) {
        return client.list(definition, query, options).map(this::found);
    }

    /** Creates one. */
    public Written create(String key, T value, WriteOption... options) {
        return client.create(definition, key, value, options);
    }

    /** Replaces one. */
    public Written put(String key, T value, WriteOption... options) {
        return client.put(definition, key, value, options);
    }

    /** Creates or replaces one. */
    public Written upsert(String key, T value, WriteOption... options) {
        return client.upsert(definition, key, value, options);
    }

    /**
     * Reads one, computes another, and writes it if nobody else has written meanwhile; otherwise again.
     *
     * <p>A secret value that the key may not see is null in the instance, and stays as it is if it is null afterwards. A list
     * with such values can't be changed in this way: that is {@link InvalidException} before anything is sent.
     */
    public Written update(String key, UnaryOperator<T> change, WriteOption... options) {
        return client.updated(definition, key, found -> {
            T changed = change.apply(Json.to(type, found.data(), models));
            return Secrets.kept(Json.of(changed, models), found.data(), found.redacted());
        }, options);
    }

    /** Deletes one. */
    public Written delete(String key, WriteOption... options) {
        return client.delete(definition, key, options);
    }

    private Found<T> found(Config config) {
        return new Found<>(Json.to(type, config.data(), models), config);
    }
}
