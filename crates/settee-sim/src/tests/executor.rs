//! Goal: the seed determines a run; time, tasks and timers behave as documented; a run that can't end fails
//! with its seed.
//! Method: small programs, compared between runs and seeds.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, pending, poll_fn, ready};
use tokio::sync::{Notify, oneshot};

use super::*;
use crate::seeds;

async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Runs several tasks that write, sync, sleep, draw random numbers and wake each other.
async fn busy_program(env: Env) {
    let notify = Arc::new(Notify::new());
    let file = Arc::new(create(&env, PATH).await);
    let ends: Vec<_> = (0..5u64)
        .map(|index| {
            let (notify, file, inner) = (notify.clone(), file.clone(), env.clone());
            let (sender, end) = oneshot::channel();
            env.spawn("worker", async move {
                for round in 0..10 {
                    let [byte] = inner.random_bytes();
                    file.write_at(index * 700 + round * u64::from(byte), sectors(1, byte)).await.unwrap();
                    inner.clock.sleep(Duration::from_micros(byte.into())).await;
                    notify.notify_waiters();
                    file.sync().await.unwrap();
                }
                sender.send(()).unwrap();
            });
            end
        })
        .collect();
    notify.notified().await;
    for end in ends {
        end.await.unwrap();
    }
}

#[test]
fn a_seed_determines_the_run_and_different_seeds_differ() {
    let trace = |seed| {
        let disk = SimDisk::new(seed);
        run(&disk, busy_program).unwrap();
        disk.trace_hash()
    };
    let traces: Vec<u64> = seeds(20).map(trace).collect();
    assert_eq!(traces, seeds(20).map(trace).collect::<Vec<_>>());
    assert_eq!(BTreeSet::from_iter(&traces).len(), traces.len());
}

#[test]
fn the_power_is_cut_at_the_planned_sync_or_operation_and_the_run_is_the_same_until_then() {
    for seed in seeds(3) {
        let whole = SimDisk::new(seed);
        assert!(run(&whole, busy_program).is_some());
        for crash_at in 0..whole.sync_count() {
            for disk in
                [SimDisk::new(seed).crash_at_sync(crash_at), SimDisk::new(seed).crash_after_sync(crash_at)]
            {
                assert!(run(&disk, busy_program).is_none(), "seed={seed} crash_at={crash_at}");
                assert_eq!(disk.sync_count(), crash_at + 1, "seed={seed}");
            }
        }
        let disk = SimDisk::new(seed).crash_at_sync(whole.sync_count());
        assert!(run(&disk, busy_program).is_some(), "seed={seed}");
        assert_eq!(disk.trace_hash(), whole.trace_hash(), "seed={seed}");
        for crash_at in 0..whole.operation_count() {
            let disk = SimDisk::new(seed).crash_at_operation(crash_at);
            assert!(run(&disk, busy_program).is_none(), "seed={seed} crash_at={crash_at}");
            assert_eq!(disk.operation_count(), crash_at + 1, "seed={seed}");
        }
    }
}

#[test]
fn nothing_runs_after_the_power_is_lost() {
    let sim = Sim::new(1);
    let polled = Arc::new(AtomicUsize::new(0));
    let task_polled = polled.clone();
    sim.env().spawn("spinner", async move {
        loop {
            task_polled.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    });
    let disk = sim.disk().clone();
    assert_eq!(sim.run(async { disk.cut_power() }), None, "a run that cut the power has no result");
    let polled_count = polled.load(Ordering::Relaxed);
    assert_eq!(sim.run(ready(())), None);
    assert_eq!(polled.load(Ordering::Relaxed), polled_count);
}

#[test]
fn the_seed_determines_the_order_of_tasks_and_none_starves() {
    let mut orders = BTreeSet::new();
    for seed in seeds(50) {
        let sim = Sim::new(seed);
        let env = sim.env();
        let order = Arc::new(Mutex::new(Vec::new()));
        let ends = (0..3).map(|index| {
            let order = order.clone();
            let (sender, end) = oneshot::channel::<()>();
            env.spawn("one of three", async move {
                for _ in 0..3 {
                    yield_now().await;
                }
                order.lock().unwrap().push(index);
                drop(sender);
            });
            end
        });
        let spin_on = join_all(ends.collect::<Vec<_>>());
        assert!(sim.run(spin_on).is_some());
        orders.insert(order.lock().unwrap().clone());
    }
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn time_jumps_to_the_next_timer_and_timers_expire_in_order() {
    let sim = Sim::new(1);
    let env = sim.env();
    let order = Mutex::new(Vec::new());
    let hours = [5, 1, 3, 1].map(|hours| {
        let (clock, order) = (&env.clock, &order);
        async move {
            clock.sleep(Duration::from_secs(3600 * hours)).await;
            assert!(clock.now() >= Duration::from_secs(3600 * hours));
            order.lock().unwrap().push(hours);
        }
    });
    let start_us = env.clock.unix_us();
    sim.run(join_all(hours)).unwrap();
    assert_eq!(order.into_inner().unwrap(), [1, 1, 3, 5]);
    assert_eq!((env.clock.unix_us() - start_us) / 3_600_000_000, 5);
}

#[test]
fn a_dropped_timer_delays_no_task() {
    let sim = Sim::new(1);
    let env = sim.env();
    sim.run(async {
        let mut long = env.clock.sleep(Duration::from_secs(3600));
        poll_fn(|context| {
            assert!(long.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(long);
        env.clock.sleep(Duration::from_secs(1)).await;
        env.clock.sleep(Duration::ZERO).await;
    })
    .unwrap();
    assert!(env.clock.now() < Duration::from_secs(2));
}

#[test]
fn a_task_outlives_the_run_in_which_it_was_spawned() {
    let sim = Sim::new(1);
    let env = sim.env();
    let (sender, end) = oneshot::channel();
    let clock = env.clock.clone();
    env.spawn("sleeper", async move {
        clock.sleep(Duration::from_secs(1)).await;
        sender.send("done").unwrap();
    });
    sim.run(ready(())).unwrap();
    assert_eq!(sim.run(end).unwrap(), Ok("done"));
}

#[test]
fn dropping_a_simulation_drops_its_tasks() {
    let sim = Sim::new(1);
    let env = sim.env();
    let (sender, mut end) = oneshot::channel::<()>();
    let inner = env.clone();
    env.spawn("holder", async move {
        let _held = (sender, inner);
        pending().await
    });
    sim.run(ready(())).unwrap();
    drop(sim);
    assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Closed));
}

fn panic_message(run: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    *panic.downcast::<String>().unwrap()
}

#[test]
fn a_deadlock_is_reported_with_the_seed_and_the_tasks() {
    let sim = Sim::new(42);
    sim.env().spawn("waiter", pending());
    let message = panic_message(|| assert_eq!(sim.run(pending::<()>()), None));
    assert!(message.contains("deadlock, seed 42") && message.contains("waiter"), "{message}");
}

#[test]
fn a_run_without_end_is_reported_with_the_seed() {
    let sim = Sim::new(42).step_count_max(1000);
    let spin = async {
        loop {
            yield_now().await;
        }
    };
    let message = panic_message(|| assert_eq!(sim.run::<()>(spin), None));
    assert!(message.contains("1000 steps, seed 42"), "{message}");
}

#[test]
fn randomness_comes_from_the_seed() {
    let draw = |seed| Sim::new(seed).env().random_bytes::<16>();
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
