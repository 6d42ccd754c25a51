package io.github.concordconfig.client;

/** 415: the node does not support the encoding of the body. */
public class UnsupportedCodingException extends RejectedException {
    UnsupportedCodingException(Details details) {
        super(details);
    }
}
