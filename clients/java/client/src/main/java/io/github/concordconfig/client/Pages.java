package io.github.concordconfig.client;

import com.fasterxml.jackson.databind.JsonNode;
import io.github.concordconfig.client.Requests.Parameter;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.function.BiFunction;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * The records of a list, page by page, of one state.
 *
 * <p>If the state of the cursor is gone with its node, the list goes on at the revision of that state, which every node can
 * read.
 */
final class Pages<T> implements Iterator<T> {
    private final Calls calls;
    private final String path;
    private final List<Parameter> parameters;
    private final int pageSize;
    /** The parameter by which the list is read at a revision, or null if it can't be. */
    private final String revisionName;
    private final Duration timeout;
    private final BiFunction<JsonNode, Answer, T> make;
    private final Deque<T> ready = new ArrayDeque<>();
    private String next;
    private Long revision;
    private boolean isCursor;
    private int count, skipped;

    Pages(Calls calls, String path, List<Parameter> parameters, int pageSize, String revisionName, Long revision,
            Duration timeout, BiFunction<JsonNode, Answer, T> make) {
        this.calls = calls;
        this.path = path;
        this.parameters = new ArrayList<>(parameters);
        this.parameters.add(new Parameter("limit", String.valueOf(pageSize)));
        this.pageSize = pageSize;
        this.revisionName = revisionName;
        this.revision = revision;
        this.timeout = timeout;
        this.make = make;
        List<Parameter> first = new ArrayList<>(this.parameters);
        if (revision != null) {
            first.add(new Parameter(revisionName, revision.toString()));
        }
        next = Requests.target(path, first);
    }

    Stream<T> stream() {
        return StreamSupport.stream(Spliterators.spliteratorUnknownSize(this, Spliterator.ORDERED), false);
    }

    @Override
    public boolean hasNext() {
        while (ready.isEmpty() && next != null) {
            load();
        }
        return !ready.isEmpty();
    }

    private void load() {
        Answer answer;
        try {
            answer = calls.call(Request.read(next), timeout);
        } catch (ExpiredException error) {
            if (!isCursor || revisionName == null || revision == null) {
                throw error;
            }
            isCursor = false;
            skipped = count % pageSize;
            List<Parameter> again = new ArrayList<>(parameters);
            // The revision says which state it is, so how fresh it must be is settled.
            again.removeIf(each -> each.name().equals("consistency") || each.name().equals("max_staleness_ms"));
            again.add(new Parameter(revisionName, revision.toString()));
            again.add(new Parameter("page", String.valueOf(count / pageSize + 1)));
            next = Requests.target(path, again);
            return;
        }
        if (revision == null && answer.revision() > 0) {
            revision = answer.revision();
        }
        for (JsonNode record : answer.object().path("results")) {
            if (skipped > 0) {
                skipped--;
            } else {
                count++;
                ready.add(make.apply(record, answer));
            }
        }
        next = next(answer);
        isCursor = true;
    }

    /** The next page, as the response names it: always of this cluster, whatever the header has. */
    private String next(Answer answer) {
        String links = answer.header("link");
        for (String link : links == null ? new String[0] : links.split(", ")) {
            int end = link.indexOf('>');
            if (link.startsWith("</") && end > 0 && link.substring(end).contains("rel=\"next\"")) {
                String target = link.substring(1, end);
                return calls.environment == null ? target : calls.environment.left(target);
            }
        }
        return null;
    }

    @Override
    public T next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        return ready.remove();
    }
}
