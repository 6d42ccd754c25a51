package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import io.github.concordconfig.client.Requests.Parameter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Which configs or definitions a list has, and in which order. It is immutable: each method returns another one.
 *
 * <pre>{@code Query.where("plan", List.of("pro", "free")).and("seats[gte]", 2).sortBy("seats")}</pre>
 *
 * <p>A filter has an indexed path, with or without an operator, and a value. A collection matches any of its values, and an
 * empty one matches nothing.
 */
public final class Query {
    private static final Pattern OPERATOR = Pattern.compile("(.*[^\\\\])\\[([a-z]+)\\]", Pattern.DOTALL);
    private static final Set<String> PARAMETERS_OF_LISTS = Set.of("page", "limit", "sort_by", "sort_order", "search",
            "consistency", "max_staleness_ms", "min_revision", "cursor", "include", "fields", "revision", "pretty", "raw", "upsert",
            "definition", "from", "initial", "prev", "wait");
    private static final Query ALL = new Query(List.of(), Map.of(), 200);

    private final List<Parameter> filters;
    private final Map<String, String> shape;
    private final int pageSize;

    private Query(List<Parameter> filters, Map<String, String> shape, int pageSize) {
        this.filters = filters;
        this.shape = shape;
        this.pageSize = pageSize;
    }

    /** Everything. */
    public static Query all() {
        return ALL;
    }

    /** What a filter selects. */
    public static Query where(String path, Object value) {
        return ALL.and(path, value);
    }

    /** What these filters select. */
    public static Query where(Map<String, ?> filters) {
        Query made = ALL;
        for (Map.Entry<String, ?> each : filters.entrySet()) {
            made = made.and(each.getKey(), each.getValue());
        }
        return made;
    }

    /** One more filter. */
    public Query and(String path, Object value) {
        List<Parameter> all = new ArrayList<>(filters);
        all.addAll(filter(path, value));
        return new Query(List.copyOf(all), shape, pageSize);
    }

    /** Only keys with this text. */
    public Query search(String text) {
        return text.isEmpty() ? this : with("search", text);
    }

    /** The path to sort by; without one, by the time of the last change. */
    public Query sortBy(String path) {
        return with("sort_by", path);
    }

    /** The smallest first. */
    public Query ascending() {
        return with("sort_order", "asc");
    }

    /** The greatest first, as without this. */
    public Query descending() {
        return with("sort_order", "desc");
    }

    /** How many records a response has; 200 without this. */
    public Query pageSize(int size) {
        return new Query(filters, shape, size);
    }

    private Query with(String name, String value) {
        Map<String, String> all = new LinkedHashMap<>(shape);
        all.put(name, value);
        return new Query(filters, all, pageSize);
    }

    int pageSize() {
        return pageSize;
    }

    List<Parameter> filters() {
        return filters;
    }

    List<Parameter> parameters() {
        List<Parameter> made = new ArrayList<>();
        shape.forEach((name, value) -> made.add(new Parameter(name, value)));
        made.addAll(filters);
        return made;
    }

    /** A filter as parameters: a path with the name of a parameter is marked, and no value is left out. */
    private static List<Parameter> filter(String given, Object value) {
        Matcher found = OPERATOR.matcher(given);
        boolean hasOperator = found.matches();
        String mark = PARAMETERS_OF_LISTS.contains(hasOperator ? found.group(1) : given) ? "data." : "";
        String name = mark + given;
        String path = mark + (hasOperator ? found.group(1) : given);
        boolean isAny = !hasOperator || found.group(2).equals("in");
        if (!(value instanceof Collection<?> values)) {
            // A text of `[in]` has its values between commas, as in the API.
            return List.of(new Parameter(name, text(name, value)));
        }
        if (!values.isEmpty()) {
            // Not `[in]`: there, a comma in a text would part it.
            String sent = isAny ? path : name;
            return values.stream().map(each -> new Parameter(sent, text(name, each))).toList();
        }
        if (!isAny) {
            throw new IllegalArgumentException(
                    "the filter '" + name + "' has an empty list, which only equality and [in] accept");
        }
        return List.of(new Parameter(path + "[exists]", "true"), new Parameter(path + "[exists]", "false"));
    }

    private static String text(String name, Object value) {
        try {
            JsonNode data = Json.of(value, Json.MODELS);
            return data.isTextual()
                    ? data.textValue()
                    : new String(Json.bytes(data), StandardCharsets.UTF_8);
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException(
                    "the filter '" + name + "' has a value that JSON can't express: " + error.getMessage(), error);
        }
    }
}
