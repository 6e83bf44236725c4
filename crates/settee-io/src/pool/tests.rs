//! Goal: the limit holds, the queue is served in its order, and nobody who can be served waits,
//! whoever gives up.
//! Method: random steps on a pool and on a model of its queue, each future polled only when it
//! was woken; single cases; threads that take and give back while one watches the sums.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// Four of the smallest buffers.
const BYTES_MAX: usize = 4 * BUFFER_SIZE_MIN;

fn pool() -> Arc<BufferPool> {
    BufferPool::new(PoolOptions { bytes_max: BYTES_MAX })
}

fn sums(pool: &BufferPool) -> (usize, usize, usize) {
    let stats = pool.stats();
    assert!(stats.leased_bytes + stats.kept_bytes <= stats.bytes_max, "{stats:?}");
    (stats.leased_bytes, stats.kept_bytes, stats.waiting_count)
}

/// The address of the memory that `buffer` has.
fn address(buffer: &TailBuffer) -> usize {
    buffer.reader().slice(0..0).map(|slice| slice.as_ptr().addr()).unwrap_or_default()
}

/// Remembers that it was woken, looks at the pool then and when it is dropped, which must not
/// be under the pool's mutex. For one thread.
struct Flag {
    woken: AtomicBool,
    pool: Weak<BufferPool>,
}

impl Flag {
    fn new(pool: &Arc<BufferPool>) -> Arc<Flag> {
        Arc::new(Flag { woken: AtomicBool::new(false), pool: Arc::downgrade(pool) })
    }

    fn look(&self) {
        if let Some(pool) = self.pool.upgrade() {
            assert!(pool.state.try_lock().is_ok(), "a waker runs under the mutex");
        }
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.look();
        self.woken.store(true, Ordering::Relaxed);
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        self.look();
    }
}

/// What a future of the pool gives.
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

async fn lease(pool: Arc<BufferPool>, need: Need) -> Lease {
    match need {
        Need::Buffer(bytes) => Lease::Buffer(pool.take(bytes).await),
        Need::Reservation(bytes) => Lease::Reservation(pool.reserve(bytes).await),
    }
}

/// One future of the pool, polled only when it was woken.
struct Waiter {
    future: Pin<Box<dyn Future<Output = Lease>>>,
    flag: Arc<Flag>,
}

impl Waiter {
    fn new(pool: &Arc<BufferPool>, need: Need) -> Waiter {
        Waiter { future: Box::pin(lease(pool.clone(), need)), flag: Flag::new(pool) }
    }

    fn poll(&mut self) -> Poll<Lease> {
        let waker = Waker::from(self.flag.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A new future, polled once: a buffer, or a reservation.
    Take(usize),
    Reserve(usize),
    /// Without waiting.
    TryTake(usize),
    TryReserve(usize),
    /// Comes for what it was woken for.
    Collect,
    /// A poll without a reason, with another waker.
    Poll(prop::sample::Index),
    /// A future is dropped, served or not.
    GiveUp(prop::sample::Index),
    GiveBack(prop::sample::Index),
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
        2 => index().prop_map(Step::GiveUp),
        5 => index().prop_map(Step::GiveBack),
    ]
}

/// The pool as it should be: the queue in its order, and who was served of it.
struct Model {
    pool: Arc<BufferPool>,
    waiting: VecDeque<(usize, Waiter)>,
    served: VecDeque<(usize, Waiter)>,
    leases: Vec<Lease>,
}

impl Model {
    fn free_bytes(&self) -> usize {
        let served: usize = self.served.iter().map(|(bytes, _)| bytes).sum();
        BYTES_MAX - served - self.leases.iter().map(Lease::bytes).sum::<usize>()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.waiting.is_empty() && bytes <= self.free_bytes()
    }

    fn begin(&mut self, need: Need) {
        let (mut waiter, bytes) = (Waiter::new(&self.pool, need), need.bytes());
        match waiter.poll() {
            Poll::Ready(lease) => {
                assert!(self.has_room(bytes), "served out of turn");
                assert_eq!(lease.bytes(), bytes);
                self.leases.push(lease);
            }
            Poll::Pending => {
                assert!(!self.has_room(bytes), "waits without a reason");
                self.waiting.push_back((bytes, waiter));
            }
        }
    }

    fn run(&mut self, step: Step) {
        let queued = self.served.len() + self.waiting.len();
        match step {
            Step::Take(bytes) => self.begin(Need::Buffer(BufferPool::buffer_size(bytes).unwrap())),
            Step::Reserve(bytes) => self.begin(Need::Reservation(bytes)),
            Step::TryTake(bytes) => {
                let found = self.pool.try_take(bytes);
                let size = bytes.max(BUFFER_SIZE_MIN).next_power_of_two();
                assert_eq!(found.as_ref().map(TailBuffer::capacity), self.has_room(size).then_some(size));
                self.leases.extend(found.map(Lease::Buffer));
            }
            Step::TryReserve(bytes) => {
                let found = self.pool.try_reserve(bytes);
                assert_eq!(found.as_ref().map(Reservation::bytes), self.has_room(bytes).then_some(bytes));
                self.leases.extend(found.map(Lease::Reservation));
            }
            Step::Collect => {
                let Some((bytes, mut waiter)) = self.served.pop_front() else { return };
                let Poll::Ready(lease) = waiter.poll() else { panic!("woken in vain") };
                assert_eq!(lease.bytes(), bytes);
                self.leases.push(lease);
            }
            Step::Poll(index) if !self.waiting.is_empty() => {
                let waiter = &mut index.get_mut(self.waiting.make_contiguous()).1;
                waiter.flag = Flag::new(&self.pool);
                assert!(waiter.poll().is_pending(), "served without being woken");
            }
            Step::GiveUp(index) if queued > 0 => {
                let index = index.index(queued);
                let left = match index.checked_sub(self.served.len()) {
                    None => self.served.remove(index),
                    Some(index) => self.waiting.remove(index),
                };
                drop(left);
            }
            Step::GiveBack(index) if !self.leases.is_empty() => {
                let index = index.index(self.leases.len());
                drop(self.leases.swap_remove(index));
            }
            Step::Poll(_) | Step::GiveUp(_) | Step::GiveBack(_) => {}
        }
    }

    /// Whoever is first and fits was woken by now, and nobody else.
    fn check(&mut self) {
        while let Some((bytes, _)) = self.waiting.front() {
            if *bytes > self.free_bytes() {
                break;
            }
            self.served.extend(self.waiting.pop_front());
        }
        let woken = |(_, waiter): &(usize, Waiter)| waiter.flag.woken.load(Ordering::Relaxed);
        assert!(self.served.iter().all(woken), "a wake-up was lost");
        assert!(!self.waiting.iter().any(woken), "woken out of turn");
        let (leased_bytes, _, waiting_count) = sums(&self.pool);
        assert_eq!((leased_bytes, waiting_count), (BYTES_MAX - self.free_bytes(), self.waiting.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_is_served_in_its_order_within_the_limit(steps in prop::collection::vec(step(), 0..60)) {
        let pool = pool();
        let mut model =
            Model { pool: pool.clone(), waiting: VecDeque::new(), served: VecDeque::new(), leases: Vec::new() };
        for step in steps {
            model.run(step);
            model.check();
        }
        drop(model);
        prop_assert_eq!(sums(&pool).0, 0, "a lease was lost");
        prop_assert_eq!(sums(&pool).2, 0, "someone waits who is gone");
        prop_assert!(pool.lock().granted.is_empty());
    }
}

#[test]
fn a_buffer_has_the_next_power_of_two() {
    let sizes = [(0, 1), (1, 1), (BUFFER_SIZE_MIN, 1), (BUFFER_SIZE_MIN + 1, 2), (3 * BUFFER_SIZE_MIN, 4)];
    for (capacity, count) in sizes {
        let pool = pool();
        assert_eq!(pool.try_take(capacity).unwrap().capacity(), count * BUFFER_SIZE_MIN);
        assert_eq!(sums(&pool), (0, count * BUFFER_SIZE_MIN, 0));
    }
    assert_eq!(BufferPool::buffer_size(BUFFER_SIZE_MAX), Some(BUFFER_SIZE_MAX));
    assert_eq!(BufferPool::buffer_size(BUFFER_SIZE_MAX + 1), None);
    assert!(BufferPool::new(PoolOptions { bytes_max: usize::MAX }).try_take(usize::MAX).is_none());
}

#[test]
fn memory_is_used_again_and_goes_when_another_size_needs_the_room() {
    let pool = pool();
    let buffers = [(); 3].map(|()| pool.try_take(1).unwrap());
    let used = buffers.each_ref().map(address);
    assert_eq!(sums(&pool), (3 * BUFFER_SIZE_MIN, 0, 0));
    drop(buffers);
    assert_eq!(sums(&pool), (0, 3 * BUFFER_SIZE_MIN, 0));

    let again = pool.try_take(1).unwrap();
    assert_eq!(address(&again), used[2], "the one that came back last is the warmest");
    let large = pool.try_take(2 * BUFFER_SIZE_MIN).unwrap();
    assert_eq!(sums(&pool), (3 * BUFFER_SIZE_MIN, BUFFER_SIZE_MIN, 0), "one is evicted, not both");
    let reserved = pool.try_reserve(1).unwrap();
    assert_eq!(sums(&pool), (3 * BUFFER_SIZE_MIN + 1, 0, 0), "a reservation evicts, too");
    assert!(pool.try_take(1).is_none());
    drop((again, large, reserved));
    assert_eq!(sums(&pool), (0, 3 * BUFFER_SIZE_MIN, 0));
}

#[test]
fn who_waits_gets_the_memory_that_came_back() {
    let pool = BufferPool::new(PoolOptions { bytes_max: BUFFER_SIZE_MIN });
    let buffer = pool.try_take(1).unwrap();
    let used = address(&buffer);
    let mut waiter = Waiter::new(&pool, Need::Buffer(BUFFER_SIZE_MIN));
    assert!(waiter.poll().is_pending());
    drop(buffer);
    assert_eq!(sums(&pool), (BUFFER_SIZE_MIN, 0, 0), "served before it came for it");
    assert!(pool.try_reserve(1).is_none());
    let Poll::Ready(Lease::Buffer(buffer)) = waiter.poll() else { panic!("not served") };
    assert_eq!(address(&buffer), used);
}

#[test]
fn a_small_need_does_not_overtake_a_large_one() {
    let pool = pool();
    let held = [(); 2].map(|()| pool.try_take(2 * BUFFER_SIZE_MIN).unwrap());
    let [first, second] = held;
    let mut large = Waiter::new(&pool, Need::Buffer(BYTES_MAX));
    let mut small = Waiter::new(&pool, Need::Reservation(1));
    assert!(large.poll().is_pending() && small.poll().is_pending());
    drop(first);
    assert!(small.poll().is_pending(), "overtaken");
    assert!(pool.try_reserve(1).is_none(), "overtaken");
    drop(second);
    let Poll::Ready(buffer) = large.poll() else { panic!("not served") };
    assert!(small.poll().is_pending());
    drop(buffer);
    assert!(small.poll().is_ready());
}

#[test]
fn who_gives_up_lets_those_behind_move_up() {
    let pool = pool();
    let held = pool.try_take(2 * BUFFER_SIZE_MIN).unwrap();
    let mut waiters =
        [BYTES_MAX, BUFFER_SIZE_MIN, BYTES_MAX].map(|bytes| Waiter::new(&pool, Need::Buffer(bytes)));
    assert!(waiters.iter_mut().all(|waiter| waiter.poll().is_pending()));
    let [first, mut second, mut third] = waiters;
    drop(first);
    assert!(second.flag.woken.load(Ordering::Relaxed));
    assert!(second.poll().is_ready());
    drop(held);
    assert!(third.flag.woken.load(Ordering::Relaxed));
    drop(third);
    assert_eq!(sums(&pool).0, 0, "served, but never came for it");
    third = Waiter::new(&pool, Need::Reservation(BYTES_MAX));
    assert!(third.poll().is_ready());
}

#[test]
fn more_than_the_whole_pool_is_refused_at_once() {
    let pool = pool();
    for need in [Need::Buffer(BYTES_MAX + 1), Need::Buffer(usize::MAX), Need::Reservation(BYTES_MAX + 1)] {
        let mut waiter = Waiter::new(&pool, need);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waiter.poll().is_pending()));
        assert!(polled.is_err());
        assert_eq!(sums(&pool), (0, 0, 0));
    }
    assert!(pool.try_take(BYTES_MAX + 1).is_none());
    assert!(pool.try_reserve(BYTES_MAX + 1).is_none());
    assert!(pool.try_take(BYTES_MAX).is_some(), "and the pool works on");
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
fn threads_that_take_and_give_up_never_exceed_the_limit_and_all_get_through() {
    const ROUND_COUNT: u64 = 300;
    let (pool, given, stopped) = (pool(), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !stopped.load(Ordering::Relaxed) {
                sums(&pool);
                std::thread::yield_now();
            }
        });
        let takers: Vec<_> = (0..6u64)
            .map(|seed| {
                let (pool, given) = (&pool, &given);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed);
                    for _ in 0..ROUND_COUNT {
                        let need = match random.random_range(0..3) {
                            0 => Need::Reservation(random.random_range(0..=BYTES_MAX)),
                            _ => Need::Buffer(BUFFER_SIZE_MIN << random.random_range(0..3u32)),
                        };
                        let mut future = pin!(lease(pool.clone(), need));
                        if random.random_range(0..3) == 0 {
                            drop(future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
                        } else {
                            let lease = block_on(future);
                            assert_eq!(lease.bytes(), need.bytes());
                            given.fetch_add(1, Ordering::Relaxed);
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
    assert_eq!((sums(&pool).0, sums(&pool).2), (0, 0));
    assert!(given.load(Ordering::Relaxed) > 1_000, "{given:?}");
}
