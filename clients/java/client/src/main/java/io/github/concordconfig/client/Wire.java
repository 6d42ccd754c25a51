package io.github.concordconfig.client;

import java.util.Map;

/** Sends one copy of a request to one node. */
interface Wire extends AutoCloseable {
    /** What came of it. */
    sealed interface Reply permits Received, Failed {}

    /** A response; the names of headers are in lower case. */
    record Received(int status, Map<String, String> headers, byte[] body) implements Reply {}

    /**
     * No response.
     *
     * @param mayBeApplied whether the node may have got the request
     */
    record Failed(String text, boolean mayBeApplied) implements Reply {}

    /**
     * Sends a request.
     *
     * @param silence how long the node may send nothing
     * @param timeout how long the whole response may take; one that goes to a sink may take longer
     */
    Reply send(String node, Request request, long silence, long timeout, Scope scope);

    @Override
    void close();
}
