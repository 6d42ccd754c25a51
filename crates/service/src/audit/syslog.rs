//! Sends the lines of the audit log to a syslog server, by RFC 5424.
//!
//! A thread reads the files behind the writer, so nothing of it concerns a request, and a server that is away costs no
//! memory: the thread goes on where it stopped. Only lines that are on the disk are sent, so that the numbers that the
//! server has seen are never given to other lines after a power loss.
//!
//! Syslog has no acknowledgements. The thread takes a line for delivered once [`SETTLING`] has passed on a connection that
//! is still up: within that time TCP reports data that the other side did not take. After a failure, and after a start, it
//! sends again what came later. The place up to which all is delivered is in the file `shipped` beside the log.
//!
//! ```text
//! <110>1 2026-03-01T12:00:00.000001Z host concord node-3 audit - {"seq":18,…}
//! ```
//!
//! Over TCP, each message has its length before it (RFC 6587, octet counting). In UDP and in a Unix socket it is a datagram.
//!
//! **Invariants:** each call of the thread has a time limit, except the look-up of a host name, which the resolver limits. A
//! line that the node removes before it was sent is counted, and a line of the log says so.

use std::{
    collections::VecDeque,
    fmt,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs as _, UdpSocket},
    os::unix::{
        fs::{FileExt as _, OpenOptionsExt as _},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    sync::{
        PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::net::sockopt::set_tcp_user_timeout;

use super::{
    SharedStatus,
    files::list,
    line::StoredLine,
    page::{FilePlace, LinesAfter, lines_after},
};
use concord_net::NodeId;

/// The file with the number of the last line that was delivered.
const SHIPPED: &str = "shipped";
/// Facility 13 (log audit), severity 6 (informational).
const PRIORITY: u8 = 13 * 8 + 6;
/// How often the thread looks for new lines.
const POLL: Duration = Duration::from_millis(100);
/// How long a connection may take, and a message that the server does not take.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// A line was delivered if its connection is still up so long after it was sent: longer than `SEND_TIMEOUT`, after which TCP
/// gives up on data that was not confirmed.
const SETTLING: Duration = Duration::from_secs(15);
/// How often the place is written.
const SAVING: Duration = Duration::from_secs(1);
/// The first pause after a failure, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long a server may be away before it is an alarm: shorter than that, it is a restart.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// After so many datagrams the thread pauses: a server drops what its buffer does not hold, some 200 KB by default.
const UDP_BURST: usize = 32;
const UDP_PAUSE: Duration = Duration::from_millis(5);
/// The greatest payload of a UDP datagram over IPv4.
const UDP_BYTES_MAX: usize = 65_507;

/// Where the lines are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyslogTarget {
    /// A server that takes datagrams.
    Udp(String),
    /// A server that takes connections.
    Tcp(String),
    /// A socket of this host.
    Unix(PathBuf),
}

impl fmt::Display for SyslogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "udp://{address}"),
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl SyslogTarget {
    /// Parses a target. `check_address` checks `host:port`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str, check_address: fn(&str) -> Result<(), String>) -> Result<Self, String> {
        let expected = "expected `udp://host:port`, `tcp://host:port` or `unix:///path`";
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("`{text}` is no syslog server: {expected}"));
        };
        match scheme {
            "udp" | "tcp" => {
                check_address(rest)?;
                Ok(if scheme == "udp" { Self::Udp(rest.into()) } else { Self::Tcp(rest.into()) })
            }
            "unix" if rest.starts_with('/') => Ok(Self::Unix(rest.into())),
            "unix" => Err(format!("the path of `{text}` is not absolute: {expected}")),
            "tls" => Err("TLS is not supported: send to a syslog relay on this host, which encrypts".into()),
            _ => Err(format!("`{scheme}` is unknown: {expected}")),
        }
    }
}

/// What the thread has done, for metrics and alarms.
#[derive(Debug, Default)]
pub(super) struct SyslogStatus {
    /// The last line that was sent.
    pub(super) sent_seq: AtomicU64,
    /// Lines that were sent, repeated ones included.
    pub(super) lines: AtomicU64,
    /// Failed connections and messages.
    pub(super) failures: AtomicU64,
    /// Lines that were removed before they were sent, or are too long.
    pub(super) lost: AtomicU64,
    /// How many of them no line of the log reports yet.
    pub(super) unreported: AtomicU64,
    /// Since when the server is away, and why.
    away: std::sync::Mutex<Option<(Instant, String)>>,
}

impl SyslogStatus {
    fn note(&self, failure: Option<String>) {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        *away = failure.map(|why| (away.as_ref().map_or_else(Instant::now, |(since, _)| *since), why));
    }

    /// Why the server has not taken lines for so long that it is an alarm.
    pub(super) fn failure(&self) -> Option<String> {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.as_ref().filter(|(since, _)| since.elapsed() >= AWAY_MAX).map(|(_, why)| why.clone())
    }

    fn lose(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
        self.unreported.fetch_add(lines, Ordering::Relaxed);
    }
}

/// The thread's state.
pub(super) struct SyslogSender {
    pub(super) target: SyslogTarget,
    pub(super) directory: PathBuf,
    pub(super) node: NodeId,
    /// Gone when the log is closed.
    pub(super) shared: Weak<SharedStatus>,
}

/// A connection to the server, or a socket that is bound to it.
#[derive(Debug)]
enum Sink {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Unix(UnixDatagram),
}

/// How far the lines were sent and delivered.
#[derive(Debug, Default)]
struct Progress {
    /// The last line that was sent.
    sent: u64,
    /// The last line that was delivered.
    settled: u64,
    /// What was sent lately, second by second.
    recent: VecDeque<SentLines>,
    /// The place of the line after the last one that was sent.
    place: Option<FilePlace>,
}

/// The lines of about a second.
#[derive(Debug)]
struct SentLines {
    begun: Instant,
    /// When the last of them was sent.
    ended: Instant,
    /// The number of the last of them.
    last: u64,
}

impl Progress {
    fn from(settled: u64) -> Self {
        Self { sent: settled, settled, ..Self::default() }
    }

    fn sent(&mut self, seq: u64, place: Option<FilePlace>, now: Instant) {
        (self.sent, self.place) = (seq, place);
        match self.recent.back_mut() {
            Some(lines) if now.duration_since(lines.begun) < SAVING => (lines.ended, lines.last) = (now, seq),
            Some(_) | None => self.recent.push_back(SentLines { begun: now, ended: now, last: seq }),
        }
    }

    /// The lines up to this one no longer exist. They are not looked for again after a failure: they would be counted each
    /// time.
    fn skip(&mut self, upto: u64) {
        *self = Self::from(upto);
    }

    /// Begins again after the last line that was delivered.
    fn restart(&mut self) {
        *self = Self::from(self.settled);
    }

    fn settle(&mut self, now: Instant) {
        let is_due = |lines: &&SentLines| now.duration_since(lines.ended) >= SETTLING;
        while let Some(lines) = self.recent.front().filter(is_due) {
            self.settled = lines.last;
            self.recent.pop_front();
        }
    }
}

impl SyslogSender {
    /// Sends lines until the log is closed.
    pub(super) fn run(self) {
        let host = host_name();
        let mut progress = Progress::from(read_shipped(&self.directory));
        // Written at once, so that lines that are removed before the server was ever there count as lost.
        let (mut sink, mut pause, mut saved) = (None, PAUSE_MIN, (u64::MAX, Instant::now()));
        loop {
            let Some(shared) = self.shared.upgrade() else { return };
            match self.step(&shared, &mut sink, &mut progress, &host) {
                Ok(has_sent) => {
                    if sink.is_some() {
                        pause = PAUSE_MIN;
                        self.note_success(&shared);
                    }
                    if !has_sent {
                        thread::sleep(POLL);
                    }
                }
                Err(error) => {
                    self.note_failure(&shared, &error);
                    sink = None;
                    progress.restart();
                    drop(shared);
                    thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            if saved.0 != progress.settled && (saved.0 == u64::MAX || saved.1.elapsed() >= SAVING) {
                saved = (progress.settled, Instant::now());
                if let Err(error) = write_shipped(&self.directory, progress.settled) {
                    // The lines are sent again after the next start.
                    tracing::debug!(%error, "the place in the audit log could not be stored");
                }
            }
        }
    }

    /// Sends the next lines, if there are any. Returns whether there were.
    fn step(
        &self,
        shared: &SharedStatus,
        sink: &mut Option<Sink>,
        progress: &mut Progress,
        host: &str,
    ) -> io::Result<bool> {
        let status = &shared.syslog;
        if let Some(sink) = sink {
            sink.check()?;
        }
        progress.settle(Instant::now());
        let Some(head) = shared.durable_head() else { return Ok(false) };
        if progress.sent > head.seq {
            // The log was replaced. All of it is new to the server.
            *progress = Progress::from(before_first(&self.directory));
        }
        if progress.sent == head.seq {
            return Ok(false);
        }
        let found = lines_after(&self.directory, progress.sent, head.seq, progress.place.as_ref())?;
        let LinesAfter { lines, last, place, removed } = found;
        if removed > 0 {
            status.lose(removed);
            progress.skip(progress.sent + removed);
            let node = self.node;
            tracing::error!(
                node,
                removed,
                "{removed} lines of the audit log were removed before they were sent"
            );
        }
        if lines.is_empty() {
            // A file that was just begun.
            return Ok(false);
        }
        let open = match sink {
            Some(open) => open,
            None => sink.insert(self.connect()?),
        };
        for (place, line) in lines.iter().enumerate() {
            if matches!(open, Sink::Udp(_)) && place % UDP_BURST == UDP_BURST - 1 {
                thread::sleep(UDP_PAUSE);
            }
            if !open.send(&self.message(line, host))? {
                status.lose(1);
            }
        }
        open.check()?;
        status.lines.fetch_add(lines.len() as u64, Ordering::Relaxed);
        status.sent_seq.store(last, Ordering::Relaxed);
        progress.sent(last, place, Instant::now());
        Ok(true)
    }

    fn message(&self, line: &[u8], host: &str) -> Vec<u8> {
        let stored = StoredLine::parse(line);
        let time = stored.as_ref().map_or("-", |stored| &stored.time);
        let head = format!("<{PRIORITY}>1 {time} {host} concord node-{} audit - ", self.node);
        [head.as_bytes(), line].concat()
    }

    fn connect(&self) -> io::Result<Sink> {
        match &self.target {
            SyslogTarget::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path).map_err(|error| match error.raw_os_error() {
                    Some(code) if code == rustix::io::Errno::PROTOTYPE.raw_os_error() => {
                        io::Error::other("it is no datagram socket")
                    }
                    _ => error,
                })?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Sink::Unix(socket))
            }
            SyslogTarget::Udp(address) => each_address(address, |address| {
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(SEND_TIMEOUT))?;
                Ok(Sink::Udp(socket))
            }),
            SyslogTarget::Tcp(address) => each_address(address, |address| {
                let stream = TcpStream::connect_timeout(&address, SEND_TIMEOUT)?;
                stream.set_write_timeout(Some(SEND_TIMEOUT))?;
                // Data that the other side does not confirm ends the connection.
                let timeout = u32::try_from(SEND_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
                set_tcp_user_timeout(&stream, timeout)?;
                Ok(Sink::Tcp(stream))
            }),
        }
    }

    fn note_failure(&self, shared: &SharedStatus, error: &io::Error) {
        shared.syslog.failures.fetch_add(1, Ordering::Relaxed);
        let (target, why) = (&self.target, error.to_string());
        let is_first = shared.syslog.away.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        if is_first {
            tracing::warn!(%target, "the syslog server takes no lines of the audit log: {why}");
        }
        shared.syslog.note(Some(why));
    }

    fn note_success(&self, shared: &SharedStatus) {
        let since = shared.syslog.away.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((since, _)) = since {
            let lasted_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(target = %self.target, lasted_ms, "the syslog server takes lines of the audit log again");
        }
    }
}

impl Sink {
    /// Sends a message. False if it is too long for a datagram.
    fn send(&mut self, message: &[u8]) -> io::Result<bool> {
        let sent = match self {
            Self::Udp(_) if message.len() > UDP_BYTES_MAX => return Ok(false),
            Self::Udp(socket) => socket.send(message).map(drop),
            Self::Unix(socket) => socket.send(message).map(drop),
            Self::Tcp(stream) => {
                let framed = [format!("{} ", message.len()).as_bytes(), message].concat();
                stream.write_all(&framed)
            }
        };
        match sent {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                Err(io::Error::other(format!("it took nothing for {} s", SEND_TIMEOUT.as_secs())))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the server is still there, as far as the kernel knows.
    fn check(&mut self) -> io::Result<()> {
        match self {
            // The host has answered that nobody listens.
            Self::Udp(socket) => socket.take_error()?.map_or(Ok(()), Err),
            Self::Unix(socket) => socket.take_error()?.map_or(Ok(()), Err),
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                let mut ignored = [0; 512];
                let read = stream.read(&mut ignored);
                stream.set_nonblocking(false)?;
                match read {
                    Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "it has closed the connection")),
                    // A syslog server has nothing to say.
                    Ok(_) => Ok(()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// Connects to the first address of a host that works.
fn each_address(
    address: &str,
    connect: impl Fn(std::net::SocketAddr) -> io::Result<Sink>,
) -> io::Result<Sink> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in address.to_socket_addrs()? {
        match connect(address) {
            Ok(sink) => return Ok(sink),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The name of this host, as syslog names it.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().filter(char::is_ascii_graphic).take(255).collect();
    if name.is_empty() { "-".into() } else { name }
}

/// The last line that was delivered. If that is unknown, the one before the first of the log.
fn read_shipped(directory: &Path) -> u64 {
    let text = std::fs::read_to_string(directory.join(SHIPPED)).unwrap_or_default();
    text.trim().parse().unwrap_or_else(|_| before_first(directory))
}

/// The number before the first line of the log. Lines that are missing after it were removed unsent.
fn before_first(directory: &Path) -> u64 {
    let files = list(directory).unwrap_or_default();
    files.first().map_or(0, |file| file.first.saturating_sub(1))
}

fn write_shipped(directory: &Path, seq: u64) -> io::Result<()> {
    let path = directory.join(SHIPPED);
    let file: File = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path)?;
    file.write_all_at(format!("{seq:020}\n").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::check_address;

    #[test]
    fn a_target_is_parsed_or_named() {
        let parse = |text: &str| SyslogTarget::parse(text, check_address);
        assert_eq!(parse("udp://logs.example:514"), Ok(SyslogTarget::Udp("logs.example:514".into())));
        assert_eq!(parse("tcp://[::1]:601"), Ok(SyslogTarget::Tcp("[::1]:601".into())));
        assert_eq!(parse("unix:///dev/log"), Ok(SyslogTarget::Unix("/dev/log".into())));
        for bad in
            ["logs.example:514", "udp://logs.example", "unix://dev/log", "tls://h:6514", "http://h:1", ""]
        {
            let why = parse(bad).unwrap_err();
            assert!(!why.is_empty(), "{bad}");
        }
        for text in ["udp://h:1", "tcp://h:1", "unix:///a"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_line_is_delivered_when_its_connection_outlives_the_time_to_settle() {
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut progress = Progress::from(7);
        progress.sent(8, None, begin);
        progress.sent(9, None, begin + Duration::from_millis(500));
        progress.sent(12, None, after(5));
        progress.settle(after(15));
        assert_eq!(progress.settled, 7, "line 9 was sent half a second later");
        progress.settle(after(16));
        assert_eq!(progress.settled, 9);
        progress.settle(after(20));
        assert_eq!((progress.settled, progress.sent), (12, 12));
        assert!(progress.recent.is_empty());
    }

    #[test]
    fn removed_lines_are_looked_for_once() {
        let mut progress = Progress::from(7);
        progress.sent(9, None, Instant::now());
        progress.restart();
        assert_eq!(progress.sent, 7, "line 8 may not have been delivered");
        progress.skip(20);
        progress.restart();
        assert_eq!((progress.sent, progress.settled), (20, 20));
    }

    #[test]
    fn the_lines_sent_lately_stay_few() {
        let begin = Instant::now();
        let mut progress = Progress::default();
        for sent in 0..100_000_u64 {
            let now = begin + Duration::from_millis(sent);
            progress.sent(sent + 1, None, now);
            progress.settle(now);
        }
        assert!(progress.settled > 80_000, "{}", progress.settled);
        assert!(progress.recent.len() <= 17, "{}", progress.recent.len());
    }
}
