//! Goal: a log has a bounded number of timers.
//! Method: timers are counted while committers start and finish.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use settee_io::{Env, Spawn, Task};
use settee_log::{Batch, Flags, Log, LogOptions, Stage};
use settee_sim::{Sim, SimDisk};

struct Counting(Arc<dyn Spawn>, Arc<AtomicUsize>);

impl Spawn for Counting {
    fn spawn(&self, name: &'static str, task: Task) {
        if name != "log timer" {
            return self.0.spawn(name, task);
        }
        let count = self.1.clone();
        count.fetch_add(1, Ordering::Relaxed);
        self.0.spawn(
            name,
            Box::pin(async move {
                task.await;
                count.fetch_sub(1, Ordering::Relaxed);
            }),
        );
    }
}

#[test]
fn timers_do_not_pile_up() {
    let mut most = Vec::new();
    for written_age_ms_max in [1_000, 3_600_000] {
        let disk = SimDisk::new(1).delays_us(100..=300);
        let sim = Sim::with_disk(&disk);
        let count = Arc::new(AtomicUsize::new(0));
        let env = sim.env();
        let env = Env { spawn: Arc::new(Counting(env.spawn.clone(), count.clone())), ..env };
        let options = LogOptions { segment_bytes_min: 64 << 20, written_age_ms_max, ..LogOptions::default() };
        sim.run(async {
            let (log, _) = Log::open(&env, Path::new("/log"), options, |_, _| {}).await.unwrap();
            let (log, env) = (&log, &env);
            join_all((0..4_u64).map(|writer| async move {
                for turn in 0..1_500_u64 {
                    let stage = if writer == 0 { Stage::Written } else { Stage::Persisted };
                    let mut batch = Batch::new();
                    batch.push(Flags::none(), b"key", b"", b"value");
                    let appended = log.append(&batch, stage).await.unwrap();
                    log.wait(appended.last_seq, stage).await.unwrap();
                    env.clock.sleep(std::time::Duration::from_micros(100 * (turn % (3 + writer)))).await;
                }
            }))
            .await;
        })
        .unwrap();
        let remaining = count.load(Ordering::Relaxed);
        most.push((written_age_ms_max, remaining));
    }
    assert!(
        most.iter().all(|(_, remaining)| *remaining <= 16),
        "timers of one log, by written_age_ms_max: {most:?}"
    );
}
