package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.lang.System.Logger.Level;
import java.lang.System.Logger;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;

/**
 * A replica in memory that follows the cluster, and says how old it is. To read it sends no request and takes no lock.
 *
 * <p>It is made of a state and the changes after it. Every few seconds, a linearizable read tells the revision of the
 * cluster. Once the replica has that revision, it is known to have held, when that read was sent, every write that was
 * acknowledged before.
 *
 * <p>A thread {@code concord-cache} keeps it, and another one, {@code concord-reports}, sends its reports.
 *
 * <p><b>Invariants:</b> the age is never less than that of the replica. It does not rest on what a node says while it waits,
 * nor on the wall clock except for what was read from the file. All changes of a revision appear together, and the replica
 * never goes back while its cluster does not.
 */
public final class Cache implements AutoCloseable {
    static final Logger LOG = System.getLogger("io.github.concordconfig.client");
    private static final long PAUSE_FIRST = Clock.SECOND / 10, PAUSE_MAX = 5 * Clock.SECOND;
    /** How often the whole state is read again: the permissions of the key may have changed, which is no change of a config. */
    private static final long RELIST = 300 * Clock.SECOND;
    private static final long SAVE_CHANGED = Clock.SECOND, SAVE_CONFIRMED = 30 * Clock.SECOND;
    private static final long NEVER = Long.MIN_VALUE;

    /**
     * What the cache has. It is replaced as a whole.
     *
     * @param views the instances of each typed cache
     * @param confirmedAt by the clock, or {@link #NEVER}
     * @param savedAt when the content of the file was confirmed, by the wall clock; null without one
     */
    record Replica(Map<ConfigName, Config> configs, Map<String, Definition> definitions,
            Map<TypedCache<?>, Map<String, TypedCache.Made<?>>> views, Map<ConfigName, String> unreadable, long revision,
            String node, long confirmedAt, Instant savedAt, String error, String fileError) {

        boolean isConfirmed() {
            return confirmedAt != NEVER;
        }

        boolean isLoaded() {
            return isConfirmed() || savedAt != null;
        }

        Replica at(long revision, String node) {
            return new Replica(configs, definitions, views, unreadable, revision, node, confirmedAt, savedAt, error, fileError);
        }

        Replica confirmed(long at) {
            return new Replica(configs, definitions, views, unreadable, revision, node, at, savedAt, error, fileError);
        }

        Replica saved(Instant at) {
            return new Replica(configs, definitions, views, unreadable, revision, node, confirmedAt, at, error, fileError);
        }

        Replica failed(String error) {
            return new Replica(configs, definitions, views, unreadable, revision, node, confirmedAt, savedAt, error, fileError);
        }

        Replica fileFailed(String error) {
            return new Replica(configs, definitions, views, unreadable, revision, node, confirmedAt, savedAt, this.error, error);
        }
    }

    private final CacheOptions options;
    private final Following following;
    private final Scope scope;
    private final Clock clock;
    private final ObjectMapper models;
    private final Consumer<Cache> onClose;
    private final JsonNode description;
    private final Reports reports;
    private final List<Consumer<WatchItem>> listeners = new CopyOnWriteArrayList<>();
    private final List<TypedCache<?>> typed = new CopyOnWriteArrayList<>();
    private final Map<Map.Entry<String, Class<?>>, TypedCache<?>> byType = new HashMap<>();
    private final List<Thread> threads = new ArrayList<>();
    /**
     * What makes another replica holds it, and may take as long as the program's types do. The monitor of the cache is held
     * for a moment only, so that {@link #close} and {@link #waitRevision} end in time.
     */
    private final Object making = new Object();
    /** Only what holds {@link #making} replaces it. */
    private volatile Replica replica =
            new Replica(Map.of(), Map.of(), Map.of(), Map.of(), 0, null, NEVER, null, null, null);
    private long listedAt, savedAt;
    private long savedRevision = -1;
    private boolean isListed, isClosed;

    Cache(Calls calls, ObjectMapper models, CacheOptions options, Consumer<Cache> onClose) {
        this.options = options;
        this.following = new Following(calls, options.parameters(), false);
        this.scope = calls.scope;
        this.clock = calls.clock;
        this.models = models;
        this.onClose = onClose;
        this.description = description(calls.environment);
        this.reports = calls.reader == null ? null : new Reports(calls, this);
    }

    /** What the file must be of: the keys in it are the same in every environment, and the values are not. */
    private JsonNode description(Environment environment) {
        ObjectNode made = Json.object();
        made.set("definitions", Json.texts(options.definitions.stream().sorted().toList()));
        made.set("configs", Json.texts(options.configs == null ? List.of() : options.configs.stream().sorted().toList()));
        made.set("filters", Json.texts(options.filters.filters().stream().map(Object::toString).sorted().toList()));
        return environment == null ? made : made.put("environment", environment.name);
    }

    // --- Reading ------------------------------------------------------------------------------------------------------

    /**
     * A value, with where it is from.
     *
     * @throws NotCachedException if there is none
     */
    public CacheValue get(String definition, String key) {
        return get(replica, definition, key, null);
    }

    /** A value, or the default if there is no such config. */
    public CacheValue get(String definition, String key, JsonNode defaultData) {
        return get(replica, definition, key, Objects.requireNonNull(defaultData));
    }

    /** A value, if there is such a config. */
    public Optional<CacheValue> find(String definition, String key) {
        try {
            return Optional.of(get(definition, key));
        } catch (NotCachedException error) {
            return Optional.empty();
        }
    }

    CacheValue get(Replica now, String definition, String key, JsonNode defaultData) {
        ConfigName name = new ConfigName(definition, key);
        Config found = now.configs.get(name);
        Source source = source(now);
        if (found != null) {
            return value(now, found, source, age(now));
        }
        checkCovered(definition, key);
        if (source == Source.NONE) {
            throw notReady(now);
        }
        if (source == Source.DEFAULT && options.defaults.containsKey(name)) {
            return CacheValue.of(name, options.defaults.get(name), CacheValue.AGE_UNKNOWN, 0, null);
        }
        if (now.unreadable.containsKey(name)) {
            throw new ProtocolException("the config " + name + " can't be read: " + now.unreadable.get(name), null);
        }
        if (defaultData != null) {
            return CacheValue.of(name, defaultData, age(now), now.revision, now.node);
        }
        throw new NotCachedException("there is no config " + name + " (known from " + source + ")", source, age(now));
    }

    /** Of a config whose newest version can't be read, nothing is confirmed. */
    private static CacheValue value(Replica now, Config config, Source source, Duration age) {
        boolean isOld = now.unreadable.containsKey(config.name());
        Source from = isOld && source == Source.LIVE ? Source.CACHE : source;
        return CacheValue.of(config, from, isOld ? CacheValue.AGE_UNKNOWN : age, now.revision);
    }

    private static NotReadyException notReady(Replica now) {
        String why = now.error == null ? "no node has responded" : now.error;
        return new NotReadyException("the cache has nothing yet: " + why + (now.fileError == null ? "" : "; " + now.fileError));
    }

    private void checkCovered(String definition, String key) {
        boolean isCovered = options.definitions.isEmpty() || options.definitions.stream().anyMatch(pattern ->
                pattern.endsWith("*") ? definition.startsWith(pattern.substring(0, pattern.length() - 1))
                        : pattern.equals(definition));
        if (!isCovered) {
            throw new IllegalArgumentException("this cache does not follow the definition '" + definition + "'");
        }
        if (options.configs != null && !options.configs.contains(key)) {
            throw new IllegalArgumentException("this cache does not follow the config '" + key + "'");
        }
    }

    private Source source(Replica now) {
        if (now.isConfirmed()) {
            boolean isFresh = clock.nanos() - now.confirmedAt <= options.fresh.toNanos();
            return isFresh && now.error == null ? Source.LIVE : Source.CACHE;
        }
        return now.savedAt != null ? Source.FILE : options.defaults.isEmpty() ? Source.NONE : Source.DEFAULT;
    }

    private Duration age(Replica now) {
        if (now.isConfirmed()) {
            return Duration.ofNanos(Math.max(0, clock.nanos() - now.confirmedAt));
        }
        Duration age = now.savedAt == null ? CacheValue.AGE_UNKNOWN : Duration.between(now.savedAt, Instant.now());
        // A wall clock that was set back says nothing.
        return age.isNegative() ? CacheValue.AGE_UNKNOWN : age;
    }

    /** The configs of a definition as instances of a type. The same call returns the same object. */
    @SuppressWarnings("unchecked")
    public <T> TypedCache<T> typed(String definition, Class<T> type) {
        synchronized (making) {
            Map.Entry<String, Class<?>> name = Map.entry(definition, type);
            TypedCache<?> found = byType.get(name);
            if (found == null) {
                found = typed(definition, type.getSimpleName(), config -> Json.to(type, config.data(), models));
                byType.put(name, found);
            }
            return (TypedCache<T>) found;
        }
    }

    /**
     * The configs of a definition as what a function makes of them. It runs in the thread of the cache for each version of
     * each config. A config that it rejects by an exception is as one whose data do not fit a type.
     *
     * @param typeName the name of what it makes, for the log and for reports
     */
    public <T> TypedCache<T> typed(String definition, String typeName, Function<Config, T> make) {
        checkDefinition(definition);
        TypedCache<T> made = new TypedCache<>(this, definition, typeName, make);
        synchronized (making) {
            typed.add(made);
            publish(new Draft(replica).viewed(made).replica());
        }
        return made;
    }

    private void checkDefinition(String definition) {
        checkCovered(definition, options.configs == null ? "" : options.configs.get(0));
    }

    /** All values of one revision. */
    public Map<ConfigName, CacheValue> snapshot() {
        Replica now = replica;
        Map<ConfigName, CacheValue> made = new HashMap<>();
        Source source = source(now);
        if (source == Source.DEFAULT) {
            options.defaults.forEach((name, data) ->
                    made.put(name, CacheValue.of(name, data, CacheValue.AGE_UNKNOWN, 0, null)));
        }
        Duration age = age(now);
        now.configs.forEach((name, config) -> made.put(name, value(now, config, source, age)));
        return made;
    }

    /** A definition that is followed, if there is one. */
    public Optional<Definition> definition(String key) {
        return Optional.ofNullable(replica.definitions.get(key));
    }

    /** Where the values are from, how old they are, and what is wrong. */
    public CacheStatus status() {
        Replica now = replica;
        Source source = source(now);
        int count = source == Source.DEFAULT ? options.defaults.size() : now.configs.size();
        Optional<String> error = Optional.ofNullable(now.error != null ? now.error : now.fileError);
        return new CacheStatus(source, age(now), now.revision, count, now.node, error, now.unreadable);
    }

    /** Calls the listener with each {@link Event} and {@link State} once the cache has it, in the thread of the cache. */
    public void onChange(Consumer<WatchItem> listener) {
        listeners.add(listener);
    }

    /** Waits until the cache has everything up to a revision, such as that of one's own write; false if it is late. */
    public boolean waitRevision(long revision, Duration timeout) {
        return waitFor(() -> replica.revision >= revision, timeout);
    }

    private synchronized boolean waitFor(BooleanSupplier condition, Duration timeout) {
        long end = System.nanoTime() + timeout.toNanos();
        try {
            while (!condition.getAsBoolean()) {
                long left = end - System.nanoTime();
                if (left <= 0 || isClosed) {
                    return false;
                }
                TimeUnit.NANOSECONDS.timedWait(this, left);
            }
            return true;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    Replica replica() {
        return replica;
    }

    List<TypedCache<?>> typed() {
        return typed;
    }

    Reports reports() {
        return reports;
    }

    // --- Keeping ------------------------------------------------------------------------------------------------------

    Cache start() {
        load();
        run("concord-cache", this::follow);
        if (reports != null) {
            run("concord-reports", () -> reports.run(scope));
        }
        if (waitFor(() -> isListed, options.startTimeout)) {
            return this;
        }
        Replica now = replica;
        if (source(now) == Source.NONE) {
            close();
            throw notReady(now);
        }
        synchronized (making) {
            if (!replica.isConfirmed() && replica.error == null) {
                note("no node has responded since the start; "
                        + (source(replica) == Source.FILE ? "the file is used" : "the defaults are used"));
            }
        }
        return this;
    }

    private void run(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        threads.add(thread);
        thread.start();
    }

    private void load() {
        if (options.file == null) {
            return;
        }
        try {
            JsonNode content = LastKnownFile.load(options.file, description);
            if (content != null) {
                restore(content);
            }
        } catch (IOException | RuntimeException error) {
            String text = "the file " + options.file + " is not used: " + error.getMessage();
            change(current -> current.fileFailed(text));
            LOG.log(Level.WARNING, text);
        }
    }

    private void restore(JsonNode content) {
        synchronized (making) {
            Draft draft = new Draft(replica);
            content.path("configs").forEach(each -> draft.put(SavedRecords.config(each)));
            content.path("definitions").forEach(each -> {
                Definition definition = SavedRecords.definition(each);
                draft.definitions.put(definition.key(), definition);
            });
            Instant at = Instant.parse(Config.text(content, "confirmed_at"));
            publish(draft.replica().at(content.path("revision").asLong(), content.path("node").asText(null)).saved(at));
        }
    }

    /** Keeps the replica until the end, whatever goes wrong. */
    private void follow() {
        long pause = PAUSE_FIRST;
        boolean isCurrent = false;
        while (!scope.isClosed()) {
            // Nobody ends this thread by an interrupt.
            Thread.interrupted();
            try {
                if (!isCurrent || clock.nanos() - listedAt >= RELIST) {
                    list();
                    isCurrent = true;
                }
                step();
                if (replica.error != null) {
                    LOG.log(Level.INFO, "the cache is confirmed again, at revision " + replica.revision);
                    change(now -> now.failed(null));
                }
                pause = PAUSE_FIRST;
                save(false);
            } catch (Throwable error) {
                if (scope.isClosed()) {
                    return;
                }
                boolean isKnown = error instanceof ConcordException;
                if (!isKnown && replica.error == null) {
                    LOG.log(Level.ERROR, "the cache met an error that it does not know", error);
                }
                if (!isKnown || error instanceof RejectedException || error instanceof ProtocolException) {
                    // The changes or the permissions are gone, or a change can't be read: the state says what there is.
                    isCurrent = false;
                }
                note(isKnown ? error.getMessage() : error.toString());
                clock.pause((long) (pause * (0.5 + clock.dice() / 2)), scope);
                pause = Math.min(pause * 2, PAUSE_MAX);
            }
        }
    }

    private void list() {
        Following.Told<State> told = following.state();
        State state = told.value();
        boolean isSame;
        synchronized (making) {
            Replica before = replica;
            Draft draft = new Draft(before);
            Map<ConfigName, Config> made = new HashMap<>();
            state.configs().forEach(each -> made.put(each.name(), each));
            state.unreadable().forEach((name, why) -> {
                if (before.configs.containsKey(name)) {
                    made.put(name, before.configs.get(name));
                }
            });
            isSame = before.isConfirmed() && made.keySet().equals(before.configs.keySet())
                    && made.values().stream().allMatch(each -> isSame(each, before.configs.get(each.name())));
            before.configs.keySet().stream().filter(name -> !made.containsKey(name)).forEach(draft::remove);
            made.values().forEach(draft::put);
            draft.definitions.clear();
            state.definitions().forEach(each -> draft.definitions.put(each.key(), each));
            draft.unreadable(state.unreadable());
            if (state.revision() < before.revision) {
                LOG.log(Level.WARNING, "the cluster is at revision " + state.revision() + "; the cache was at " + before.revision);
            }
            Replica now = draft.replica().at(state.revision(), state.node()).confirmed(told.sentAt());
            // Why there was nothing before says nothing of what there is now.
            publish(before.isConfirmed() ? now : now.failed(null));
        }
        listedAt = told.sentAt();
        if (!isSame) {
            tell(state);
        }
        synchronized (this) {
            isListed = true;
            notifyAll();
        }
    }

    /** Confirms the replica, and waits for changes. */
    private void step() {
        Following.Told<Long> told = following.confirm();
        while (following.position() < told.value()) {
            long before = following.position();
            poll(0);
            if (following.position() == before) {
                // It must not be polled without an end, whatever the reason.
                clock.pause(PAUSE_FIRST, scope);
                return;
            }
        }
        change(now -> now.confirmed(told.sentAt()));
        poll(options.pollSeconds);
    }

    private void poll(int waitSeconds) {
        List<Event> events = following.poll(waitSeconds);
        synchronized (making) {
            Replica now = replica;
            if (!events.isEmpty()) {
                Draft draft = new Draft(now);
                events.forEach(event -> event.changes().forEach(draft::apply));
                now = draft.replica().at(now.revision, events.get(events.size() - 1).node());
            }
            if (!events.isEmpty() || following.position() > now.revision) {
                publish(now.at(Math.max(now.revision, following.position()), now.node));
            }
        }
        events.forEach(this::tell);
    }

    private void tell(WatchItem item) {
        for (Consumer<WatchItem> each : listeners) {
            try {
                each.accept(item);
            } catch (Throwable error) {
                LOG.log(Level.ERROR, "a listener of the cache failed", error);
            }
        }
    }

    private void note(String text) {
        if (replica.error == null) {
            LOG.log(Level.WARNING, "the cache is not being confirmed: " + text);
        }
        change(now -> now.failed(text));
    }

    private void change(UnaryOperator<Replica> made) {
        synchronized (making) {
            publish(made.apply(replica));
        }
    }

    private synchronized void publish(Replica made) {
        replica = made;
        notifyAll();
        if (reports != null) {
            reports.look();
        }
    }

    /** Whether two are one version. Two editions of a change request have the same id, so the data decide. */
    static boolean isSame(Config one, Config other) {
        return one.revision() == other.revision() && Objects.equals(one.change(), other.change())
                && (one.change() == null || one.data().equals(other.data()));
    }

    /** A replica that is being made. */
    private final class Draft {
        private final Replica before;
        private final Map<ConfigName, Config> configs;
        private final Map<String, Definition> definitions;
        private final Map<TypedCache<?>, Map<String, TypedCache.Made<?>>> views = new HashMap<>();
        private Map<ConfigName, String> unreadable;

        private Draft(Replica before) {
            this.before = before;
            configs = new HashMap<>(before.configs);
            definitions = new HashMap<>(before.definitions);
            unreadable = before.unreadable;
            before.views.forEach((view, made) -> views.put(view, new HashMap<>(made)));
        }

        private Draft viewed(TypedCache<?> view) {
            Map<String, TypedCache.Made<?>> made = new HashMap<>();
            configs.values().stream().filter(each -> each.definition().equals(view.definition()))
                    .forEach(each -> made.put(each.key(), view.made(null, each)));
            views.put(view, made);
            return this;
        }

        private void apply(Change change) {
            ConfigName name = new ConfigName(change.definition(), change.key());
            if (change.problem() != null) {
                unreadable(with(name, change.problem()));
                return;
            }
            if (unreadable.containsKey(name)) {
                unreadable = without(each -> each.equals(name));
            }
            if (change.type().equals("definition_deleted")) {
                definitions.remove(change.definition());
                configs.keySet().stream().filter(each -> each.definition().equals(change.definition())).toList()
                        .forEach(this::remove);
                unreadable = without(each -> each.definition().equals(change.definition()));
            } else if (change.key() == null) {
                definitions.put(change.definition(), Definition.of(change.record(), 0, List.of()));
            } else if (change.config() != null) {
                put(change.config());
            } else {
                remove(name);
            }
        }

        private void put(Config config) {
            configs.put(config.name(), config);
            views.forEach((view, made) -> {
                if (view.definition().equals(config.definition())) {
                    made.compute(config.key(), (key, last) -> view.made(last, config));
                }
            });
        }

        /** A config that comes under the name again is another one. */
        private void remove(ConfigName name) {
            configs.remove(name);
            views.forEach((view, made) -> {
                if (view.definition().equals(name.definition())) {
                    made.remove(name.key());
                }
            });
        }

        private void unreadable(Map<ConfigName, String> found) {
            found.forEach((name, why) -> {
                if (!unreadable.containsKey(name)) {
                    LOG.log(Level.WARNING, "the config " + name + " can't be read: " + why);
                }
            });
            unreadable = Map.copyOf(found);
        }

        private Map<ConfigName, String> with(ConfigName name, String why) {
            Map<ConfigName, String> made = new HashMap<>(unreadable);
            made.put(name, why);
            return made;
        }

        private Map<ConfigName, String> without(Predicate<ConfigName> gone) {
            Map<ConfigName, String> made = new HashMap<>(unreadable);
            made.keySet().removeIf(gone);
            return made;
        }

        private Replica replica() {
            return new Replica(configs, definitions, views, unreadable, before.revision, before.node, before.confirmedAt,
                    before.savedAt, before.error, before.fileError);
        }
    }

    // --- The file -----------------------------------------------------------------------------------------------------

    private void save(boolean isLast) {
        Replica now = replica;
        if (options.file == null || !now.isConfirmed()) {
            return;
        }
        long since = clock.nanos() - savedAt;
        long due = now.revision != savedRevision ? SAVE_CHANGED : SAVE_CONFIRMED;
        if (!isLast && savedRevision >= 0 && since < due) {
            return;
        }
        ObjectNode content = Json.object();
        content.set("scope", description);
        content.put("revision", now.revision).put("node", now.node);
        // A moment of the wall clock that is not later than the confirmation.
        content.put("confirmed_at", Instant.now().minus(age(now)).toString());
        ArrayNode definitions = content.putArray("definitions");
        now.definitions.values().forEach(each -> definitions.add(SavedRecords.of(each)));
        ArrayNode configs = content.putArray("configs");
        now.configs.values().forEach(each -> configs.add(SavedRecords.of(each)));
        String failure = null;
        try {
            LastKnownFile.save(options.file, content);
        } catch (IOException | RuntimeException error) {
            failure = "the file " + options.file + " can't be written: " + error;
            if (now.fileError == null) {
                LOG.log(Level.WARNING, failure);
            }
        }
        if (!isLast && !Objects.equals(failure, now.fileError)) {
            String told = failure;
            change(current -> current.fileFailed(told));
        }
        savedRevision = now.revision;
        savedAt = clock.nanos();
    }

    /** Ends the threads, and writes the file once more. */
    @Override
    public void close() {
        synchronized (this) {
            if (isClosed) {
                return;
            }
            isClosed = true;
            notifyAll();
        }
        scope.close();
        if (reports != null) {
            reports.look();
        }
        boolean isInterrupted = Thread.interrupted();
        for (Thread each : threads) {
            try {
                if (each != Thread.currentThread()) {
                    // Only a listener or a type of the program can take longer.
                    each.join(5000);
                }
            } catch (InterruptedException error) {
                isInterrupted = true;
            }
        }
        onClose.accept(this);
        save(true);
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public String toString() {
        return "Cache of " + (options.definitions.isEmpty() ? "all definitions" : String.join(", ", options.definitions));
    }
}
