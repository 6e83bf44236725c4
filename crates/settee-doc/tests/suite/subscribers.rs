//! Goal: every waiting task is notified of a change, even if others leave meanwhile.
//! Method: waiters polled by hand, in the simulation.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use settee_doc::{Database, Databases, DatabasesOptions, Edit, ErrorKind, Options, Result, Seq, Stage};
use settee_sim::{Sim, SimDisk};

type Waiter<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

fn waiters(database: &Database, seq: Seq, count: usize) -> Vec<Waiter<'_>> {
    (0..count).map(|_| Box::pin(database.changed_after(seq)) as Waiter<'_>).collect()
}

/// Polls each once, and returns those that still wait.
async fn still_waiting<'a>(mut waiters: Vec<Waiter<'a>>) -> Vec<Waiter<'a>> {
    poll_fn(move |context| {
        waiters.retain_mut(|waiter| waiter.as_mut().poll(context).is_pending());
        Poll::Ready(std::mem::take(&mut waiters))
    })
    .await
}

/// Lets other tasks run.
async fn yield_now() {
    let mut is_first = true;
    poll_fn(move |context| match std::mem::take(&mut is_first) {
        true => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await
}

async fn put(database: &Database, id: &str) {
    let mut edit = Edit::parse(br#"{"a":1}"#, &Options::default()).unwrap();
    edit.id = id.into();
    match id.starts_with("_local/") {
        true => drop(database.put_local(edit, Stage::Persisted).await.unwrap()),
        false => drop(database.update(edit, Stage::Persisted).await.unwrap()),
    }
}

fn with_database<F: Future<Output = ()>>(test: impl FnOnce(Arc<Databases>, Arc<Database>) -> F) {
    let sim = Sim::with_disk(&SimDisk::new(7));
    let env = sim.env();
    sim.run(async {
        let options = DatabasesOptions::default();
        let databases = Databases::open_with(env.clone(), Path::new("/data"), options).await.unwrap();
        databases.create_closed("db").await.unwrap();
        let database = databases.get("db").await.unwrap();
        test(databases, database).await;
    })
    .unwrap();
}

#[test]
fn all_subscribers_are_notified_even_if_others_leave() {
    with_database(async |_, database| {
        put(&database, "first").await;
        let seq = database.snapshot().update_seq();
        let mut waiting = still_waiting(waiters(&database, seq, 6)).await;
        assert_eq!(waiting.len(), 6);
        // The first one waits at the store for all; then the next does.
        drop(waiting.remove(0));
        let mut waiting = still_waiting(waiting).await;
        drop(waiting.remove(0));
        drop(waiting.pop());
        put(&database, "second").await;
        for waiter in waiting {
            waiter.await.unwrap();
        }
        database.changed_after(seq).await.unwrap();
    });
}

#[test]
fn changes_outside_the_seq_index_wake_nobody() {
    with_database(async |_, database| {
        let waiting = still_waiting(waiters(&database, Seq(0), 3)).await;
        put(&database, "_local/x").await;
        let waiting = still_waiting(still_waiting(waiting).await).await;
        assert_eq!(waiting.len(), 3);
        put(&database, "x").await;
        for waiter in waiting {
            waiter.await.unwrap();
        }
    });
}

#[test]
fn subscribers_of_different_changes_are_each_notified() {
    with_database(async |_, database| {
        put(&database, "a").await;
        let first = database.snapshot().update_seq();
        let later = still_waiting(waiters(&database, Seq(first.0 + 1), 2)).await;
        let next = still_waiting(waiters(&database, first, 2)).await;
        put(&database, "b").await;
        let (mut next, mut later) = (next, later);
        // The task with the turn waits for the others, so all of them are polled.
        while !next.is_empty() {
            later = still_waiting(later).await;
            next = still_waiting(next).await;
            yield_now().await;
        }
        assert_eq!(later.len(), 2, "the change that they wait for hasn't come");
        put(&database, "c").await;
        for waiter in later {
            waiter.await.unwrap();
        }
    });
}

#[test]
fn subscribers_learn_that_the_database_was_deleted() {
    with_database(async |databases, database| {
        let waiting = still_waiting(waiters(&database, Seq(0), 4)).await;
        databases.delete("db").await.unwrap();
        for waiter in waiting {
            assert_eq!(waiter.await.unwrap_err().kind(), ErrorKind::NotFound);
        }
    });
}
