/** A client of Concord, a replicated service for typed configuration. Begin with {@link ConcordClient}. */
package io.github.concordconfig.client;
