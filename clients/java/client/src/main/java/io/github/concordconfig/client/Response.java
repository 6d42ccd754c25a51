package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Map;

/**
 * The response to {@link ConcordClient#request}: a success, or 304.
 *
 * @param status the HTTP status
 * @param headers the headers; their names are in lower case
 * @param data the member {@code data} of the body, or the body; null without a body
 * @param node the URL of the node that responded
 * @param warnings parts of the request that had no effect
 */
public record Response(int status, Map<String, String> headers, JsonNode data, String node, List<String> warnings) {}
