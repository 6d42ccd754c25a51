package io.github.concordconfig.testing;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.Collections;
import java.util.ArrayList;
import java.util.List;

/** Passes connections on to a node. While it is silent, it takes bytes and connections and passes nothing on. */
final class Proxy implements AutoCloseable {
    private final ServerSocket listener;
    private final URI node;
    private final List<Socket> sockets = Collections.synchronizedList(new ArrayList<>());
    private volatile boolean isSilent;

    Proxy(String url) throws IOException {
        node = URI.create(url);
        listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        run(this::accept);
    }

    String url() {
        return "http://127.0.0.1:" + listener.getLocalPort();
    }

    void silent(boolean isSilent) {
        this.isSilent = isSilent;
    }

    private interface Task {
        void run() throws IOException;
    }

    private static void run(Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (IOException error) {
                // One side has left.
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() throws IOException {
        while (true) {
            Socket near = listener.accept();
            Socket far = new Socket(node.getHost(), node.getPort());
            sockets.addAll(List.of(near, far));
            run(() -> pass(near, far));
            run(() -> pass(far, near));
        }
    }

    private void pass(Socket from, Socket to) throws IOException {
        InputStream in = from.getInputStream();
        OutputStream out = to.getOutputStream();
        byte[] part = new byte[1 << 16];
        for (int count = in.read(part); count >= 0; count = in.read(part)) {
            if (!isSilent) {
                out.write(part, 0, count);
            }
        }
        to.shutdownOutput();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        for (Socket each : List.copyOf(sockets)) {
            each.close();
        }
    }
}
