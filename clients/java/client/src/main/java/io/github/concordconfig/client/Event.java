package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;

/**
 * All changes of one revision. Without changes, it says that the watch has handed out everything up to the revision.
 *
 * @param revision the revision
 * @param changes the changes
 * @param at when they were made, or null
 * @param by the id of the key that made them, or null
 * @param reason why they were made, or null
 * @param node the URL of the node that responded, or null
 */
public record Event(long revision, List<Change> changes, Instant at, String by, String reason, String node)
        implements WatchItem {

    static Event of(JsonNode record, String node) {
        long revision = record.path("revision").asLong();
        List<Change> changes = new ArrayList<>();
        record.path("changes").forEach(each -> changes.add(Change.of(each, revision, node)));
        return new Event(revision, List.copyOf(changes), Config.time(record, "at"), record.path("by").asText(null),
                record.path("reason").asText(null), node);
    }
}
