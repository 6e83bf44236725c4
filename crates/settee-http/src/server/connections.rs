//! The set of open connections, and which of them is closed when there are too many.
//!
//! A connection is idle while it has no request in flight and no stalled write: from its accept, or from
//! handing the last byte of a response to the kernel, until the end of the next request's head. A feed counts
//! as in flight until it ends. If all slots of a client address are taken, its connection that has been idle
//! longest is closed. If all slots are taken, those that have been idle longest are closed, up to
//! [`EVICTED_COUNT_MAX`] together. If one of them begins a request at that moment, any other idle connection
//! may be closed instead, not necessarily the next longest idle.
//!
//! Invariants:
//! 1. At most `connections_max` are open, and at most `connections_per_address_max` of one address, except
//!    for trusted proxies.
//! 2. A connection is closed in favor of another only if no handler has started; a request still being
//!    received may be lost.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::limits::Limits;
use crate::settings::TrustedProxies;

/// How often a waiting connection looks for an idle one. The end of a connection wakes it at once.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Prefix length of IPv6 networks that count as one client.
const IPV6_CLIENT_BITS: u32 = 64;

/// If all slots are taken, several idle connections are closed together: `connections_max` divided by this,
/// at most [`EVICTED_COUNT_MAX`]. So a flood of new connections scans the table once per batch.
const EVICTION_DIVISOR: usize = 64;

/// Largest number of connections closed together. See [`EVICTION_DIVISOR`].
const EVICTED_COUNT_MAX: usize = 64;

/// The open connections.
pub(crate) struct Connections {
    connections_max: usize,
    per_client_max: usize,
    trusted: TrustedProxies,
    state: Mutex<ConnectionsState>,
    /// Notified when a connection has ended.
    ended: Notify,
}

#[derive(Default)]
struct ConnectionsState {
    next: u64,
    open: HashMap<u64, ConnectionRecord>,
    /// Number of connections by client, without those of trusted proxies.
    per_client: HashMap<IpAddr, usize>,
}

struct ConnectionRecord {
    activity: Arc<Activity>,
    client: Option<IpAddr>,
}

/// The slot of an open connection. Dropping it releases the slot.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    activity: Arc<Activity>,
}

/// Why a connection got no slot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoSlot {
    /// All slots are taken and no connection is idle. One may be idle later.
    All,
    /// The client has taken all its slots, and none of its connections is idle.
    Client,
}

impl Connections {
    pub(crate) fn new(limits: &Limits, trusted: TrustedProxies) -> Connections {
        Connections {
            connections_max: limits.connections_max.max(1),
            per_client_max: limits.connections_per_address_max.max(1),
            trusted,
            state: Mutex::default(),
            ended: Notify::new(),
        }
    }

    /// Acquires a slot for a connection from `address`. If there is none, closes connections that have been
    /// idle longest and waits for the end of one; if none is idle, waits until one is.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`NoSlot::Client`].
    pub(crate) async fn acquire(self: &Arc<Connections>, address: IpAddr) -> Result<ConnectionSlot, NoSlot> {
        let client = client_of(address);
        let client = Some(client).filter(|_| !self.trusted.contains(&address.to_canonical()));
        loop {
            // Registered before the check, so that no notification is lost.
            let ended = self.ended.notified();
            match self.try_acquire(client) {
                Ok(Some(connection)) => return Ok(connection),
                Ok(None) | Err(NoSlot::All) => {}
                Err(NoSlot::Client) => return Err(NoSlot::Client),
            }
            tokio::time::timeout(IDLE_CHECK_INTERVAL, ended).await.ok();
        }
    }

    /// Acquires a free slot. Returns None if another connection is closing in favor of this one.
    fn try_acquire(
        self: &Arc<Connections>,
        client: Option<IpAddr>,
    ) -> Result<Option<ConnectionSlot>, NoSlot> {
        let mut state = self.lock();
        let count = client.map_or(0, |client| state.per_client.get(&client).copied().unwrap_or(0));
        if count >= self.per_client_max {
            let is_closing = state.close_idle(1, |open| open.client == client);
            return if is_closing { Ok(None) } else { Err(NoSlot::Client) };
        }
        if state.open.len() >= self.connections_max {
            let count = (self.connections_max / EVICTION_DIVISOR).clamp(1, EVICTED_COUNT_MAX);
            return if state.close_idle(count, |_| true) { Ok(None) } else { Err(NoSlot::All) };
        }
        if let Some(client) = client {
            *state.per_client.entry(client).or_default() += 1;
        }
        let (number, activity) = (state.next, Arc::new(Activity::default()));
        state.next += 1;
        state.open.insert(number, ConnectionRecord { activity: activity.clone(), client });
        Ok(Some(ConnectionSlot { connections: self.clone(), number, activity }))
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionsState {
    /// Closes the `count` connections that have been idle longest among those that satisfy `may_close`,
    /// unless one of them is closing already. Returns whether one is closing now.
    fn close_idle(&self, count: usize, may_close: impl Fn(&ConnectionRecord) -> bool) -> bool {
        let candidates = self.open.values().filter(|open| may_close(open)).map(|open| &open.activity);
        if candidates.clone().any(|activity| activity.is_closing()) {
            return true;
        }
        let mut idle: Vec<_> =
            candidates.filter_map(|activity| Some((activity.idle_since_ns()?, activity))).collect();
        if count < idle.len() {
            idle.select_nth_unstable_by_key(count, |(since_ns, _)| *since_ns);
        }
        // Closing fails if a request has begun meanwhile. Another one is then closed, in no particular order.
        idle.iter().filter(|(_, activity)| activity.close()).take(count).count() > 0
    }
}

impl ConnectionSlot {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }
}

impl Drop for ConnectionSlot {
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

/// The client that a connection counts for: an address, or an IPv6 network of 64 bits.
fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() >> IPV6_CLIENT_BITS << IPV6_CLIENT_BITS;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// The requests in flight and stalled writes of a connection. While there is any, the connection is active.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Number of requests in flight and stalled writes, with [`CLOSING`] set once the connection has to
    /// close.
    in_flight: AtomicU64,
    /// Time at which the connection became idle, in nanoseconds since [`CLOCK_START`]. Valid while
    /// `in_flight` is 0.
    idle_since_ns: AtomicU64,
    closing: Notify,
}

const CLOSING: u64 = 1 << 63;

static CLOCK_START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now_ns() -> u64 {
    u64::try_from(CLOCK_START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Activity {
    fn default() -> Activity {
        let idle_since_ns = AtomicU64::new(now_ns());
        Activity { in_flight: AtomicU64::new(0), idle_since_ns, closing: Notify::new() }
    }
}

impl Activity {
    /// Counts a request, or a stalled write, as in flight until the guard is dropped. Returns None if the
    /// connection is closing.
    pub(crate) fn begin(self: &Arc<Activity>) -> Option<ActivityGuard> {
        let begun = ActivityGuard(self.clone());
        (self.in_flight.fetch_add(1, Ordering::AcqRel) & CLOSING == 0).then_some(begun)
    }

    /// How long the connection has been idle; None if it is active.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        self.idle_since_ns().map(|since_ns| Duration::from_nanos(now_ns().saturating_sub(since_ns)))
    }

    /// Completes once the connection has to close.
    pub(crate) async fn wait_for_close(&self) {
        self.closing.notified().await;
    }

    fn idle_since_ns(&self) -> Option<u64> {
        let is_idle = self.in_flight.load(Ordering::Acquire) == 0;
        is_idle.then(|| self.idle_since_ns.load(Ordering::Relaxed))
    }

    fn is_closing(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) & CLOSING != 0
    }

    /// Closes the connection if it is idle. Returns whether it was.
    pub(crate) fn close(&self) -> bool {
        let closed = self.in_flight.compare_exchange(0, CLOSING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if closed {
            self.closing.notify_one();
        }
        closed
    }
}

/// A request in flight, or a stalled write, until this is dropped.
#[derive(Debug)]
pub(crate) struct ActivityGuard(Arc<Activity>);

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.idle_since_ns.store(now_ns(), Ordering::Relaxed);
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn connections(all: usize, per_client: usize) -> Arc<Connections> {
        let limits =
            Limits { connections_max: all, connections_per_address_max: per_client, ..Limits::default() };
        Arc::new(Connections::new(&limits, TrustedProxies::default()))
    }

    fn open(connections: &Arc<Connections>, address: &str) -> Option<Result<ConnectionSlot, NoSlot>> {
        connections.acquire(address.parse().unwrap()).now_or_never()
    }

    fn opened(connections: &Arc<Connections>, address: &str) -> ConnectionSlot {
        open(connections, address).expect("a free slot").expect("below the limit per client")
    }

    fn is_closing(connection: &ConnectionSlot) -> bool {
        connection.activity.wait_for_close().now_or_never().is_some()
    }

    /// Sets the time since when a connection is idle.
    fn idle_since(connection: &ConnectionSlot, since_ns: u64) {
        connection.activity.idle_since_ns.store(since_ns, Ordering::Relaxed);
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_and_an_active_one_never() {
        let all = connections(3, 3);
        let [first, second, third] = [30, 20, 10].map(|since_ns| {
            let connection = opened(&all, "127.0.0.1");
            idle_since(&connection, since_ns);
            connection
        });
        let request = third.activity.begin().unwrap();
        assert!(open(&all, "127.0.0.1").is_none());
        // Only one connection closes at a time, however often is asked.
        assert!(open(&all, "127.0.0.1").is_none());
        assert_eq!([&first, &second, &third].map(is_closing), [false, true, false]);
        assert!(second.activity.begin().is_none(), "a closing connection accepts no request");
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
    async fn the_longest_idle_of_many_connections_are_closed_together() {
        let all = connections(640, 640);
        let open_all: Vec<ConnectionSlot> = (0..640_u64)
            .map(|index| {
                let connection = opened(&all, "127.0.0.1");
                idle_since(&connection, (index * 7) % 640);
                connection
            })
            .collect();
        assert!(open(&all, "127.0.0.1").is_none());
        assert!(open(&all, "127.0.0.1").is_none(), "no others close before one of these has");
        for (index, connection) in (0_u64..).zip(&open_all) {
            assert_eq!(is_closing(connection), index * 7 % 640 < 640 / EVICTION_DIVISOR as u64, "{index}");
        }
    }

    #[tokio::test]
    async fn connections_are_limited_per_client_except_for_trusted_proxies() {
        let all = connections(100, 2);
        let _many: Vec<ConnectionSlot> = (0..50).map(|_| opened(&all, "127.1.2.3")).collect();
        let one = opened(&all, "192.0.2.1");
        let other = opened(&all, "::ffff:192.0.2.1");
        let _someone_else = opened(&all, "192.0.2.2");
        let requests = [one.activity.begin().unwrap(), other.activity.begin().unwrap()];
        assert_eq!(open(&all, "192.0.2.1").unwrap().err(), Some(NoSlot::Client));
        drop(requests);
        // Only connections of the same client are closed.
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
