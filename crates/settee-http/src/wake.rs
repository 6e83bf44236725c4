//! How a connection's task is woken while it is polled.
//!
//! hyper does that for each piece of a body: the handler that waits for it is a part of the same task. A
//! runtime takes such a task for one that lets others go first: it goes to the end of the queue, and
//! another thread is woken that might take it from there. [`eager`] polls once more, in the same turn.
//!
//! So of two times that something in such a future lets others go first, one is in vain
//! (`settee_io::yield_now`): who works for long does so each few hundred KiB.
//!
//! Invariants:
//! 1. Whoever is woken is polled afterwards.
//! 2. A future that wakes itself each time it is polled lets others go first each second time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// How often a future is polled in one turn of its task.
const POLLS_PER_TURN: u32 = 2;

/// Nobody has woken it since it was polled.
const IDLE: u8 = 0;
/// It is being polled.
const POLLED: u8 = 1;
/// It was woken, while it was polled or since, and will be polled.
const WOKEN: u8 = 2;

/// What a future's parts wake.
struct Turn {
    state: AtomicU8,
    /// The task that runs it.
    task: AtomicWaker,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == IDLE {
            self.task.wake();
        }
    }
}

/// Runs a future, and polls it again at once where it was woken meanwhile.
pub(crate) async fn eager<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let turn = Arc::new(Turn { state: AtomicU8::new(IDLE), task: AtomicWaker::new() });
    let waker = Waker::from(turn.clone());
    poll_fn(|context| {
        turn.task.register(context.waker());
        for _ in 0..POLLS_PER_TURN {
            turn.state.swap(POLLED, Ordering::AcqRel);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            let ended = turn.state.compare_exchange(POLLED, IDLE, Ordering::AcqRel, Ordering::Acquire);
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
    use std::sync::{Mutex, mpsc};
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

    /// Polls `future` in turns until it ends or a turn leaves it alone, and counts `polls` and wake-ups
    /// after each.
    fn turns(future: impl Future<Output = ()>, polls: &Cell<usize>) -> Vec<(usize, usize)> {
        let count = Arc::new(Count::default());
        let (waker, mut future) = (Waker::from(count.clone()), pin!(eager(future)));
        let mut after = Vec::new();
        loop {
            let before = count.0.load(Ordering::Relaxed);
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            let woken = count.0.load(Ordering::Relaxed);
            after.push((polls.get(), woken));
            if polled.is_ready() || woken == before {
                return after;
            }
        }
    }

    #[test]
    fn who_wakes_itself_is_polled_again_and_lets_others_go_first_each_second_time() {
        let polls = Cell::new(0);
        let restless = poll_fn(|context| {
            polls.set(polls.get() + 1);
            context.waker().wake_by_ref();
            if polls.get() > 3 { Poll::Ready(()) } else { Poll::Pending }
        });
        assert_eq!(turns(restless, &polls), [(2, 1), (4, 1)]);
    }

    #[test]
    fn who_is_woken_by_another_thread_while_it_is_polled_is_polled_again() {
        let polls = Cell::new(0);
        let woken_once = poll_fn(|context| {
            polls.set(polls.get() + 1);
            if polls.get() == 1 {
                let waker = context.waker().clone();
                thread::spawn(move || waker.wake()).join().unwrap();
            }
            Poll::Pending
        });
        assert_eq!(turns(woken_once, &polls), [(2, 0)]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_is_woken_by_other_threads_goes_on() {
        const TASKS: usize = 50;
        const ROUNDS: usize = 200;
        let (sender, requests) = mpsc::channel::<oneshot::Sender<()>>();
        let requests = Arc::new(Mutex::new(requests));
        let answer = || {
            let requests = requests.clone();
            move || {
                while let Ok(request) = { requests.lock().unwrap().recv() } {
                    request.send(()).unwrap();
                }
            }
        };
        let threads = [thread::spawn(answer()), thread::spawn(answer())];
        let begin = |_| {
            let sender = sender.clone();
            let rounds = async move {
                for _ in 0..ROUNDS {
                    let (request, answer) = oneshot::channel();
                    sender.send(request).unwrap();
                    answer.await.unwrap();
                }
            };
            tokio::spawn(eager(rounds))
        };
        let tasks: Vec<_> = (0..TASKS).map(begin).collect();
        drop(sender);
        for task in tasks {
            tokio::time::timeout(Duration::from_secs(60), task).await.expect("it goes on").unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
