package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;

/**
 * What a write of one record did.
 *
 * @param revision the revision that it made; 0 in a dry run and after a deletion, which leaves no record
 * @param stateRevision a revision at which the write is there, for {@link ReadOption#minRevision}
 * @param data the content as it is stored
 * @param isCreated whether it created the record
 * @param isDryRun whether nothing was stored
 * @param node the URL of the node that responded
 * @param warnings parts of the request that had no effect, or that are missing from the response
 */
public record Written(long revision, long stateRevision, JsonNode data, boolean isCreated, boolean isDryRun, String node,
        List<String> warnings) {

    static Written of(Answer answer) {
        return new Written(answer.etag(), answer.revision(), answer.data() == null ? null : Json.frozen(answer.data()),
                answer.status() == 201, answer.isDryRun(), answer.node(), answer.warnings());
    }
}
