//! Goal: the limit holds, the queue is served in FIFO order, and no request waits that can be granted, even
//! when others are cancelled.
//! Method: random steps on a pool and on a model of its queue, each future polled only after it was woken;
//! single cases; threads that take and return memory while one checks the totals.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::TailBuffer;

/// Four of the smallest buffers.
const BYTES_MAX: usize = 4 * BUFFER_SIZE_MIN;

fn pool() -> Arc<BufferPool> {
    BufferPool::new(PoolOptions { bytes_max: BYTES_MAX })
}

fn totals(pool: &BufferPool) -> (usize, usize, usize) {
    let stats = pool.stats();
    assert!(stats.leased_bytes + stats.kept_bytes <= stats.bytes_max, "{stats:?}");
    (stats.leased_bytes, stats.kept_bytes, stats.waiting_count)
}

/// The address of the buffer's memory.
fn address(buffer: &TailBuffer) -> usize {
    buffer.reader().slice(0..0).map(|slice| slice.as_ptr().addr()).unwrap_or_default()
}

/// A waker that records its call. When called and when dropped it checks that the pool's mutex is free. For
/// one thread.
struct Flag {
    woken: AtomicBool,
    pool: Weak<BufferPool>,
}

impl Flag {
    fn new(pool: &Arc<BufferPool>) -> Arc<Flag> {
        Arc::new(Flag { woken: AtomicBool::new(false), pool: Arc::downgrade(pool) })
    }

    fn check_mutex(&self) {
        if let Some(pool) = self.pool.upgrade() {
            assert!(pool.state.try_lock().is_ok(), "a waker runs under the mutex");
        }
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.check_mutex();
        self.woken.store(true, Ordering::Relaxed);
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.check_mutex();
    }
}

/// The result of a future of the pool.
enum Lease {
    Buffer(TailBuffer),
    Reservation(Reservation),
}

impl Lease {
    fn bytes(&self) -> usize {
        match self {
            Lease::Buffer(buffer) => buffer.capacity(),
            Lease::Reservation(reservation) => reservation.bytes(),
        }
    }
}

async fn lease(pool: Arc<BufferPool>, request: LeaseRequest) -> Lease {
    match request {
        LeaseRequest::Buffer(bytes) => Lease::Buffer(pool.take(bytes).await),
        LeaseRequest::Reservation(bytes) => Lease::Reservation(pool.reserve(bytes).await),
    }
}

/// One future of the pool, polled only when it was woken.
struct Waiter {
    future: Pin<Box<dyn Future<Output = Lease>>>,
    flag: Arc<Flag>,
}

impl Waiter {
    fn new(pool: &Arc<BufferPool>, request: LeaseRequest) -> Waiter {
        Waiter { future: Box::pin(lease(pool.clone(), request)), flag: Flag::new(pool) }
    }

    fn poll(&mut self) -> Poll<Lease> {
        let waker = Waker::from(self.flag.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A new future, polled once.
    Take(usize),
    Reserve(usize),
    /// An attempt without waiting.
    TryTake(usize),
    TryReserve(usize),
    /// Polls a future that was woken.
    Collect,
    /// Polls a future that was not woken, with another waker.
    Poll(prop::sample::Index),
    /// Drops a future, granted or not.
    Cancel(prop::sample::Index),
    /// Drops a lease.
    Return(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (1..=BYTES_MAX).prop_map(Step::Take),
        2 => (0..=BYTES_MAX).prop_map(Step::Reserve),
        1 => (0..2 * BYTES_MAX).prop_map(Step::TryTake),
        1 => (0..2 * BYTES_MAX).prop_map(Step::TryReserve),
        3 => Just(Step::Collect),
        1 => index().prop_map(Step::Poll),
        2 => index().prop_map(Step::Cancel),
        5 => index().prop_map(Step::Return),
    ]
}

/// The expected state of the pool: the queue in FIFO order, and the granted requests.
struct Model {
    pool: Arc<BufferPool>,
    waiting: VecDeque<(usize, Waiter)>,
    granted: VecDeque<(usize, Waiter)>,
    leases: Vec<Lease>,
}

impl Model {
    fn free_bytes(&self) -> usize {
        let granted: usize = self.granted.iter().map(|(bytes, _)| bytes).sum();
        BYTES_MAX - granted - self.leases.iter().map(Lease::bytes).sum::<usize>()
    }

    fn grants_now(&self, bytes: usize) -> bool {
        self.waiting.is_empty() && bytes <= self.free_bytes()
    }

    fn begin(&mut self, request: LeaseRequest) {
        let (mut waiter, bytes) = (Waiter::new(&self.pool, request), request.bytes());
        match waiter.poll() {
            Poll::Ready(lease) => {
                assert!(self.grants_now(bytes), "granted out of order");
                assert_eq!(lease.bytes(), bytes);
                self.leases.push(lease);
            }
            Poll::Pending => {
                assert!(!self.grants_now(bytes), "waits without need");
                self.waiting.push_back((bytes, waiter));
            }
        }
    }

    fn run(&mut self, step: Step) {
        let queued = self.granted.len() + self.waiting.len();
        match step {
            Step::Take(bytes) => self.begin(LeaseRequest::Buffer(BufferPool::buffer_size(bytes).unwrap())),
            Step::Reserve(bytes) => self.begin(LeaseRequest::Reservation(bytes)),
            Step::TryTake(bytes) => {
                let found = self.pool.try_take(bytes);
                let size = bytes.max(BUFFER_SIZE_MIN).next_power_of_two();
                assert_eq!(found.as_ref().map(TailBuffer::capacity), self.grants_now(size).then_some(size));
                self.leases.extend(found.map(Lease::Buffer));
            }
            Step::TryReserve(bytes) => {
                let found = self.pool.try_reserve(bytes);
                assert_eq!(found.as_ref().map(Reservation::bytes), self.grants_now(bytes).then_some(bytes));
                self.leases.extend(found.map(Lease::Reservation));
            }
            Step::Collect => {
                let Some((bytes, mut waiter)) = self.granted.pop_front() else { return };
                let Poll::Ready(lease) = waiter.poll() else { panic!("woken but not granted") };
                assert_eq!(lease.bytes(), bytes);
                self.leases.push(lease);
            }
            Step::Poll(index) if !self.waiting.is_empty() => {
                let waiter = &mut index.get_mut(self.waiting.make_contiguous()).1;
                waiter.flag = Flag::new(&self.pool);
                assert!(waiter.poll().is_pending(), "granted without being woken");
            }
            Step::Cancel(index) if queued > 0 => {
                let index = index.index(queued);
                let removed = match index.checked_sub(self.granted.len()) {
                    None => self.granted.remove(index),
                    Some(index) => self.waiting.remove(index),
                };
                drop(removed);
            }
            Step::Return(index) if !self.leases.is_empty() => {
                let index = index.index(self.leases.len());
                drop(self.leases.swap_remove(index));
            }
            Step::Poll(_) | Step::Cancel(_) | Step::Return(_) => {}
        }
    }

    /// Checks that every first request that fits was woken, and no other.
    fn check(&mut self) {
        while let Some((bytes, _)) = self.waiting.front() {
            if *bytes > self.free_bytes() {
                break;
            }
            self.granted.extend(self.waiting.pop_front());
        }
        let woken = |(_, waiter): &(usize, Waiter)| waiter.flag.woken.load(Ordering::Relaxed);
        assert!(self.granted.iter().all(woken), "a wake-up was lost");
        assert!(!self.waiting.iter().any(woken), "woken out of order");
        let (leased_bytes, _, waiting_count) = totals(&self.pool);
        assert_eq!((leased_bytes, waiting_count), (BYTES_MAX - self.free_bytes(), self.waiting.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_is_served_in_its_order_within_the_limit(steps in prop::collection::vec(step(), 0..60)) {
        let pool = pool();
        let mut model =
            Model { pool: pool.clone(), waiting: VecDeque::new(), granted: VecDeque::new(), leases: Vec::new() };
        for step in steps {
            model.run(step);
            model.check();
        }
        drop(model);
        prop_assert_eq!(totals(&pool).0, 0, "a lease was lost");
        prop_assert_eq!(totals(&pool).2, 0, "a cancelled request waits");
        prop_assert!(pool.lock().granted.is_empty());
    }
}

#[test]
fn a_buffer_has_the_next_power_of_two() {
    let sizes = [(0, 1), (1, 1), (BUFFER_SIZE_MIN, 1), (BUFFER_SIZE_MIN + 1, 2), (3 * BUFFER_SIZE_MIN, 4)];
    for (capacity, count) in sizes {
        let pool = pool();
        assert_eq!(pool.try_take(capacity).unwrap().capacity(), count * BUFFER_SIZE_MIN);
        assert_eq!(totals(&pool), (0, count * BUFFER_SIZE_MIN, 0));
    }
    assert_eq!(BufferPool::buffer_size(BUFFER_SIZE_MAX), Some(BUFFER_SIZE_MAX));
    assert_eq!(BufferPool::buffer_size(BUFFER_SIZE_MAX + 1), None);
    assert!(BufferPool::new(PoolOptions { bytes_max: usize::MAX }).try_take(usize::MAX).is_none());
}

#[test]
fn memory_is_reused_and_freed_when_another_size_needs_its_bytes() {
    let pool = pool();
    let buffers = [(); 3].map(|()| pool.try_take(1).unwrap());
    let used = buffers.each_ref().map(address);
    assert_eq!(totals(&pool), (3 * BUFFER_SIZE_MIN, 0, 0));
    drop(buffers);
    assert_eq!(totals(&pool), (0, 3 * BUFFER_SIZE_MIN, 0));

    let again = pool.try_take(1).unwrap();
    assert_eq!(address(&again), used[2], "the memory returned last is reused first");
    let large = pool.try_take(2 * BUFFER_SIZE_MIN).unwrap();
    assert_eq!(totals(&pool), (3 * BUFFER_SIZE_MIN, BUFFER_SIZE_MIN, 0), "one is evicted, not both");
    let reserved = pool.try_reserve(1).unwrap();
    assert_eq!(totals(&pool), (3 * BUFFER_SIZE_MIN + 1, 0, 0), "a reservation evicts too");
    assert!(pool.try_take(1).is_none());
    drop((again, large, reserved));
    assert_eq!(totals(&pool), (0, 3 * BUFFER_SIZE_MIN, 0));
}

#[test]
fn a_waiting_request_gets_the_returned_memory() {
    let pool = BufferPool::new(PoolOptions { bytes_max: BUFFER_SIZE_MIN });
    let buffer = pool.try_take(1).unwrap();
    let used = address(&buffer);
    let mut waiter = Waiter::new(&pool, LeaseRequest::Buffer(BUFFER_SIZE_MIN));
    assert!(waiter.poll().is_pending());
    drop(buffer);
    assert_eq!(totals(&pool), (BUFFER_SIZE_MIN, 0, 0), "granted before it is polled");
    assert!(pool.try_reserve(1).is_none());
    let Poll::Ready(Lease::Buffer(buffer)) = waiter.poll() else { panic!("not granted") };
    assert_eq!(address(&buffer), used);
}

#[test]
fn a_small_request_does_not_overtake_a_large_one() {
    let pool = pool();
    let leased = [(); 2].map(|()| pool.try_take(2 * BUFFER_SIZE_MIN).unwrap());
    let [first, second] = leased;
    let mut large = Waiter::new(&pool, LeaseRequest::Buffer(BYTES_MAX));
    let mut small = Waiter::new(&pool, LeaseRequest::Reservation(1));
    assert!(large.poll().is_pending() && small.poll().is_pending());
    drop(first);
    assert!(small.poll().is_pending(), "overtaken");
    assert!(pool.try_reserve(1).is_none(), "overtaken");
    drop(second);
    let Poll::Ready(buffer) = large.poll() else { panic!("not granted") };
    assert!(small.poll().is_pending());
    drop(buffer);
    assert!(small.poll().is_ready());
}

#[test]
fn a_cancelled_request_lets_those_behind_it_move_up() {
    let pool = pool();
    let leased = pool.try_take(2 * BUFFER_SIZE_MIN).unwrap();
    let mut waiters =
        [BYTES_MAX, BUFFER_SIZE_MIN, BYTES_MAX].map(|bytes| Waiter::new(&pool, LeaseRequest::Buffer(bytes)));
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_pending()));
    let [first, mut second, mut third] = waiters;
    drop(first);
    assert!(second.flag.woken.load(Ordering::Relaxed));
    assert!(second.poll().is_ready());
    drop(leased);
    assert!(third.flag.woken.load(Ordering::Relaxed));
    drop(third);
    assert_eq!(totals(&pool).0, 0, "granted, but dropped before it was polled");
    third = Waiter::new(&pool, LeaseRequest::Reservation(BYTES_MAX));
    assert!(third.poll().is_ready());
}

#[test]
fn a_request_beyond_the_limit_is_refused_at_once() {
    let pool = pool();
    for request in [
        LeaseRequest::Buffer(BYTES_MAX + 1),
        LeaseRequest::Buffer(usize::MAX),
        LeaseRequest::Reservation(BYTES_MAX + 1),
    ] {
        let mut waiter = Waiter::new(&pool, request);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiter.poll().is_pending()));
        assert!(polled.is_err());
        assert_eq!(totals(&pool), (0, 0, 0));
    }
    assert!(pool.try_take(BYTES_MAX + 1).is_none());
    assert!(pool.try_reserve(BYTES_MAX + 1).is_none());
    assert!(pool.try_take(BYTES_MAX).is_some(), "the pool still works");
}

/// Runs a future on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn threads_that_take_and_cancel_stay_within_the_limit_and_all_finish() {
    const ROUND_COUNT: u64 = 300;
    let (pool, granted_count, stopped) = (pool(), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                totals(&pool);
                std::thread::yield_now();
            }
        });
        let takers: Vec<_> = (0..6u64)
            .map(|seed| {
                let (pool, granted_count) = (&pool, &granted_count);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    for _ in 0..ROUND_COUNT {
                        let request = match random.random_range(0..3) {
                            0 => LeaseRequest::Reservation(random.random_range(0..=BYTES_MAX)),
                            _ => LeaseRequest::Buffer(BUFFER_SIZE_MIN << random.random_range(0..3u32)),
                        };
                        let mut future = pin!(lease(pool.clone(), request));
                        if random.random_range(0..3) == 0 {
                            drop(future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
                        } else {
                            let lease = block_on(future);
                            assert_eq!(lease.bytes(), request.bytes());
                            granted_count.fetch_add(1, Ordering::Relaxed);
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        stopped.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    assert_eq!((totals(&pool).0, totals(&pool).2), (0, 0));
    assert!(granted_count.load(Ordering::Relaxed) > 1_000, "{granted_count:?}");
}
