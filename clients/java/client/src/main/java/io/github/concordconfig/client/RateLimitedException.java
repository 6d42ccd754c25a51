package io.github.concordconfig.client;

/** 429 until the time of the call was up. A write was certainly not applied. */
public class RateLimitedException extends RejectedException {
    RateLimitedException(Details details) {
        super(details);
    }
}
