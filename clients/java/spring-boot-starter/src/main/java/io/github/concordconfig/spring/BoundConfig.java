package io.github.concordconfig.spring;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * A config whose data are properties.
 *
 * @param prefix what stands before the names of its members
 */
record BoundConfig(String prefix, String definition, String key) {
    /** By a property {@code concord.bind.<prefix>=<definition>/<key>}. */
    static BoundConfig of(String prefix, String name) {
        int slash = name.indexOf('/');
        if (slash < 1 || slash == name.length() - 1) {
            throw new IllegalArgumentException(
                    "concord.bind." + prefix + " is '" + name + "': expected the name of a config, as in limits/acme");
        }
        return new BoundConfig(prefix, name.substring(0, slash), name.substring(slash + 1));
    }

    /** The data as properties: {@code {"a": {"b": [1]}}} is {@code prefix.a.b[0]=1}. */
    Map<String, Object> properties(JsonNode data) {
        Map<String, Object> made = new LinkedHashMap<>();
        flatten(prefix, data, made);
        return made;
    }

    private static void flatten(String name, JsonNode data, Map<String, Object> made) {
        if (data.isObject()) {
            data.properties().forEach(each -> {
                // A name with other characters, such as the key of a map, stands in brackets.
                String member = each.getKey();
                boolean isPlain = member.matches("[\\p{L}\\p{N}_-]+");
                flatten(isPlain ? name + "." + member : name + "[" + member + "]", each.getValue(), made);
            });
        } else if (data.isArray()) {
            for (int n = 0; n < data.size(); n++) {
                flatten(name + "[" + n + "]", data.get(n), made);
            }
            if (data.isEmpty()) {
                made.put(name, "");
            }
        } else if (!data.isNull()) {
            made.put(name, data.isBoolean() ? (Object) data.booleanValue() : data.asText());
        }
    }
}
