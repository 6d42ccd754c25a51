package io.github.concordconfig.client;

import io.github.concordconfig.client.Requests.Parameter;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * What a watch follows, and where it begins. It is immutable: each method returns another one.
 *
 * <p>Without {@link #from} and {@link #initial}, a watch begins with the next change.
 */
public final class WatchOptions {
    private List<String> definitions;
    private List<String> configs;
    private Query filters = Query.all();
    private String search = "";
    Long from;
    boolean isInitial, hasPrevious, hasIdleEvents;
    int waitSeconds = 30;

    private WatchOptions() {}

    private WatchOptions with(Consumer<WatchOptions> change) {
        WatchOptions made = new WatchOptions();
        made.definitions = definitions;
        made.configs = configs;
        made.filters = filters;
        made.search = search;
        made.from = from;
        made.isInitial = isInitial;
        made.hasPrevious = hasPrevious;
        made.hasIdleEvents = hasIdleEvents;
        made.waitSeconds = waitSeconds;
        change.accept(made);
        return made;
    }

    /** These definitions: keys, or prefixes with {@code *} at the end. All definitions without any. */
    public static WatchOptions of(String... definitions) {
        return new WatchOptions().with(made -> made.definitions = List.of(definitions));
    }

    /** Only these configs. */
    public WatchOptions configs(List<String> keys) {
        return with(made -> made.configs = List.copyOf(keys));
    }

    /** Only the configs that these filters select. */
    public WatchOptions filters(Query filters) {
        return with(made -> made.filters = filters);
    }

    /** Only configs whose keys have this text. */
    public WatchOptions search(String text) {
        return with(made -> made.search = text);
    }

    /** Begin with the changes of this revision. */
    public WatchOptions from(long revision) {
        return with(made -> made.from = revision);
    }

    /** Begin with the current state, and again if the changes after the position are compacted. */
    public WatchOptions initial() {
        return with(made -> made.isInitial = true);
    }

    /** Each change has the data before it. */
    public WatchOptions previous() {
        return with(made -> made.hasPrevious = true);
    }

    /** An event without changes comes at least every so many seconds while nodes respond. */
    public WatchOptions idleEvents(int everySeconds) {
        return with(made -> {
            made.hasIdleEvents = true;
            made.waitSeconds = everySeconds;
        });
    }

    List<Parameter> parameters() {
        return parameters(definitions, configs, filters, search);
    }

    static List<Parameter> parameters(List<String> definitions, List<String> configs, Query filters, String search) {
        List<Parameter> made = new ArrayList<>();
        definitions.forEach(name -> made.add(new Parameter("definition", name)));
        made.addAll(Requests.names("config_key", configs, "configs"));
        made.addAll(filters.filters());
        if (!search.isEmpty()) {
            made.add(new Parameter("search", search));
        }
        return made;
    }
}
