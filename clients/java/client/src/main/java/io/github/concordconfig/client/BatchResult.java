package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * What a batch or a transaction did.
 *
 * @param revision the revision that it made; 0 in a dry run
 * @param results one for each operation
 * @param isSucceeded whether all conditions of a transaction held; true for a batch
 * @param isDryRun whether nothing was stored
 * @param warnings parts of the request that had no effect
 */
public record BatchResult(long revision, List<OperationResult> results, boolean isSucceeded, boolean isDryRun,
        List<String> warnings) {

    static BatchResult of(Answer answer) {
        List<OperationResult> results = new ArrayList<>();
        JsonNode data = answer.data() == null ? Json.object() : answer.data();
        data.path("results").forEach(each -> {
            String definition = each.path("config_definition_key").asText();
            JsonNode read = each.path("config");
            Optional<Config> config = read.isObject()
                    ? Optional.of(Config.of(definition, read, answer, 0, null, List.of())) : Optional.empty();
            results.add(new OperationResult(each.path("op").asText(), definition, each.path("config_key").asText(null),
                    each.path("created").asBoolean(), config));
        });
        return new BatchResult(data.path("revision").asLong(), List.copyOf(results), data.path("succeeded").asBoolean(true),
                answer.isDryRun(), answer.warnings());
    }
}
