package io.github.concordconfig.spring;

import io.github.concordconfig.client.Cache;
import io.github.concordconfig.client.CacheValue;
import io.github.concordconfig.client.ConcordClient;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.springframework.core.env.EnumerablePropertySource;

/** The data of the bound configs as properties. They are replaced as a whole when a config changes. */
final class ConcordPropertySource extends EnumerablePropertySource<Cache> {
    static final String NAME = "concord";

    private final ConcordClient client;
    private final List<BoundConfig> bound = new ArrayList<>();
    private volatile Map<String, Object> properties = Map.of();

    ConcordPropertySource(ConcordClient client, Cache cache, Map<String, String> bind) {
        super(NAME, cache);
        this.client = client;
        Map<String, Object> made = new LinkedHashMap<>();
        bind.forEach((prefix, name) -> {
            BoundConfig each = BoundConfig.of(prefix, name);
            for (BoundConfig other : bound) {
                if (ConcordRefresher.isUnder(prefix, other.prefix())) {
                    throw new IllegalArgumentException("concord.bind." + prefix + " and concord.bind." + other.prefix()
                            + " have the same properties: a prefix can't be below another one");
                }
            }
            bound.add(each);
            // A config that is created later is bound then.
            cache.find(each.definition(), each.key()).map(CacheValue::data)
                    .ifPresent(data -> made.putAll(each.properties(data)));
        });
        properties = made;
    }

    ConcordClient client() {
        return client;
    }

    List<BoundConfig> bound() {
        return bound;
    }

    Map<String, Object> properties() {
        return properties;
    }

    /** The properties with others for a config. */
    Map<String, Object> with(BoundConfig config, Map<String, Object> others) {
        Map<String, Object> made = new LinkedHashMap<>(properties);
        made.keySet().removeIf(name -> name.equals(config.prefix()) || name.startsWith(config.prefix() + ".")
                || name.startsWith(config.prefix() + "["));
        made.putAll(others);
        return made;
    }

    void replace(Map<String, Object> made) {
        properties = made;
    }

    @Override
    public String[] getPropertyNames() {
        return properties.keySet().toArray(new String[0]);
    }

    @Override
    public Object getProperty(String name) {
        return properties.get(name);
    }
}
