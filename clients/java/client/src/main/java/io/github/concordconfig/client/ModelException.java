package io.github.concordconfig.client;

import java.util.List;

/** Data do not fit the type that they are read as. */
public class ModelException extends ConcordException {
    private final transient List<String> paths;

    /** For a function of {@link Cache#typed(String, String, java.util.function.Function)} that rejects a config. */
    public ModelException(String message, List<String> paths, Throwable cause) {
        super(message, cause);
        this.paths = List.copyOf(paths);
    }

    /** The JSON pointers of what does not fit. */
    public List<String> paths() {
        return paths;
    }
}
