package io.github.concordconfig.client;

/** 401: the access key is missing or invalid. */
public class UnauthorizedException extends RejectedException {
    UnauthorizedException(Details details) {
        super(details);
    }
}
