import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryOneTime;

/**
 * Locks with Curator for tests that are written in Go. It listens on the port that is its argument.
 * Each connection is a client of Curator with a session of its own. Its first line has the address
 * of the server and the session timeout in ms; the end of the connection closes the client. Each
 * further line is a call, and is answered with a line: "ok", "held", what was asked for, or the
 * error.
 */
public class Curator {
	public static void main(String[] args) throws IOException {
		try (ServerSocket server = new ServerSocket(Integer.parseInt(args[0]), 1000, InetAddress.getByName("127.0.0.1"))) {
			for (;;) {
				Socket s = server.accept();
				s.setTcpNoDelay(true);
				new Thread(() -> serve(s)).start(); // a lock belongs to a thread
			}
		}
	}

	private static void serve(Socket s) {
		CuratorFramework client = null;
		try (s) {
			BufferedReader in = new BufferedReader(new InputStreamReader(s.getInputStream(), StandardCharsets.UTF_8));
			OutputStream out = s.getOutputStream();
			String hello = in.readLine();
			if (hello == null) {
				return;
			}
			if (hello.equals("version")) {
				answer(out, "curator " + version());
				return;
			}
			String[] to = hello.split(" ");
			client = CuratorFrameworkFactory.newClient(to[0], Integer.parseInt(to[1]), 15000, new RetryOneTime(100));
			client.start();
			client.blockUntilConnected();
			answer(out, "ok");
			Map<String, InterProcessMutex> locks = new HashMap<>();
			for (String line = in.readLine(); line != null; line = in.readLine()) {
				try {
					String[] words = line.split(" ", 2);
					if (words[0].equals("close-day")) {
						closeDay(client, words[1], () -> {
							answer(out, "in");
							in.readLine();
						});
						answer(out, "ok");
						continue;
					}
					answer(out, call(client, locks, words));
				} catch (Exception e) {
					answer(out, e.toString().replace('\n', ' '));
				}
			}
		} catch (IOException | InterruptedException e) {
			// the connection is gone
		} finally {
			if (client != null) {
				client.close();
			}
		}
	}

	/** The work of closeDay. The call "close-day" answers "in", and works until the next line. */
	interface Work {
		void run() throws Exception;
	}

	/** The function of docs/from-curator.md before the move. */
	static void closeDay(CuratorFramework client, String shop, Work work) throws Exception {
		InterProcessMutex lock = new InterProcessMutex(client, "/locks/day-" + shop);
		if (!lock.acquire(5, TimeUnit.SECONDS)) {
			throw new TimeoutException("the day of " + shop + " is being closed elsewhere");
		}
		try {
			work.run(); // a listener of the client has to stop it if the session is lost
		} finally {
			lock.release();
		}
	}

	/** Makes a call. Its argument is the path of a lock, or for "revoke" that of a node. */
	private static String call(CuratorFramework client, Map<String, InterProcessMutex> locks, String[] line) throws Exception {
		String what = line[0], path = line[1];
		switch (what) {
		case "revoke":
			Revoker.attemptRevoke(client, path);
			return "ok";
		case "participants":
			return String.join(" ", new InterProcessMutex(client, path).getParticipantNodes());
		}
		String kind = what.substring(0, 1); // of "write-lock", say; a plain mutex has none
		String verb = what.substring(what.indexOf('-') + 1);
		InterProcessMutex lock = locks.computeIfAbsent(what.contains("-") ? kind + path : path, key -> {
			if (!what.contains("-")) {
				return new InterProcessMutex(client, path);
			}
			InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
			return kind.equals("r") ? both.readLock() : both.writeLock();
		});
		switch (verb) {
		case "lock":
			lock.acquire();
			return "ok";
		case "try":
			return lock.acquire(0, TimeUnit.MILLISECONDS) ? "ok" : "held";
		case "unlock":
			lock.release();
			return "ok";
		}
		return "unknown call " + what;
	}

	/** The version of Curator, as its jar states it. */
	private static String version() throws IOException {
		try (InputStream in = Curator.class.getResourceAsStream("/META-INF/maven/org.apache.curator/curator-recipes/pom.properties")) {
			Properties p = new Properties();
			if (in != null) {
				p.load(in);
			}
			return p.getProperty("version", "5");
		}
	}

	private static void answer(OutputStream out, String line) throws IOException {
		out.write((line + "\n").getBytes(StandardCharsets.UTF_8));
	}
}
