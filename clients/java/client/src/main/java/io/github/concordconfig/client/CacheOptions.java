package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import io.github.concordconfig.client.Requests.Parameter;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** What a cache holds, and how. */
public final class CacheOptions {
    final List<String> definitions;
    List<String> configs;
    Query filters = Query.all();
    Path file;
    final Map<ConfigName, JsonNode> defaults = new LinkedHashMap<>();
    int pollSeconds = 5;
    Duration fresh = Duration.ofSeconds(15);
    Duration startTimeout = Duration.ofSeconds(10);

    private CacheOptions(List<String> definitions) {
        this.definitions = definitions;
    }

    /** These definitions: keys, or prefixes with {@code *} at the end. All definitions without any. */
    public static CacheOptions of(String... definitions) {
        return new CacheOptions(List.of(definitions));
    }

    /** Only these configs, of a single definition. */
    public CacheOptions configs(List<String> keys) {
        configs = List.copyOf(keys);
        return this;
    }

    /** Only the configs of a single definition that these filters select. It has the proven data, never candidates. */
    public CacheOptions filters(Query filters) {
        this.filters = filters;
        return this;
    }

    /** The last-known-good file: what the cache had last, for a start without nodes. */
    public CacheOptions file(Path file) {
        this.file = file;
        return this;
    }

    /** Data that the cache has while no node has responded and there is no file. */
    public CacheOptions defaultData(String definition, String key, Object data) {
        defaults.put(new ConfigName(definition, key), Json.frozen(Json.of(data, Json.MODELS)));
        return this;
    }

    /** How often the cluster confirms the replica; 5 seconds by default. */
    public CacheOptions pollSeconds(int seconds) {
        pollSeconds = seconds;
        return this;
    }

    /** Up to which age values are {@link Source#LIVE}; 15 seconds by default. */
    public CacheOptions fresh(Duration age) {
        fresh = age;
        return this;
    }

    /** How long the start waits for a node; 10 seconds by default. */
    public CacheOptions startTimeout(Duration timeout) {
        startTimeout = timeout;
        return this;
    }

    List<Parameter> parameters() {
        return WatchOptions.parameters(definitions, configs, filters, "");
    }
}
