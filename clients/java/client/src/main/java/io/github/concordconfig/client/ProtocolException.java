package io.github.concordconfig.client;

/** The response to a read is not that of a node of Concord. */
public class ProtocolException extends ConcordException {
    ProtocolException(String message, Throwable cause) {
        super(message, cause);
    }
}
