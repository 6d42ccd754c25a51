package io.github.concordconfig.client;

/** The cache has nothing yet: no node has responded, and there is no usable file. */
public class NotReadyException extends ConcordException {
    NotReadyException(String message) {
        super(message, null);
    }
}
