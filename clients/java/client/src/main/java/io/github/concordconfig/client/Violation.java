package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;

/**
 * One of the reasons of a rejection.
 *
 * @param type the class of the error, such as {@code conflict_error}
 * @param code the exact reason, such as {@code config_exists}; empty if the node gives none. Programs may depend on it
 * @param message for people; texts may change
 * @param location the path to what is wrong, outermost first: names of members and numbers of elements
 */
public record Violation(String type, String code, String message, List<String> location) {
    public Violation {
        location = List.copyOf(location);
    }

    /** The location as a JSON pointer, such as {@code /data/limits/0/name}; empty for the whole. */
    public String path() {
        return Json.pointer(location);
    }

    @Override
    public String toString() {
        return location.isEmpty() ? message : path() + ": " + message;
    }

    /** The reasons in the body of a rejection; none if the body is not one of Concord's. */
    static List<Violation> of(JsonNode body) {
        JsonNode listed = body.path("errors");
        listed = listed.isArray() && !listed.isEmpty() ? listed : body.path("detail");
        List<Violation> found = new ArrayList<>();
        if (listed.isArray()) {
            for (JsonNode item : listed) {
                if (item.path("msg").isTextual()) {
                    List<String> location = new ArrayList<>();
                    item.path("loc").forEach(part -> location.add(part.asText()));
                    found.add(new Violation(
                            item.path("type").asText(), item.path("code").asText(), item.path("msg").asText(), location));
                }
            }
        }
        return found;
    }
}
