package io.github.concordconfig.spring;

import org.springframework.context.ApplicationEvent;

/** The properties of a bound config have changed, and fit all types that they are bound to. */
public class ConcordRefreshedEvent extends ApplicationEvent {
    private final String prefix;

    ConcordRefreshedEvent(Object source, String prefix) {
        super(source);
        this.prefix = prefix;
    }

    /** The prefix of the properties. */
    public String prefix() {
        return prefix;
    }
}
