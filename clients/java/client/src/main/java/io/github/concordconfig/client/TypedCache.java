package io.github.concordconfig.client;

import java.lang.System.Logger.Level;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Function;

/**
 * The configs of one definition of a cache as instances of a type. An instance is made once for each revision.
 *
 * <p>Data that do not fit the type never replace an instance: the last one stays, the log has one warning, and
 * {@link #explain} gives the reason.
 */
public final class TypedCache<T> {
    /**
     * What was made of a config.
     *
     * @param seen the newest version
     * @param instance the last instance, or null if no version fitted
     * @param from the version that the instance was made of
     * @param invalid why the newest version does not fit, or null
     */
    record Made<T>(Config seen, T instance, Config from, ModelException invalid, Look look) {}

    /** Whether the program has read a config. The versions of a config share it. */
    static final class Look {
        private volatile boolean hasRead;

        boolean hasRead() {
            return hasRead;
        }
    }

    private final Cache cache;
    private final String definition;
    private final String typeName;
    private final Function<Config, T> make;

    TypedCache(Cache cache, String definition, String typeName, Function<Config, T> make) {
        this.cache = cache;
        this.definition = definition;
        this.typeName = typeName;
        this.make = make;
    }

    String definition() {
        return definition;
    }

    String typeName() {
        return typeName;
    }

    /**
     * An instance.
     *
     * @throws NotCachedException if there is no such config
     * @throws ModelException if its data do not fit the type, and those before did not either
     */
    public T get(String key) {
        Cache.Replica now = cache.replica();
        Made<T> made = made(now, key);
        if (made == null) {
            // A default, or the reason why there is none.
            return make(SavedRecords.config(cache.get(now, definition, key, null)));
        }
        made.look.hasRead = true;
        if (made.instance == null) {
            throw made.invalid;
        }
        return made.instance;
    }

    /** An instance, or the default if there is no such config, or none whose data ever fitted. */
    public T get(String key, T defaultInstance) {
        try {
            return get(key);
        } catch (NotCachedException | ModelException error) {
            return defaultInstance;
        }
    }

    /** The value of {@link #get} with where it is from, and the reason if newer data do not fit. */
    public CacheValue explain(String key) {
        Cache.Replica now = cache.replica();
        CacheValue value = cache.get(now, definition, key, null);
        Made<T> made = made(now, key);
        if (made == null || made.invalid == null) {
            return value;
        }
        made.look.hasRead = true;
        CacheValue kept = made.instance == null
                ? value : CacheValue.of(made.from, value.source(), value.age(), value.stateRevision());
        return kept.with(made.invalid);
    }

    /** All instances, by key. Configs whose data never fitted are left out. */
    public Map<String, T> all() {
        Map<String, T> found = new HashMap<>();
        for (String key : keys()) {
            try {
                found.put(key, get(key));
            } catch (NotCachedException | ModelException error) {
                // It is gone, or never fitted.
                continue;
            }
        }
        return found;
    }

    /** The keys of the configs. */
    public Set<String> keys() {
        Set<String> keys = new TreeSet<>();
        cache.snapshot().keySet().stream().filter(name -> name.definition().equals(definition))
                .forEach(name -> keys.add(name.key()));
        return keys;
    }

    @SuppressWarnings("unchecked")
    Made<T> made(Cache.Replica now, String key) {
        Map<String, Made<?>> view = now.views().get(this);
        return view == null ? null : (Made<T>) view.get(key);
    }

    /** What is made of a new version of a config. */
    @SuppressWarnings("unchecked")
    Made<T> made(Made<?> given, Config config) {
        Made<T> last = (Made<T>) given;
        if (last != null && Cache.isSame(last.seen, config)) {
            return last;
        }
        Look look = last == null ? new Look() : last.look;
        try {
            return new Made<>(config, make(config), config, null, look);
        } catch (ModelException error) {
            boolean hasInstance = last != null && last.instance != null;
            String places = error.paths().isEmpty() ? "some place" : String.join(", ", error.paths());
            // Neither data nor the text of the error, which may quote them.
            Cache.LOG.log(Level.WARNING, "the config " + config.name() + ", " + version(config) + ", does not fit "
                    + typeName + " at " + (places.isEmpty() ? "/" : places) + "; "
                    + (hasInstance ? version(last.from) + " stays" : "there is no version that fits"));
            return new Made<>(config, hasInstance ? last.instance : null, hasInstance ? last.from : null, error, look);
        }
    }

    private T make(Config config) {
        try {
            return make.apply(config);
        } catch (ModelException | OutOfMemoryError error) {
            throw error;
        } catch (Throwable error) {
            // A function of the program may throw anything.
            throw new ModelException(typeName + ": " + error.getClass().getName(), List.of(), error);
        }
    }

    private static String version(Config config) {
        return config.change() == null ? "revision " + config.revision() : "candidate of " + config.change();
    }

    /** The configs whose newest version does not fit. */
    List<Made<?>> invalid(Cache.Replica now) {
        Map<String, Made<?>> view = now.views().getOrDefault(this, Map.of());
        return view.values().stream().filter(each -> each.invalid() != null).toList();
    }
}
