package io.github.concordconfig.client;

/** 413: the body, the data or the batch is too large. */
public class TooLargeException extends RejectedException {
    TooLargeException(Details details) {
        super(details);
    }
}
