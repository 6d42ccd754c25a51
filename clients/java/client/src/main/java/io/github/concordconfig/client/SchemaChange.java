package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import java.util.ArrayList;
import java.util.List;

/**
 * What a new schema breaks.
 *
 * @param breakingCount how many configs do not fit
 * @param breaking the first of them, with their errors
 * @param isDryRun whether nothing was stored
 * @param revision the revision of the definition; 0 in a dry run
 * @param warnings parts of the request that had no effect
 */
public record SchemaChange(int breakingCount, List<JsonNode> breaking, boolean isDryRun, long revision,
        List<String> warnings) {

    static SchemaChange of(Answer answer) {
        JsonNode data = answer.data() == null ? MissingNode.getInstance() : answer.data();
        List<JsonNode> breaking = new ArrayList<>();
        data.path("breaking").forEach(each -> breaking.add(Json.frozen(each)));
        return new SchemaChange(data.path("breaking_count").asInt(), List.copyOf(breaking), answer.isDryRun(), answer.etag(),
                answer.warnings());
    }
}
