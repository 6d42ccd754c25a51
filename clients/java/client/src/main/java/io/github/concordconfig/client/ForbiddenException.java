package io.github.concordconfig.client;

/** 403: the access key lacks the permission. The response is the same whether the record exists or not. */
public class ForbiddenException extends RejectedException {
    ForbiddenException(Details details) {
        super(details);
    }
}
