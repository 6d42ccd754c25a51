package io.github.concordconfig.client;

import com.fasterxml.jackson.core.JsonPointer;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Data to change and write back where the key may not see all of them.
 *
 * <p>In place of each secret value stands a marker that keeps it. Which value that is, the service knows by the place alone.
 * So a marker names its place until it is written, and is not written at another one.
 *
 * <p>A type of the program has no room for a marker: it has null. Outside of lists, the place alone says then what is kept.
 * In a list it does only as long as the list is as it was.
 *
 * <p><b>Invariant:</b> a secret value that nobody saw stays where it is, or the write is rejected before it is sent.
 */
final class Secrets {
    private static final String KEEP = "$concord-keep";
    /** What the list of places ends with if there are more. The service rejects their nulls. */
    private static final String MORE = "...";

    private Secrets() {}

    static JsonNode marked(JsonNode data, List<String> redacted) {
        JsonNode made = data.deepCopy();
        for (String place : redacted) {
            if (!place.equals(MORE)) {
                JsonPointer pointer = pointer(place);
                made = set(made, pointer, Json.object().put(KEEP, pointer.toString()));
            }
        }
        return made;
    }

    private static JsonPointer pointer(String place) {
        String plain = place.startsWith("#") ? place.substring(1) : place;
        return JsonPointer.compile(URLDecoder.decode(plain.replace("+", "%2B"), StandardCharsets.UTF_8));
    }

    private static JsonNode set(JsonNode data, JsonPointer place, JsonNode value) {
        if (place.matches()) {
            return value;
        }
        JsonNode parent = data.at(place.head());
        if (parent instanceof ObjectNode object) {
            object.set(place.last().getMatchingProperty(), value);
        } else if (parent instanceof ArrayNode array && array.has(place.last().getMatchingIndex())) {
            array.set(place.last().getMatchingIndex(), value);
        }
        return data;
    }

    /** Data as they are written. Throws {@link InvalidException} if a secret value would come to another place. */
    static JsonNode stored(JsonNode data) {
        return hasMarker(data) ? stored(data, List.of()) : data;
    }

    /** What is written as it is. A marker in it would be stored in place of the secret value. */
    static JsonNode unmarked(JsonNode data) {
        if (hasMarker(data)) {
            throw RejectedException.invalid("data_invalid", "a marker of a secret value is only for the whole data of a "
                    + "config, as put and update write them: leave the value out of a patch to keep it", "data");
        }
        return data;
    }

    private static boolean hasMarker(JsonNode data) {
        if (isMarker(data)) {
            return true;
        }
        for (JsonNode each : data) {
            if (hasMarker(each)) {
                return true;
            }
        }
        return false;
    }

    private static boolean isMarker(JsonNode data) {
        return data.isObject() && data.size() == 1 && data.path(KEEP).isTextual();
    }

    private static JsonNode stored(JsonNode data, List<String> way) {
        if (isMarker(data)) {
            if (!data.get(KEEP).textValue().equals(Json.pointer(way))) {
                throw moved(data.get(KEEP).textValue(), way);
            }
            return Json.object().put(KEEP, true);
        }
        if (data.isObject()) {
            ObjectNode made = Json.object();
            data.properties().forEach(each -> made.set(each.getKey(), stored(each.getValue(), Json.with(way, each.getKey()))));
            return made;
        }
        if (data.isArray()) {
            ArrayNode made = Json.NODES.arrayNode();
            for (int n = 0; n < data.size(); n++) {
                made.add(stored(data.get(n), Json.with(way, String.valueOf(n))));
            }
            return made;
        }
        return data;
    }

    private static InvalidException moved(String place, List<String> way) {
        List<String> location = new ArrayList<>(way);
        location.add(0, "data");
        return RejectedException.invalid("data_invalid", "the secret value of " + place + " can't be moved by a key that "
                + "may not see it: use a JSON Patch, or write it anew", location.toArray(new String[0]));
    }

    /**
     * The data of a type that had null in place of the secret values, with markers for them.
     *
     * @param before the data that the type was made from, with nulls
     */
    static JsonNode kept(JsonNode changed, JsonNode before, List<String> redacted) {
        JsonNode marked = marked(before, redacted);
        JsonNode made = changed.deepCopy();
        for (String each : redacted) {
            if (each.equals(MORE)) {
                throw RejectedException.invalid("data_invalid",
                        "the config has more secret values than a response names: change it by a JSON Patch", "data");
            }
            JsonPointer place = pointer(each);
            JsonPointer list = outermostList(before, place);
            if (list == null) {
                JsonNode now = made.at(place);
                made = now.isNull() || now.isMissingNode() ? set(made, place, Json.object().put(KEEP, place.toString())) : made;
                continue;
            }
            JsonNode now = made.at(list);
            // Removed with all its values, or marked for another place.
            if (now.isMissingNode() || now.isNull() || now.equals(marked.at(list))) {
                continue;
            }
            if (!withoutNulls(now).equals(withoutNulls(before.at(list)))) {
                throw RejectedException.invalid("data_invalid", "the list " + list + " has secret values that the key may "
                        + "not see, and was changed: update the config as JSON, or change it by a JSON Patch", "data");
            }
            made = set(made, list, marked.at(list));
        }
        return made;
    }

    private static JsonPointer outermostList(JsonNode data, JsonPointer place) {
        JsonPointer found = null;
        for (JsonPointer at = place.head(); at != null; at = at.head()) {
            found = data.at(at).isArray() ? at : found;
        }
        return found;
    }

    /** The same without members that are null, as a type may leave them out; numbers by their value. */
    private static JsonNode withoutNulls(JsonNode data) {
        if (data.isObject()) {
            ObjectNode made = Json.object();
            data.properties().forEach(each -> {
                if (!each.getValue().isNull()) {
                    made.set(each.getKey(), withoutNulls(each.getValue()));
                }
            });
            return made;
        }
        if (data.isArray()) {
            ArrayNode made = Json.NODES.arrayNode();
            data.forEach(each -> made.add(withoutNulls(each)));
            return made;
        }
        return data.isNumber() && !data.asText().contains("e") && !data.asText().contains("E")
                ? Json.NODES.pojoNode(data.decimalValue().stripTrailingZeros()) : data;
    }
}
