//! The open connections: which of them has to go where there are too many.
//!
//! A connection is idle while no request of its is under way: from the moment it is accepted, or the last byte of
//! an answer is handed to the system, to the end of the next request's head. A feed is under way as long as it
//! lasts. Where all places are taken, or all of a client address's, the connection that has been idle longest is
//! closed.
//!
//! Invariants:
//! 1. At most `max_connections` are open, and of one address at most `max_connections_per_address`, addresses of
//!    trusted proxies excepted.
//! 2. A connection is closed for others while it is idle only: a request that has begun is answered.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::sync::Notify;

use crate::Limits;

/// How often it is looked for an idle connection while a new one waits. What ends by itself is seen at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Bits of an IPv6 address that name a network of one client.
const IPV6_CLIENT_BITS: u32 = 64;

/// Where all places are taken, one in this many connections is closed at once, if idle, and at most
/// [`CLOSED_COUNT_MAX`]: a flood of new connections then costs one look at all of them for each batch.
const CLOSED_PART: usize = 64;

/// See [`CLOSED_PART`].
const CLOSED_COUNT_MAX: usize = 64;

/// Addresses whose connections have no limit of their own, only the one for all.
///
/// By default those of loopback. To be given are the proxies in front of the server, all of whose clients have
/// the proxy's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl FromStr for TrustedProxies {
    type Err = String;

    /// Reads addresses and networks, such as `10.0.0.1, 10.1.0.0/16`.
    ///
    /// # Errors
    /// Which of them is neither.
    fn from_str(text: &str) -> Result<TrustedProxies, String> {
        let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
        let parse = |text: &str| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            text.parse().or(address).map_err(|_| format!("{text:?} is no address and no network"))
        };
        texts.map(parse).collect::<Result<_, _>>().map(TrustedProxies)
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, network) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match network.prefix_len() == network.max_prefix_len() {
                true => write!(f, "{separator}{}", network.addr())?,
                false => write!(f, "{separator}{network}")?,
            }
        }
        Ok(())
    }
}

impl TrustedProxies {
    fn contains(&self, address: &IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Default for TrustedProxies {
    fn default() -> TrustedProxies {
        "127.0.0.0/8, ::1".parse().expect("these are addresses")
    }
}

/// The open connections.
pub(crate) struct Connections {
    connections_max: usize,
    per_client_max: usize,
    trusted: TrustedProxies,
    state: Mutex<State>,
    /// One more has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
    /// How many each client has, those of trusted proxies aside.
    per_client: HashMap<IpAddr, usize>,
}

struct Open {
    activity: Arc<Activity>,
    client: Option<IpAddr>,
}

/// An open connection, until this is dropped.
pub(crate) struct Connection {
    connections: Arc<Connections>,
    number: u64,
    activity: Arc<Activity>,
}

/// Why there is no place for a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// All places are taken, and no connection is idle: one may be later.
    All,
    /// The client has as many as it may, and none of them is idle.
    Client,
}

impl Connections {
    pub(crate) fn new(limits: &Limits, trusted: TrustedProxies) -> Connections {
        Connections {
            connections_max: limits.max_connections.max(1),
            per_client_max: limits.max_connections_per_address.max(1),
            trusted,
            state: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Opens a connection from that address. Where there are too many, the one that has been idle longest is
    /// told to close, and its end is waited for; where none is idle, one that becomes so.
    ///
    /// May be dropped while it waits.
    ///
    /// # Errors
    /// [`Full::Client`].
    pub(crate) async fn open(self: &Arc<Connections>, address: IpAddr) -> Result<Connection, Full> {
        let client = client_of(address);
        let client = Some(client).filter(|_| !self.trusted.contains(&address.to_canonical()));
        loop {
            // From before the look, so that no end is missed.
            let ended = self.ended.notified();
            match self.try_open(client) {
                Ok(Some(connection)) => return Ok(connection),
                Ok(None) | Err(Full::All) => {}
                Err(Full::Client) => return Err(Full::Client),
            }
            tokio::time::timeout(LOOK_EVERY, ended).await.ok();
        }
    }

    /// Opens a connection; None where another was told to close for it.
    fn try_open(self: &Arc<Connections>, client: Option<IpAddr>) -> Result<Option<Connection>, Full> {
        let mut state = self.lock();
        let count = client.map_or(0, |client| state.per_client.get(&client).copied().unwrap_or(0));
        if count >= self.per_client_max {
            let is_closing = state.close_idle(1, |open| open.client == client);
            return if is_closing { Ok(None) } else { Err(Full::Client) };
        }
        if state.open.len() >= self.connections_max {
            let count = (self.connections_max / CLOSED_PART).clamp(1, CLOSED_COUNT_MAX);
            return if state.close_idle(count, |_| true) { Ok(None) } else { Err(Full::All) };
        }
        if let Some(client) = client {
            *state.per_client.entry(client).or_default() += 1;
        }
        let (number, activity) = (state.next, Arc::new(Activity::default()));
        state.next += 1;
        state.open.insert(number, Open { activity: activity.clone(), client });
        Ok(Some(Connection { connections: self.clone(), number, activity }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells the `count` connections to close that have been idle longest of those that `may_close` is true
    /// of, unless one is closing already. Returns whether one is closing.
    fn close_idle(&self, count: usize, may_close: impl Fn(&Open) -> bool) -> bool {
        let candidates = self.open.values().filter(|open| may_close(open)).map(|open| &open.activity);
        if candidates.clone().any(|activity| activity.is_closing()) {
            return true;
        }
        let mut idle: Vec<_> =
            candidates.filter_map(|activity| Some((activity.idle_since_ns()?, activity))).collect();
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, |(since_ns, _)| *since_ns);
        }
        // On some of them a request may have begun meanwhile: then the next one in any order is closed.
        let closed = idle.iter().filter(|(_, activity)| activity.close()).take(count).count();
        closed > 0
    }
}

impl Connection {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.connections.lock();
        if let Some(client) = state.open.remove(&self.number).and_then(|open| open.client)
            && let Some(count) = state.per_client.get_mut(&client)
        {
            *count -= 1;
            if *count == 0 {
                state.per_client.remove(&client);
            }
        }
        drop(state);
        self.connections.ended.notify_one();
    }
}

/// Whose connections are counted together.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> IPV6_CLIENT_BITS << IPV6_CLIENT_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// Whether a connection has something under way.
#[derive(Debug)]
pub(crate) struct Activity {
    /// How many requests, with [`CLOSING`] once the connection has to close.
    under_way: AtomicU64,
    /// Since when there is none, where there is none: nanoseconds since [`BEGUN`].
    idle_since_ns: AtomicU64,
    closing: Notify,
}

const CLOSING: u64 = 1 << 63;

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now_ns() -> u64 {
    u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Activity {
    fn default() -> Activity {
        let idle_since_ns = AtomicU64::new(now_ns());
        Activity { under_way: AtomicU64::new(0), idle_since_ns, closing: Notify::new() }
    }
}

impl Activity {
    /// Something is under way until what this returns is dropped; None where the connection is closing.
    pub(crate) fn begin(self: &Arc<Activity>) -> Option<UnderWay> {
        let begun = UnderWay(self.clone());
        (self.under_way.fetch_add(1, Ordering::AcqRel) & CLOSING == 0).then_some(begun)
    }

    /// For how long nothing has been under way; None where something is.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        self.idle_since_ns().map(|since_ns| Duration::from_nanos(now_ns().saturating_sub(since_ns)))
    }

    /// Completes once the connection has to close.
    pub(crate) async fn closing(&self) {
        self.closing.notified().await;
    }

    fn idle_since_ns(&self) -> Option<u64> {
        let is_idle = self.under_way.load(Ordering::Acquire) == 0;
        is_idle.then(|| self.idle_since_ns.load(Ordering::Relaxed))
    }

    fn is_closing(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) & CLOSING != 0
    }

    /// Closes the connection if it is idle.
    pub(crate) fn close(&self) -> bool {
        let closed = self.under_way.compare_exchange(0, CLOSING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if closed {
            self.closing.notify_one();
        }
        closed
    }
}

/// Something of a connection that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.idle_since_ns.store(now_ns(), Ordering::Relaxed);
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn connections(all: usize, per_client: usize) -> Arc<Connections> {
        let limits =
            Limits { max_connections: all, max_connections_per_address: per_client, ..Limits::default() };
        Arc::new(Connections::new(&limits, TrustedProxies::default()))
    }

    fn open(connections: &Arc<Connections>, address: &str) -> Option<Result<Connection, Full>> {
        connections.open(address.parse().unwrap()).now_or_never()
    }

    fn opened(connections: &Arc<Connections>, address: &str) -> Connection {
        open(connections, address).expect("there is a place").expect("there is a share")
    }

    fn is_closing(connection: &Connection) -> bool {
        connection.activity.closing().now_or_never().is_some()
    }

    /// As if it were idle since then.
    fn idle_since(connection: &Connection, since_ns: u64) {
        connection.activity.idle_since_ns.store(since_ns, Ordering::Relaxed);
    }

    #[tokio::test]
    async fn the_connection_that_is_idle_longest_makes_way_and_one_at_work_never() {
        let all = connections(3, 3);
        let [first, second, third] = [30, 20, 10].map(|since_ns| {
            let connection = opened(&all, "127.0.0.1");
            idle_since(&connection, since_ns);
            connection
        });
        let request = third.activity.begin().unwrap();
        assert!(open(&all, "127.0.0.1").is_none());
        // One at a time, however often it is looked.
        assert!(open(&all, "127.0.0.1").is_none());
        assert_eq!([&first, &second, &third].map(is_closing), [false, true, false]);
        assert!(second.activity.begin().is_none(), "what closes takes no request");
        drop(second);
        let fourth = opened(&all, "127.0.0.1");
        let _requests = [first.activity.begin().unwrap(), fourth.activity.begin().unwrap()];
        assert!(open(&all, "127.0.0.1").is_none());
        assert_eq!([&first, &third, &fourth].map(is_closing), [false, false, false]);
        drop(request);
        assert!(open(&all, "127.0.0.1").is_none());
        assert!(is_closing(&third));
    }

    #[tokio::test]
    async fn of_many_idle_connections_those_idle_longest_are_closed_together() {
        let all = connections(640, 640);
        let open_all: Vec<Connection> = (0..640_u64)
            .map(|index| {
                let connection = opened(&all, "127.0.0.1");
                idle_since(&connection, (index * 7) % 640);
                connection
            })
            .collect();
        assert!(open(&all, "127.0.0.1").is_none());
        assert!(open(&all, "127.0.0.1").is_none(), "no others close before one of these has");
        for (index, connection) in open_all.iter().enumerate() {
            assert_eq!(is_closing(connection), index * 7 % 640 < 640 / CLOSED_PART, "{index}");
        }
    }

    #[tokio::test]
    async fn a_client_has_its_share_and_a_trusted_proxy_all_there_is() {
        let all = connections(100, 2);
        let _many: Vec<Connection> = (0..50).map(|_| opened(&all, "127.1.2.3")).collect();
        let one = opened(&all, "192.0.2.1");
        let other = opened(&all, "::ffff:192.0.2.1");
        let _someone_else = opened(&all, "192.0.2.2");
        let requests = [one.activity.begin().unwrap(), other.activity.begin().unwrap()];
        assert_eq!(open(&all, "192.0.2.1").unwrap().err(), Some(Full::Client));
        drop(requests);
        // Its own make way, and nobody else's.
        assert!(open(&all, "192.0.2.1").is_none());
        assert!(is_closing(&one) ^ is_closing(&other));
        let _of_a_network = [opened(&all, "2001:db8::1"), opened(&all, "2001:db8::2")];
        assert!(open(&all, "2001:db8::3").is_none());
        opened(&all, "2001:db8:0:1::3");
        drop((one, other));
        assert!(!all.lock().per_client.contains_key(&"192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn trusted_proxies_are_addresses_and_networks() {
        let trusted: TrustedProxies = "10.0.0.0/8,192.0.2.7, 2001:db8::/32".parse().unwrap();
        assert_eq!(trusted.to_string(), "10.0.0.0/8, 192.0.2.7, 2001:db8::/32");
        for (address, is_trusted) in [
            ("10.9.8.7", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8::9", true),
            ("::1", false),
        ] {
            assert_eq!(trusted.contains(&address.parse().unwrap()), is_trusted, "{address}");
        }
        let wrong = "::1,proxy.example".parse::<TrustedProxies>();
        assert!(wrong.unwrap_err().contains("proxy.example"));
        assert_eq!("".parse::<TrustedProxies>().unwrap().to_string(), "");
        assert!(TrustedProxies::default().contains(&"127.3.2.1".parse().unwrap()));
    }
}
