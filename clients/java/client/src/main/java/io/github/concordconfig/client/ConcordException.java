package io.github.concordconfig.client;

/**
 * Any error of this client.
 *
 * <p>A write that may have been applied throws {@link UnknownOutcomeException}. Every other error of a write means that
 * it was certainly not applied.
 */
public class ConcordException extends RuntimeException {
    ConcordException(String message, Throwable cause) {
        super(message, cause);
    }
}
