import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Locks and unlocks with Curator for a program that is not written in Java. It listens on the port
 * that is its argument. The first line of a connection says what it is for:
 *
 * version               is answered with Curator's
 * close CLIENT          closes a client
 * CLIENT ADDRESS NAME TIMEOUT   is one locker of a client. The first locker makes the client, with
 *                       a session timeout in ms. Each line that follows is "lock" or "unlock", and
 *                       is answered with a line: "ok", or the error
 */
public class Curator {
	private static final Map<String, CuratorFramework> clients = new ConcurrentHashMap<>();

	public static void main(String[] args) throws IOException {
		try (ServerSocket server = new ServerSocket(Integer.parseInt(args[0]), 1000, InetAddress.getByName("127.0.0.1"))) {
			for (;;) {
				Socket s = server.accept();
				s.setTcpNoDelay(true);
				new Thread(() -> serve(s)).start(); // an InterProcessMutex belongs to a thread
			}
		}
	}

	private static void serve(Socket s) {
		try (s) {
			BufferedReader in = new BufferedReader(new InputStreamReader(s.getInputStream(), StandardCharsets.UTF_8));
			OutputStream out = s.getOutputStream();
			String hello = in.readLine();
			if (hello == null) {
				return;
			}
			String[] words = hello.split(" ");
			if (words[0].equals("version")) {
				answer(out, "curator " + version());
				return;
			}
			if (words[0].equals("close")) {
				CuratorFramework c = clients.remove(words[1]);
				if (c != null) {
					c.close();
				}
				answer(out, "ok");
				return;
			}
			CuratorFramework client = clients.computeIfAbsent(words[0], id -> {
				CuratorFramework c = CuratorFrameworkFactory.newClient(words[1], Integer.parseInt(words[3]), 15000, new ExponentialBackoffRetry(100, 5));
				c.start();
				return c;
			});
			client.blockUntilConnected();
			InterProcessMutex mutex = new InterProcessMutex(client, "/curator/" + words[2]);
			answer(out, "ok");
			for (String line = in.readLine(); line != null; line = in.readLine()) {
				try {
					if (line.equals("lock")) {
						mutex.acquire();
					} else {
						mutex.release();
					}
					answer(out, "ok");
				} catch (Exception e) {
					answer(out, e.toString());
				}
			}
		} catch (IOException | InterruptedException e) {
			// the connection is gone
		}
	}

	/** The version of Curator, as the jar states it. */
	private static String version() throws IOException {
		try (InputStream in = Curator.class.getResourceAsStream("/META-INF/maven/org.apache.curator/curator-recipes/pom.properties")) {
			if (in == null) {
				return "5";
			}
			Properties p = new Properties();
			p.load(in);
			return p.getProperty("version", "5");
		}
	}

	private static void answer(OutputStream out, String line) throws IOException {
		out.write((line + "\n").getBytes(StandardCharsets.UTF_8));
	}
}
