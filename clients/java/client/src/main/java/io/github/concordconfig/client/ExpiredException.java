package io.github.concordconfig.client;

/** 410: the revision, the change or the cursor is no longer retained, or the nodes belong to another cluster. */
public class ExpiredException extends RejectedException {
    ExpiredException(Details details) {
        super(details);
    }
}
