package io.github.concordconfig.client;

import java.util.List;

/**
 * A page of a list.
 *
 * @param items the records
 * @param page its number, from 1
 * @param limit the number of records at most
 * @param total how many there are on all pages
 * @param stateRevision the revision of the state
 * @param warnings parts of the request that had no effect
 */
public record Page<T>(List<T> items, int page, int limit, long total, long stateRevision, List<String> warnings) {}
