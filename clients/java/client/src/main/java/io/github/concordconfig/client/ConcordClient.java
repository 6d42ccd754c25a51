package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.github.concordconfig.client.Requests.Parameter;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Path;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Function;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;

/**
 * A client of a Concord cluster, for any number of threads.
 *
 * <pre>{@code
 * try (ConcordClient client = ConcordClient.builder().nodes("http://10.0.0.1:8101,http://10.0.0.2:8101").key(key).build()) {
 *     Config acme = client.get("limits", "acme");
 * }
 * }</pre>
 *
 * <p>A request goes to the next node if one does not respond. A write that may have been applied throws
 * {@link UnknownOutcomeException}; every other exception of a write means that nothing was changed. If the thread is
 * interrupted, a call ends in the same way, and the flag stays set.
 *
 * <p>Data are a {@link JsonNode}, which keeps all digits, or anything that Jackson writes: a record, a class, a {@link Map}.
 */
public final class ConcordClient implements AutoCloseable {
    private static final Duration CACHE_TIMEOUT = Duration.ofSeconds(3);
    private static final int UPDATES_MAX = 64;

    private final Calls calls;
    private final Wire wire;
    private final Scope scope;
    private final ObjectMapper models;
    private final List<Cache> caches = new CopyOnWriteArrayList<>();

    private ConcordClient(Builder builder) {
        Environment environment = Environment.of(builder.environment);
        Reader reader = Reader.of(builder.hasReader ? builder.reader : Reader.hostName(), builder.labels);
        List<String> nodes = nodes(builder.nodes);
        scope = new Scope();
        models = builder.mapper == null ? Json.MODELS : Json.exact(builder.mapper.copy());
        wire = builder.wire != null ? builder.wire : wire(builder, nodes);
        calls = new Calls(nodes, wire, builder.clock, environment, reader, scope, builder.timeout, builder.attemptTimeout);
    }

    private static Wire wire(Builder builder, List<String> nodes) {
        SSLContext tls = builder.sslContext;
        if (tls == null && nodes.stream().anyMatch(node -> node.startsWith("https:"))) {
            tls = Tls.of(builder.caFile, builder.certificateFile, builder.certificateKeyFile);
        }
        Credential credential = new Credential(builder.key, builder.keyFile);
        return new HttpWire(credential, tls, builder.connectTimeout.toNanos(), builder.responseBytesMax);
    }

    private static List<String> nodes(List<String> given) {
        Set<String> nodes = new LinkedHashSet<>();
        for (String each : given) {
            String url = each.strip().replaceAll("/+$", "");
            if (url.isEmpty()) {
                continue;
            }
            URI parsed = null;
            try {
                parsed = new URI(url);
            } catch (URISyntaxException error) {
                // It is rejected below: the text of this error would show all of it.
                parsed = null;
            }
            boolean isNode = parsed != null && List.of("http", "https").contains(String.valueOf(parsed.getScheme()))
                    && parsed.getHost() != null && parsed.getQuery() == null && parsed.getFragment() == null
                    && parsed.getUserInfo() == null;
            if (!isNode) {
                // The text may have a password.
                String shown = url.contains("@") ? "a URL with a user or a password" : "'" + url + "'";
                throw new IllegalArgumentException(shown + " is not the URL of a node: expected http[s]://host:port");
            }
            nodes.add(url);
        }
        if (nodes.isEmpty()) {
            throw new IllegalArgumentException("no URL of a node is given");
        }
        return List.copyOf(nodes);
    }

    /** Makes a builder. */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * A builder with the values of the environment variables: {@code CONCORD_URL}, {@code CONCORD_API_KEY} or
     * {@code CONCORD_API_KEY_FILE}, {@code CONCORD_CA_FILE}, {@code CONCORD_CLIENT_CERT_FILE},
     * {@code CONCORD_CLIENT_KEY_FILE}, {@code CONCORD_ENVIRONMENT}, {@code CONCORD_READER} and {@code CONCORD_LABELS}, such as
     * {@code ring=canary,region=eu}.
     */
    public static Builder fromEnvironment() {
        return fromEnvironment(System.getenv());
    }

    static Builder fromEnvironment(Map<String, String> variables) {
        Map<String, String> given = new HashMap<>(variables);
        // An empty environment is a mistake: without a prefix, the program would have the configs of all environments.
        given.entrySet().removeIf(each -> each.getValue().isEmpty() && !each.getKey().equals("CONCORD_ENVIRONMENT"));
        Builder builder = builder()
                .nodes(given.getOrDefault("CONCORD_URL", "http://127.0.0.1:8101"))
                .environment(given.get("CONCORD_ENVIRONMENT"))
                .labels(Reader.labelsOf(given.getOrDefault("CONCORD_LABELS", "")));
        String key = given.get("CONCORD_API_KEY");
        builder.key = key;
        builder.keyFile = key == null ? path(given, "CONCORD_API_KEY_FILE") : null;
        builder.caFile = path(given, "CONCORD_CA_FILE");
        builder.certificateFile = path(given, "CONCORD_CLIENT_CERT_FILE");
        builder.certificateKeyFile = path(given, "CONCORD_CLIENT_KEY_FILE");
        return given.containsKey("CONCORD_READER") ? builder.reader(given.get("CONCORD_READER")) : builder;
    }

    private static Path path(Map<String, String> given, String name) {
        return given.containsKey(name) ? Path.of(given.get(name)) : null;
    }

    // --- Definitions --------------------------------------------------------------------------------------------------

    /** Creates a definition without a schema. */
    public Written createDefinition(String key, List<String> indexes, WriteOption... options) {
        return createDefinition(key, indexes, null, options);
    }

    /** Creates a definition. A schema of null allows any object. */
    public Written createDefinition(String key, List<String> indexes, JsonNode schema, WriteOption... options) {
        Requests.segment(key, "config_definition_key");
        WriteOption.Settings settings = settings(options, WriteOption.plus("formatAssertion"));
        ObjectNode body = Json.object().put("config_definition_key", key);
        body.set("indexes", Json.texts(indexes));
        if (schema != null) {
            body.set("json_schema", schema);
        }
        assertFormats(body, settings);
        return written("POST", Requests.ROOT + "/config_definition/", body, settings);
    }

    /**
     * Makes a definition be so: creates it, or changes its schema and its indexes where they differ. What is null stays as
     * it is. A schema that existing configs do not fit is rejected.
     */
    public Definition ensureDefinition(String key, List<String> indexes, JsonNode schema, WriteOption... options) {
        settings(options, WriteOption.NAMED);
        List<String> warnings = new ArrayList<>();
        Definition found = findDefinition(key).orElse(null);
        if (found == null) {
            try {
                warnings.addAll(createDefinition(key, indexes == null ? List.of() : indexes, schema, options).warnings());
            } catch (ConflictException error) {
                // Another program was faster, and may have made another one.
                if (!error.code().equals("definition_exists")) {
                    throw error;
                }
            }
            found = getDefinition(key);
        }
        if (schema != null && !Json.reread(schema).equals(found.jsonSchema())) {
            warnings.addAll(setSchema(key, schema, options).warnings());
        }
        if (indexes != null && !indexes.equals(found.indexes())) {
            warnings.addAll(setIndexes(key, indexes, options).warnings());
        }
        found = getDefinition(key);
        warnings.addAll(found.warnings());
        return new Definition(found.key(), found.indexes(), found.jsonSchema(), found.revision(), found.createdAt(),
                found.modifiedAt(), List.copyOf(warnings));
    }

    /** Reads a definition. */
    public Definition getDefinition(String key, ReadOption... options) {
        Answer answer = read(Requests.definition(key), options);
        return understood(answer, data -> Definition.of(data, answer.etag(), answer.warnings()),
                answer.record("config_definition_key", key));
    }

    /** Reads a definition, if there is one. */
    public Optional<Definition> findDefinition(String key, ReadOption... options) {
        try {
            return Optional.of(getDefinition(key, options));
        } catch (NotFoundException error) {
            return Optional.empty();
        }
    }

    /** All definitions of one state, page by page. Filters do not apply. */
    public Stream<Definition> listDefinitions(Query query, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.AT_REVISION);
        List<Parameter> parameters = parameters(settings, "", query.parameters());
        parameters.removeIf(each -> each.name().equals("revision"));
        parameters.add(new Parameter("include", "revision"));
        return new Pages<>(calls, Requests.ROOT + "/config_definition/", parameters, query.pageSize(), "revision",
                settings.revision(), settings.timeout(), (record, answer) -> Definition.of(record, 0, List.of())).stream();
    }

    /** Sets all indexed paths of a definition. */
    public Written setIndexes(String key, List<String> indexes, WriteOption... options) {
        return written("PUT", Requests.definition(key), Json.object().set("indexes", Json.texts(indexes)),
                settings(options, WriteOption.CONDITIONAL));
    }

    /** Deletes a definition with its configs. */
    public Written deleteDefinition(String key, WriteOption... options) {
        return written("DELETE", Requests.definition(key), null,
                settings(options, WriteOption.plus("ifMatch", "restrict", "purge")));
    }

    /** Changes the schema of a definition; null removes it. It is rejected if configs break it, unless forced. */
    public SchemaChange setSchema(String key, JsonNode schema, WriteOption... options) {
        WriteOption.Settings settings = settings(options, WriteOption.plus("ifMatch", "force", "formatAssertion"));
        ObjectNode body = Json.object();
        body.set("json_schema", schema);
        assertFormats(body, settings);
        return outcome(write("PUT", Requests.definition(key, "schema"), body, settings), settings, SchemaChange::of);
    }

    /** The paths whose values are unique among the configs. */
    public List<String> getUnique(String key, ReadOption... options) {
        return Definition.texts(read(Requests.definition(key, "unique"), options).object().path("paths"));
    }

    /** Sets all unique paths; they must be indexed. */
    public Written setUnique(String key, List<String> paths, WriteOption... options) {
        return written("PUT", Requests.definition(key, "unique"), Json.object().set("paths", Json.texts(paths)),
                settings(options, WriteOption.CONDITIONAL));
    }

    /** Whether the deletion of a definition is rejected. */
    public boolean isProtected(String key, ReadOption... options) {
        return read(Requests.definition(key, "protection"), options).object().path("protected").asBoolean();
    }

    /** Protects a definition from deletion, or no longer. */
    public Written setProtected(String key, boolean isProtected, WriteOption... options) {
        return written("PUT", Requests.definition(key, "protection"), Json.object().put("protected", isProtected),
                settings(options, WriteOption.CONDITIONAL));
    }

    /** Undoes the deletion of a definition: it returns with its configs. */
    public Written undeleteDefinition(String key, WriteOption... options) {
        return undelete(key, Json.object(), options);
    }

    /** Undoes the deletion of a definition: it returns as it was at a revision. */
    public Written undeleteDefinition(String key, long revision, WriteOption... options) {
        return undelete(key, Json.object().put("revision", revision), options);
    }

    /** Undoes the deletion of a definition: it returns as it was at a time. */
    public Written undeleteDefinition(String key, Instant time, WriteOption... options) {
        return undelete(key, Json.object().put("time", time.toString()), options);
    }

    private Written undelete(String key, ObjectNode body, WriteOption... options) {
        return written("POST", Requests.definition(key, "undelete"), body, settings(options, WriteOption.PLAIN));
    }

    /** The deleted definitions that are kept, the last deletion first. */
    public List<DeletedDefinition> deletedDefinitions(ReadOption... options) {
        List<DeletedDefinition> made = new ArrayList<>();
        read(Requests.ROOT + "/deleted_definition/", options).object().path("results")
                .forEach(each -> made.add(DeletedDefinition.of(each)));
        return List.copyOf(made);
    }

    /** How far the indexes of a definition are built. */
    public List<IndexProgress> indexProgress(String key, ReadOption... options) {
        List<IndexProgress> made = new ArrayList<>();
        read(Requests.definition(key, "indexes"), options).object().path("indexes").forEach(each -> made.add(
                new IndexProgress(each.path("path").asText(), each.path("state").asText().equals("ready"),
                        each.path("done").asLong(), each.path("of").asLong())));
        return List.copyOf(made);
    }

    /** The changes of a definition, newest first. */
    public Stream<Past> definitionHistory(String key, ReadOption... options) {
        return past(Requests.definition(key, "history"), options);
    }

    // --- Configs ------------------------------------------------------------------------------------------------------

    /** Creates a config; {@link ConflictException} if there is one. */
    public Written create(String definition, String key, Object data, WriteOption... options) {
        Requests.segment(key, "config_key");
        ObjectNode body = Json.object().put("config_key", key);
        body.set("data", stored(data));
        return written("POST", Requests.definition(definition, "config") + "/", body, settings(options, WriteOption.PLAIN));
    }

    /** Reads a config. A reader that is in a rollout gets the candidate. */
    public Config get(String definition, String key, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.SELECTING);
        String target = Requests.target(Requests.config(definition, key), settings.parameters());
        return config(definition, key, Request.read(target), settings.timeout());
    }

    private Config config(String definition, String key, Request request, Duration timeout) {
        return config(definition, key, calls.call(request, timeout));
    }

    private static Config config(String definition, String key, Answer answer) {
        return understood(answer, data -> Config.of(definition, data, answer), answer.record("config_key", key));
    }

    /** Reads a config, if there is one. */
    public Optional<Config> find(String definition, String key, ReadOption... options) {
        try {
            return Optional.of(get(definition, key, options));
        } catch (NotFoundException error) {
            return Optional.empty();
        }
    }

    /** The config as it is now. If it has not changed, its data are not sent again. */
    public Config getIfChanged(Config config, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.PLAIN);
        String target = Requests.target(Requests.config(config.definition(), config.key()), settings.parameters());
        // The tag of a candidate names its edition, which is not known here: a candidate is always sent again.
        Request request = Request.read(target);
        request = config.variant().isPresent() ? request : request.with("if-none-match", "\"" + config.revision() + "\"");
        Answer answer = calls.call(request, settings.timeout());
        return answer.status() == 304 ? config : config(config.definition(), config.key(), answer);
    }

    /** All configs that a query selects, page by page, of one state, whatever is written meanwhile. */
    public Stream<Config> list(String definition, Query query, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.SELECTING);
        List<Parameter> parameters = parameters(settings, "$", query.parameters());
        parameters.removeIf(each -> each.name().equals("$revision"));
        // With `$`, no index takes the parameter for its filter.
        parameters.add(new Parameter("$include", "revision"));
        return new Pages<>(calls, Requests.definition(definition, "config") + "/", parameters, query.pageSize(), "$revision",
                settings.revision(), settings.timeout(), (record, answer) -> listed(definition, record, answer)).stream();
    }

    private static Config listed(String definition, JsonNode record, Answer answer) {
        return understood(answer, data -> Config.of(definition, data, answer, 0, null, List.of()), record);
    }

    /** One page of a list, and how many configs the query selects. */
    public Page<Config> page(String definition, Query query, int page, int limit, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.SELECTING);
        List<Parameter> parameters = parameters(settings, "$", query.parameters());
        parameters.add(new Parameter("$include", "revision"));
        parameters.add(new Parameter("page", String.valueOf(page)));
        parameters.add(new Parameter("limit", String.valueOf(limit)));
        String target = Requests.target(Requests.definition(definition, "config") + "/", parameters);
        Answer answer = calls.call(Request.read(target), settings.timeout());
        List<Config> items = new ArrayList<>();
        answer.object().path("results").forEach(record -> items.add(listed(definition, record, answer)));
        long total = answer.data().path("meta").path("total").asLong();
        return new Page<>(List.copyOf(items), page, limit, total, answer.revision(), answer.warnings());
    }

    /**
     * The configs of several definitions.
     *
     * @param definitions keys, or prefixes with {@code *} at the end; null for all. An empty list is an error
     */
    public Stream<Config> listAcross(List<String> definitions, Query query, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.PLAIN);
        List<Parameter> parameters = parameters(settings, "", query.parameters());
        parameters.addAll(Requests.names("definition", definitions, "definitions"));
        return new Pages<>(calls, Requests.ROOT + "/config", parameters, query.pageSize(), null, null, settings.timeout(),
                (record, answer) -> listed("", record, answer)).stream();
    }

    /** Up to 1000 configs, all of one revision. */
    public ManyConfigs readMany(Collection<ConfigName> configs, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.AT_REVISION);
        ObjectNode body = Json.object();
        ArrayNode asked = body.putArray("configs");
        configs.forEach(each -> asked.addObject().put("config_definition_key", each.definition()).put("config_key", each.key()));
        if (settings.revision() != null) {
            body.put("revision", settings.revision());
        }
        List<Parameter> parameters = parameters(settings, "", List.of());
        parameters.removeIf(each -> each.name().equals("revision"));
        Request request = Request.post(Requests.target(Requests.ROOT + "/read", parameters), Json.bytes(body));
        Answer answer = calls.call(request, settings.timeout());
        Map<ConfigName, Config> found = new HashMap<>();
        Map<ConfigName, String> missing = new HashMap<>();
        for (JsonNode item : answer.object().path("results")) {
            ConfigName name = new ConfigName(item.path("config_definition_key").asText(), item.path("config_key").asText());
            if (!configs.contains(name)) {
                throw new ProtocolException(answer.node() + " responded with " + name + ", which was not requested", null);
            }
            if (item.path("status").asText().equals("found")) {
                found.put(name, understood(answer, record -> Config.of(name.definition(), record, answer,
                        item.path("revision").asLong(), item.path("variant").path("change_id").asText(null), List.of()),
                        item.path("config")));
            } else {
                missing.put(name, item.path("status").asText());
            }
        }
        return new ManyConfigs(answer.data().path("revision").asLong(), Map.copyOf(found), Map.copyOf(missing));
    }

    /** Replaces a config. */
    public Written put(String definition, String key, Object data, WriteOption... options) {
        return put(definition, key, data, settings(options, WriteOption.plus("ifMatch", "createOnly", "upsert")));
    }

    private Written put(String definition, String key, Object data, WriteOption.Settings settings) {
        return written("PUT", Requests.config(definition, key), Json.object().set("data", stored(data)), settings);
    }

    /** Creates or replaces a config. */
    public Written upsert(String definition, String key, Object data, WriteOption... options) {
        return put(definition, key, data, settings(options, WriteOption.PLAIN).with(WriteOption.upsert()));
    }

    /** Changes a part of a config: an object is a merge patch (RFC 7396), a list a JSON Patch (RFC 6902). */
    public Written patch(String definition, String key, Object change, WriteOption... options) {
        JsonNode patch = Secrets.unmarked(Json.of(change, models));
        String type = "application/" + (patch.isArray() ? "json" : "merge") + "-patch+json";
        WriteOption.Settings settings = settings(options, WriteOption.CONDITIONAL);
        Request request = Requests.write("PATCH", Requests.config(definition, key), Json.bytes(patch), type, settings);
        return Written.of(calls.call(request, settings.timeout()));
    }

    /**
     * Reads a config, computes other data, and writes them if nobody else has written meanwhile; otherwise again.
     *
     * <p>In place of each secret value that the key may not see stands a marker that keeps it, and that can't be moved. A
     * reader that is in a rollout gets the proven data here.
     *
     * @param change gets data that it may change, and returns them or others. It may be called several times
     */
    public Written update(String definition, String key, UnaryOperator<ObjectNode> change, WriteOption... options) {
        return updated(definition, key, found -> change.apply((ObjectNode) found.editable()), options);
    }

    Written updated(String definition, String key, Function<Config, Object> change, WriteOption... options) {
        settings(options, WriteOption.NAMED);
        for (int attempt = 1; ; attempt++) {
            // What is written back rests on what is proven: a candidate has no revision.
            Config found = config(definition, key, Request.read(Requests.config(definition, key)).proven(), null);
            WriteOption.Settings settings = settings(options, WriteOption.NAMED).with(WriteOption.ifMatch(found.revision()));
            try {
                return put(definition, key, change.apply(found), settings);
            } catch (PreconditionFailedException error) {
                if (attempt == UPDATES_MAX) {
                    throw error;
                }
                double pause = Math.min(0.002 * Math.pow(2, attempt), 0.25) * calls.clock.dice();
                calls.clock.pause(Clock.nanos(pause), scope);
            }
        }
    }

    /** Deletes a config. Its history stays. */
    public Written delete(String definition, String key, WriteOption... options) {
        return written("DELETE", Requests.config(definition, key), null, settings(options, WriteOption.CONDITIONAL));
    }

    /** The changes of a config, newest first; of a deleted one as well. */
    public Stream<Past> history(String definition, String key, ReadOption... options) {
        return past(Requests.config(definition, key, "history"), options);
    }

    /** Writes the data that a config had at a revision as a new change; brings a deleted one back. */
    public Written rollback(String definition, String key, long revision, WriteOption... options) {
        return written("POST", Requests.config(definition, key, "rollback"), Json.object().put("revision", revision),
                settings(options, WriteOption.plus("ifMatch", "createOnly")));
    }

    /** The configs of a definition as instances of a type. */
    public <T> Records<T> records(String definition, Class<T> type) {
        return new Records<>(this, models, definition, type);
    }

    // --- Several as one -----------------------------------------------------------------------------------------------

    /** Up to 1000 operations as one change: all are applied, or none. */
    public BatchResult batch(List<Operation> operations, WriteOption... options) {
        return batch(Json.object().set("operations", bodies(operations)), options);
    }

    /** Applies the second list if all conditions hold, otherwise the third. */
    public BatchResult transaction(List<Operation> conditions, List<Operation> then, List<Operation> otherwise,
            WriteOption... options) {
        ObjectNode body = Json.object();
        body.set("if", bodies(conditions));
        body.set("then", bodies(then));
        body.set("else", bodies(otherwise));
        return batch(body, options);
    }

    private BatchResult batch(ObjectNode body, WriteOption... options) {
        WriteOption.Settings settings = settings(options, WriteOption.PLAIN);
        return outcome(write("POST", Requests.ROOT + "/batch", body, settings), settings, BatchResult::of);
    }

    /**
     * Makes a change request. Nothing is changed before others have approved it and it is applied.
     *
     * @return the change request, with its {@code change_id} and the whole keys of its definitions
     */
    public JsonNode propose(String title, String description, List<Operation> operations, WriteOption... options) {
        ObjectNode body = Json.object().put("title", title).put("description", description);
        body.set("operations", bodies(operations));
        WriteOption.Settings settings = settings(options, WriteOption.NAMED);
        return outcome(write("POST", Requests.ROOT + "/change_request/", body, settings), settings, Answer::object);
    }

    private static ArrayNode bodies(List<Operation> operations) {
        ArrayNode made = Json.NODES.arrayNode();
        operations.forEach(each -> made.add(each.body()));
        return made;
    }

    // --- Changes ------------------------------------------------------------------------------------------------------

    /** Follows changes. Close the watch at the end. */
    public Watch watch(WatchOptions options) {
        return made(calls.child(), own -> new Watch(own, options));
    }

    /**
     * A replica in memory that follows definitions. It is started: the call reads the file, and waits until a node has
     * responded, or until the start timeout is over and there are a file or defaults.
     *
     * @throws NotReadyException if there is nothing to start with
     */
    public Cache cache(CacheOptions options) {
        // Which node a cache asks is its own matter, and it is to notice soon that none responds.
        Cache made = made(calls.child(CACHE_TIMEOUT, CACHE_TIMEOUT), own -> new Cache(own, models, options, caches::remove));
        caches.add(made);
        return made.start();
    }

    /** What follows changes. If its options are wrong, nothing is left of it. */
    private static <T> T made(Calls own, Function<Calls, T> make) {
        try {
            return make.apply(own);
        } catch (RuntimeException error) {
            own.scope.close();
            throw error;
        }
    }

    // --- The rest -----------------------------------------------------------------------------------------------------

    /** Who the key is, its grants and its quota. */
    public JsonNode whoami(ReadOption... options) {
        return read(Requests.ROOT + "/whoami", options).object();
    }

    /** Members, leader, lag and alarms, as one node sees them. */
    public JsonNode cluster(ReadOption... options) {
        return read(Requests.ROOT + "/cluster", options).object();
    }

    /** A read of any path, with the same failover. */
    public Response request(String path) {
        return request("GET", path, null, null, null);
    }

    /**
     * Any other request, with the same failover.
     *
     * @param path the path with its query, encoded
     * @param body the body, or null
     * @param idempotencyKey without one, a write is not sent again after an unknown outcome; or null
     * @param timeout the time for the call with all its attempts, or null
     */
    public Response request(String method, String path, Object body, String idempotencyKey, Duration timeout) {
        if (!path.startsWith("/") || path.chars().anyMatch(c -> c < 33 || c > 126)) {
            throw new IllegalArgumentException("a path begins with a slash and is encoded: '" + path + "'");
        }
        if (!method.matches("[A-Za-z]+")) {
            throw new IllegalArgumentException("'" + method + "' is no method");
        }
        String name = method.toUpperCase(Locale.ROOT);
        Map<String, String> headers = new HashMap<>();
        if (body != null) {
            headers.put("content-type", "application/json");
        }
        if (idempotencyKey != null) {
            headers.put("idempotency-key", Requests.idempotencyKey(idempotencyKey));
        }
        byte[] bytes = body == null ? null : Json.bytes(Secrets.unmarked(Json.of(body, models)));
        boolean isWrite = !name.equals("GET") && !name.equals("HEAD");
        Answer answer = calls.call(new Request(name, path, headers, bytes, isWrite, idempotencyKey, null, false), timeout);
        return new Response(answer.status(), answer.headers(), answer.data(), answer.node(), answer.warnings());
    }

    /** The environment; empty if definition keys have no prefix. */
    public Optional<String> environment() {
        return Optional.ofNullable(calls.environment).map(each -> each.name);
    }

    /** The name of the reader; empty if the client sends none. */
    public Optional<String> reader() {
        return Optional.ofNullable(calls.reader).map(each -> each.name);
    }

    /** The highest revision that a response had, for {@link ReadOption#minRevision}. */
    public long revision() {
        return calls.revision();
    }

    /** Ends the watches and the caches, and closes all connections. A call that is on its way ends at once. */
    @Override
    public void close() {
        caches.forEach(Cache::close);
        scope.close();
        wire.close();
    }

    @Override
    public String toString() {
        return "ConcordClient of " + String.join(", ", calls.nodes);
    }

    private Answer read(String path, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.PLAIN);
        return calls.call(Request.read(Requests.target(path, settings.parameters())), settings.timeout());
    }

    private Stream<Past> past(String path, ReadOption... options) {
        ReadOption.Settings settings = ReadOption.Settings.of(options, ReadOption.PLAIN);
        return new Pages<>(calls, path, settings.parameters(), Query.all().pageSize(), null, null, settings.timeout(),
                (record, answer) -> Past.of(record)).stream();
    }

    private Written written(String method, String path, JsonNode body, WriteOption.Settings settings) {
        return Written.of(write(method, path, body, settings));
    }

    private Answer write(String method, String path, JsonNode body, WriteOption.Settings settings) {
        return calls.call(Requests.write(method, path, body == null ? null : Json.bytes(body), settings), settings.timeout());
    }

    /** What a write did. A response that can't be read does not mean that nothing was changed. */
    private static <T> T outcome(Answer answer, WriteOption.Settings settings, Function<Answer, T> make) {
        try {
            return make.apply(answer);
        } catch (RuntimeException error) {
            if (settings.isDryRun()) {
                throw new ProtocolException(answer.node() + " responded with what can't be read: " + error.getMessage(), error);
            }
            String text = answer.node() + " has applied the write, but its response can't be read: " + error.getMessage();
            throw new UnknownOutcomeException(text, settings.idempotencyKey(), List.of(text), null);
        }
    }

    private JsonNode stored(Object data) {
        return Secrets.stored(Json.of(data, models));
    }

    private static WriteOption.Settings settings(WriteOption[] options, Set<String> allowed) {
        return WriteOption.Settings.of(options, allowed);
    }

    private static List<Parameter> parameters(ReadOption.Settings settings, String mark, List<Parameter> more) {
        List<Parameter> made = new ArrayList<>(settings.parameters(mark));
        made.addAll(more);
        return made;
    }

    private static void assertFormats(ObjectNode body, WriteOption.Settings settings) {
        if (settings.get("formatAssertion") instanceof Boolean isOn) {
            body.put("format_assertion", isOn);
        }
    }

    /** A record of a response, or the error that the response is not a node's. */
    private static <T> T understood(Answer answer, Function<JsonNode, T> make, JsonNode record) {
        try {
            return make.apply(record);
        } catch (IllegalArgumentException | DateTimeException error) {
            throw new ProtocolException(answer.node() + " responded with a record that can't be read: " + error.getMessage(),
                    error);
        }
    }

    /** Makes a client. */
    public static final class Builder {
        private List<String> nodes = List.of();
        private String key;
        private Path keyFile, caFile, certificateFile, certificateKeyFile;
        private SSLContext sslContext;
        private Duration timeout = Duration.ofSeconds(30);
        private Duration attemptTimeout = Duration.ofSeconds(5);
        private Duration connectTimeout = Duration.ofSeconds(2);
        private String environment;
        private String reader;
        private boolean hasReader;
        private Map<String, String> labels = Map.of();
        private ObjectMapper mapper;
        private long responseBytesMax = 1L << 28;
        private Wire wire;
        private Clock clock = Clock.SYSTEM;

        private Builder() {}

        /** The URLs of any nodes, comma-separated. */
        public Builder nodes(String urls) {
            return nodes(Arrays.asList(urls.split(",")));
        }

        /** The URLs of any nodes. */
        public Builder nodes(List<String> urls) {
            nodes = List.copyOf(urls);
            return this;
        }

        /** The access key. */
        public Builder key(String key) {
            this.key = key;
            return this;
        }

        /** A file with the access key. It is read again when it changes. */
        public Builder keyFile(Path file) {
            keyFile = file;
            return this;
        }

        /** The certificates of the CA of the nodes (PEM), in place of those of the platform. */
        public Builder caFile(Path file) {
            caFile = file;
            return this;
        }

        /** The certificate of this client and its private key in PKCS #8 (PEM). */
        public Builder certificate(Path certificateFile, Path keyFile) {
            this.certificateFile = certificateFile;
            this.certificateKeyFile = keyFile;
            return this;
        }

        /** TLS in place of that by files. */
        public Builder sslContext(SSLContext context) {
            sslContext = context;
            return this;
        }

        /** The time for a call with all its attempts; 30 seconds by default. */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** How long one attempt waits for a node that says nothing; 5 seconds by default. */
        public Builder attemptTimeout(Duration timeout) {
            attemptTimeout = timeout;
            return this;
        }

        /** How long to wait for a connection; 2 seconds by default. */
        public Builder connectTimeout(Duration timeout) {
            connectTimeout = timeout;
            return this;
        }

        /** The environment: its name stands with a dot before each definition key. Null and {@code default} have no prefix. */
        public Builder environment(String name) {
            environment = name;
            return this;
        }

        /** The name by which a rollout knows this client; the host name by default. Null: it sees no candidates. */
        public Builder reader(String name) {
            reader = name;
            hasReader = true;
            return this;
        }

        /** The labels by which a rollout chooses this client, such as {@code ring} and {@code canary}. */
        public Builder labels(Map<String, String> labels) {
            this.labels = Map.copyOf(labels);
            return this;
        }

        /** The mapper of the program's types. The client uses a copy of it. */
        public Builder mapper(ObjectMapper mapper) {
            this.mapper = mapper;
            return this;
        }

        /** The bytes of a response at most; 256 MiB by default. */
        public Builder responseBytesMax(long bytes) {
            responseBytesMax = bytes;
            return this;
        }

        Builder wire(Wire wire, Clock clock) {
            this.wire = wire;
            this.clock = clock;
            return this;
        }

        /** Makes the client. Sends nothing. */
        public ConcordClient build() {
            return new ConcordClient(this);
        }
    }
}
