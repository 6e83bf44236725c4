//! How a connection's task is woken, so that no second thread is woken with it.
//!
//! Two kinds of wake-ups cost a runtime with several threads more than the task's own turn:
//!
//! - A task that is woken while it is polled. hyper does that for each piece of a body: the handler that
//!   waits for it is a part of the same task. The runtime takes it for one that lets others go first, puts
//!   it into its queue and wakes a thread that might take it from there. [`relayed`] polls once more.
//! - A task that is woken by a thread that isn't the runtime's: the engine's, where a sync has ended. It goes
//!   to the queue that all threads share; the one that is woken for it finds it and wakes another, since
//!   there might be more. The [`Relay`] tells the runtime by a pipe that becomes readable, as a socket does, and
//!   whichever thread waits for those wakes the task as its own.
//!
//! Invariants:
//! 1. Whoever is woken is polled afterwards.
//! 2. A future that wakes itself each time it is polled lets others go first each second time.

use std::future::{Future, poll_fn};
use std::io::{self, PipeWriter, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;

/// How often a future is polled in one turn of its task.
const POLLS_PER_TURN: u32 = 2;

/// Passes wake-ups on from other threads to the runtime's.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Tasks that are to be woken: no more than there are, each once.
    woken: Mutex<Vec<Waker>>,
    /// Takes a byte for the first of them.
    pipe: PipeWriter,
}

/// The other end of a [`Relay`].
#[derive(Debug)]
pub(crate) struct RelayEnd {
    relay: Arc<Relay>,
    pipe: pipe::Receiver,
}

impl Relay {
    /// One of the runtime that runs the caller. Nobody is woken while its end isn't served.
    ///
    /// # Errors
    /// The system gives no pipe.
    pub(crate) fn new() -> io::Result<(Arc<Relay>, RelayEnd)> {
        let (sender, receiver) = pipe::pipe()?;
        let relay = Relay { woken: Mutex::default(), pipe: sender.into_nonblocking_fd()?.into() };
        let relay = Arc::new(relay);
        Ok((relay.clone(), RelayEnd { relay, pipe: receiver }))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, task: Waker) {
        let mut woken = self.lock();
        woken.push(task);
        let is_first = woken.len() == 1;
        drop(woken);
        if is_first {
            // It fails where the pipe is full, and then the other end is about to look.
            let _ = (&self.pipe).write(&[0]);
        }
    }
}

impl RelayEnd {
    /// Passes on what comes, for as long as it is polled and the runtime has its driver.
    pub(crate) async fn serve(mut self) {
        let mut bytes = [0; 16];
        // In this order: whom the look misses writes another byte.
        while self.pipe.read(&mut bytes).await.is_ok() {
            let woken = std::mem::take(&mut *self.relay.lock());
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// Nobody has woken it since it was polled.
const IDLE: u8 = 0;
/// It is being polled.
const POLLED: u8 = 1;
/// It was woken, while it was polled or since, and will be polled.
const WOKEN: u8 = 2;

/// What a future's parts wake.
struct Task {
    state: AtomicU8,
    /// The task that runs it.
    waker: AtomicWaker,
    relay: Arc<Relay>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) != IDLE {
            return;
        }
        let Some(waker) = self.waker.take() else { return };
        match Handle::try_current() {
            Ok(_) => waker.wake(),
            Err(_) => self.relay.wake(waker),
        }
    }
}

/// Runs a future whose wake-ups cost what they must. The relay's end must be [served](RelayEnd::serve).
pub(crate) async fn relayed<T>(relay: Arc<Relay>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let task = Arc::new(Task { state: AtomicU8::new(IDLE), waker: AtomicWaker::new(), relay });
    let waker = Waker::from(task.clone());
    poll_fn(|context| {
        task.waker.register(context.waker());
        for _ in 0..POLLS_PER_TURN {
            task.state.swap(POLLED, Ordering::AcqRel);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            let ended = task.state.compare_exchange(POLLED, IDLE, Ordering::AcqRel, Ordering::Acquire);
            if polled.is_ready() || ended.is_ok() {
                return polled;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes itself in its first `count` polls, and ends in the next.
    fn restless(count: usize, polls: &Cell<usize>) -> impl Future<Output = ()> {
        poll_fn(move |context| {
            polls.set(polls.get() + 1);
            if polls.get() > count {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
    }

    #[tokio::test]
    async fn who_wakes_itself_is_polled_again_and_lets_others_go_first_each_second_time() {
        let (relay, _end) = Relay::new().unwrap();
        let (polls, count) = (Cell::new(0), Arc::new(Count::default()));
        let (waker, mut future) = (Waker::from(count.clone()), pin!(relayed(relay, restless(3, &polls))));
        let mut context = Context::from_waker(&waker);
        assert!(future.as_mut().poll(&mut context).is_pending());
        assert_eq!((polls.get(), count.0.load(Ordering::Relaxed)), (2, 1));
        assert!(future.as_mut().poll(&mut context).is_ready());
        assert_eq!((polls.get(), count.0.load(Ordering::Relaxed)), (4, 1));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_is_woken_by_other_threads_goes_on() {
        const TASKS: usize = 50;
        const ROUNDS: usize = 200;
        let (relay, end) = Relay::new().unwrap();
        let serving = tokio::spawn(end.serve());
        let (sender, requests) = std::sync::mpsc::channel::<oneshot::Sender<usize>>();
        let requests = Arc::new(Mutex::new(requests));
        let answer = || {
            let requests = requests.clone();
            move || {
                for number in 0.. {
                    let Ok(request) = requests.lock().unwrap().recv() else { return };
                    request.send(number).unwrap();
                }
            }
        };
        let threads = [thread::spawn(answer()), thread::spawn(answer())];
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let sender = sender.clone();
                let rounds = async move {
                    for _ in 0..ROUNDS {
                        let (request, answer) = oneshot::channel();
                        sender.send(request).unwrap();
                        answer.await.unwrap();
                    }
                };
                tokio::spawn(relayed(relay.clone(), rounds))
            })
            .collect();
        drop(sender);
        for task in tasks {
            tokio::time::timeout(Duration::from_secs(60), task).await.expect("it goes on").unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        serving.abort();
    }

    #[tokio::test]
    async fn one_that_is_woken_before_it_waits_is_polled() {
        let (relay, _end) = Relay::new().unwrap();
        let (sender, receiver) = oneshot::channel();
        thread::spawn(move || sender.send(7)).join().unwrap().unwrap();
        assert_eq!(relayed(relay, receiver).await, Ok(7));
    }
}
