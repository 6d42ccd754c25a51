package io.github.concordconfig.client;

/** 405: the path does not support the method. */
public class MethodNotAllowedException extends RejectedException {
    MethodNotAllowedException(Details details) {
        super(details);
    }
}
