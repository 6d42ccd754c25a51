package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/**
 * The environment of a client: put with a dot before the definition keys of requests, and taken off those of responses.
 *
 * <p>It is done once, where requests go out and responses come in, so that no request can be forgotten. Without a
 * definition, lists and watches are of all definitions of the environment. {@code clients/cases.json} has the routes.
 *
 * <p><b>Invariants:</b> a client with an environment reads and writes no definition outside of it. Data, schemas and
 * patches are never changed.
 */
final class Environment {
    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9][A-Za-z0-9_~-]{0,63}");
    private static final String DEFINITIONS = "/api/v1/config_definition";
    private static final String BELOW = DEFINITIONS + "/";
    private static final String KEY = "config_definition_key";
    private static final String CHANGE_REQUESTS = "/api/v1/change_request";
    /** What is of all definitions without the parameter {@code definition}. */
    private static final Set<String> ALL =
            Set.of("/api/v1/deleted_definition", "/api/v1/config", "/api/v1/watch", "/api/v1/changes");
    private static final Set<String> RESULTS =
            Set.of("/api/v1/deleted_definition", "/api/v1/config", "/api/v1/read", "/api/v1/batch");

    final String name;
    private final String prefix;

    private Environment(String name) {
        this.name = name;
        this.prefix = name + ".";
    }

    /** Null for no environment, and for {@code default}, which has no prefix. */
    static Environment of(String name) {
        if (name == null) {
            return null;
        }
        if (!NAME.matcher(name).matches()) {
            throw new IllegalArgumentException("'" + name + "' is not the name of an environment: expected 1 to 64 "
                    + "characters of A-Z a-z 0-9 _ ~ -, the first a letter or a digit");
        }
        return name.equals("default") ? null : new Environment(name);
    }

    /** The request with the whole keys. */
    Request enter(Request request) {
        return request.with(entered(request.method(), request.target()), enteredBody(request));
    }

    private String entered(String method, String target) {
        String path = path(target);
        String entered = path.startsWith(BELOW) && !path.equals(BELOW) ? BELOW + prefix + path.substring(BELOW.length()) : path;
        boolean isAll = isListOfAll(method, path);
        // The lines of the audit log are about requests, many of which are about no definition.
        if (!isAll && !isAudit(path)) {
            return entered + target.substring(path.length());
        }
        List<String> pairs = pairs(target);
        List<String> sent = pairs.stream().map(this::prefixed).collect(Collectors.toCollection(ArrayList::new));
        if (isAll && sent.equals(pairs) && !isOfChangeRequests(pairs)) {
            sent.add("definition=" + prefix + "*");
        }
        return entered + (sent.isEmpty() ? "" : "?" + String.join("&", sent));
    }

    private byte[] enteredBody(Request request) {
        String path = plain(request.target());
        boolean isPost = request.method().equals("POST");
        boolean isDefinition = isPost && path.equals(DEFINITIONS);
        List<String> lists = List.of();
        if ((isPost || request.method().equals("PUT")) && path.startsWith(CHANGE_REQUESTS)) {
            lists = List.of("operations");
        } else if (isPost && path.equals("/api/v1/read")) {
            lists = List.of("configs");
        } else if (isPost && path.equals("/api/v1/batch")) {
            lists = List.of("operations", "if", "then", "else");
        }
        if (request.body() == null || (lists.isEmpty() && !isDefinition)) {
            return request.body();
        }
        JsonNode body;
        try {
            body = Json.parse(request.body());
        } catch (IOException error) {
            // A node rejects it.
            return request.body();
        }
        if (isDefinition) {
            enterKey(body);
        }
        lists.forEach(name -> body.path(name).forEach(this::enterKey));
        return Json.bytes(body);
    }

    private void enterKey(JsonNode value) {
        if (value instanceof ObjectNode record && record.path(KEY).isTextual()) {
            record.put(KEY, prefix + record.get(KEY).textValue());
        }
    }

    /** Makes the data of a response those of the request. {@code target} is that of the program's own request. */
    void leave(String method, String target, JsonNode data) {
        String path = plain(target);
        boolean isRead = method.equals("GET") || method.equals("HEAD");
        if (data == null || !data.isObject()) {
            return;
        }
        if (RESULTS.contains(path) || (path.equals(DEFINITIONS) && isRead)) {
            leaveList(data.path("results"));
        } else if (path.equals("/api/v1/changes")) {
            data.path("events").forEach(this::leaveEvent);
        } else if (path.equals(DEFINITIONS) || (path.startsWith(BELOW) && (!isOfConfig(path) || method.equals("DELETE")))) {
            // The data of the response of a config are its own, except if it is deleted.
            leaveKey(data);
        }
    }

    /** The same for an event of a watch. */
    void leaveEvent(JsonNode event) {
        for (String each : List.of("changes", "definitions", "configs")) {
            leaveList(event.path(each));
        }
    }

    private void leaveList(JsonNode list) {
        if (list.isArray()) {
            list.forEach(this::leaveKey);
        }
    }

    private void leaveKey(JsonNode value) {
        if (value instanceof ObjectNode record && record.path(KEY).isTextual()) {
            String key = record.get(KEY).textValue();
            record.put(KEY, key.startsWith(prefix) ? key.substring(prefix.length()) : key);
        }
    }

    /** The path of a next page, as a program requests it. */
    String left(String target) {
        String path = path(target);
        String left = path.startsWith(BELOW + prefix) ? BELOW + path.substring(BELOW.length() + prefix.length()) : path;
        if (!isListOfAll("GET", path) && !isAudit(path)) {
            return left + target.substring(path.length());
        }
        return left + "?" + pairs(target).stream().map(this::unprefixed).collect(Collectors.joining("&"));
    }

    private String prefixed(String pair) {
        return pair.startsWith("definition=") && pair.length() > 11 ? "definition=" + prefix + pair.substring(11) : pair;
    }

    private String unprefixed(String pair) {
        // Nodes encode this one character of names in queries.
        for (String start : List.of("definition=" + prefix, "definition=" + prefix.replace("~", "%7E"))) {
            if (pair.startsWith(start)) {
                return "definition=" + pair.substring(start.length());
            }
        }
        return pair;
    }

    private static boolean isListOfAll(String method, String path) {
        boolean isRead = method.equals("GET") || method.equals("HEAD");
        return ALL.contains(plain(path)) || (plain(path).equals(DEFINITIONS) && isRead);
    }

    /**
     * Whether a watch is of change requests, which are of no one definition. Any other value than this one may mean a
     * watch of definitions, and of several values the last one counts.
     */
    private static boolean isOfChangeRequests(List<String> pairs) {
        List<String> flags = pairs.stream().filter(pair -> pair.split("=", 2)[0].equals("change_requests")).toList();
        return !flags.isEmpty() && flags.stream().allMatch("change_requests=true"::equals);
    }

    private static boolean isAudit(String path) {
        return plain(path).equals("/api/v1/audit");
    }

    private static boolean isOfConfig(String path) {
        String[] parts = path.substring(BELOW.length()).split("/");
        return parts.length > 1 && parts[1].equals("config");
    }

    static String path(String target) {
        int mark = target.indexOf('?');
        return mark < 0 ? target : target.substring(0, mark);
    }

    static List<String> pairs(String target) {
        int mark = target.indexOf('?');
        return mark < 0 || mark == target.length() - 1 ? List.of() : Arrays.asList(target.substring(mark + 1).split("&"));
    }

    /** The path. Nodes ignore a slash at its end. */
    static String plain(String target) {
        String path = path(target);
        return path.endsWith("/") ? path.substring(0, path.length() - 1) : path;
    }
}
